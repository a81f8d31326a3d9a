/* decode_attention: rotate Q, attend sparsely over paged quantised caches with a sink, un-rotate the output, cast it
 * into the buffer that the output projection reads. Contract sections 4, 5, 7 and 14.
 *
 * Notation: T tokens, H heads of the buffers, G = H / 8 groups, W and K list widths, A = T_alloc rounded up to a
 * multiple of 4.
 */
#ifndef MEGAMLA_DECODE_ATTENTION_H
#define MEGAMLA_DECODE_ATTENTION_H

#include "megamla/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum megamla_q_layout {
  MEGAMLA_Q_STANDARD = 0, /* [T, H, 512]; token and head stride free, dims contiguous */
  MEGAMLA_Q_CHUNKED = 1   /* same shape; element (h, d) of a token at (d/16)*(H*16) + h*16 + d%16: token stride free,
                             heads and dims contiguous */
} megamla_q_layout;

typedef enum megamla_attention_output {
  MEGAMLA_OUTPUT_FP8_PAIR = 0, /* out = e4m3 data, out_scale = packed ue8m0 words (contract section 7) */
  MEGAMLA_OUTPUT_BF16 = 1,     /* out = BF16 [T, H, 512] standard order */
  MEGAMLA_OUTPUT_F32 = 2       /* out = F32 [T, H, 512] standard order; for merging partial results */
} megamla_attention_output;

typedef struct megamla_decode_attention_params {
  size_t struct_size;
  megamla_tensor q; /* BF16 [T, H, 512], before RoPE. H: a multiple of 8, 8 .. 128 */
  int32_t q_layout; /* megamla_q_layout */
  int32_t q_norm;   /* not 0: logits times rsqrt(mean(q^2) + q_norm_eps) of the unrotated q (V4) */
  float q_norm_eps;
  float softmax_scale;      /* 512^-0.5 for the model */
  megamla_tensor positions; /* I32 or I64 [T]; position = row of cos_sin. Absent only if cos_sin is */
  megamla_tensor cos_sin;   /* F32 [P, 64], contiguous rows: 32 cosines, 32 sines. Absent: no rotation in or out */

  megamla_kv_cache window;     /* fp8_528 or fp8_584 */
  megamla_tensor window_slots; /* I32 [T, W], row stride free; invalid (< 0 or >= slots) entries may stand anywhere */
  megamla_tensor window_lens;  /* I32 [T], clamped to [0, W]; entries at or past it are never used. Absent: W */

  megamla_kv_cache compressed;     /* NONE; with window fp8_528: fp8_528 or nvfp4_288; with window fp8_584: fp8_584 */
  megamla_tensor compressed_slots; /* I32 [T, K]; absent if and only if compressed is NONE */
  megamla_tensor compressed_lens;  /* I32 [T], likewise; absent: K */

  megamla_tensor attn_sink; /* F32 [H], natural-log logits, unscaled; -inf no effect, +inf output 0. Absent: none */
  int64_t live_heads;       /* 0 = H; else a multiple of 8 <= H: heads beyond are neither computed nor written */

  int32_t output;           /* megamla_attention_output */
  int32_t batch_invariant;  /* not 0: a row's bits do not depend on the other rows of the call */
  megamla_tensor out;       /* pair: F8_E4M3 [T, G, 4096], contiguous; else BF16 / F32 [T, H, 512], dims contiguous */
  megamla_tensor out_scale; /* pair: I32 [T, G, 32] with strides (1, 32*A, A), A >= T, A % 4 == 0; else absent */
  megamla_tensor lse; /* F32 [T, H]: ln of the sum of exp(logit), sink excluded; +inf with no valid key, NaN with a
                         position outside the table. Absent: not wanted */
} megamla_decode_attention_params;

/* Fills a struct with zeros and its size (everything absent, standard q, pair output, scale 512^-0.5). */
MEGAMLA_API void megamla_decode_attention_init(megamla_decode_attention_params* params);
/* MEGAMLA_OK if an implementation on `device` covers these parameters; UNSUPPORTED or INVALID_ARGUMENT with the reason
 * otherwise. */
MEGAMLA_API megamla_status megamla_decode_attention_supports(const megamla_decode_attention_params* params,
                                                             megamla_device device);
/* Name of the implementation that would run ("cpu.onednn_bf16", ...), through *name, a static string. */
MEGAMLA_API megamla_status megamla_decode_attention_implementation(const megamla_decode_attention_params* params,
                                                                   megamla_device device, const char** name);
/* Reads limits tokens, heads, window_width, compressed_width, num_threads. */
MEGAMLA_API megamla_status megamla_decode_attention_workspace_size(const megamla_limits* limits, megamla_device device,
                                                                   int64_t* bytes);
/* T = 0: success, nothing written. Errors: INVALID_ARGUMENT (nothing written), UNSUPPORTED, WORKSPACE_TOO_SMALL,
 * RUNTIME_ERROR. */
MEGAMLA_API megamla_status megamla_decode_attention(const megamla_decode_attention_params* params,
                                                    const megamla_exec* exec);

#ifdef __cplusplus
}
#endif
#endif
