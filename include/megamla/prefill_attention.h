/* prefill_attention: the mathematics and outputs of decode_attention over gathered bf16 rows, plus max_logits. Contract
 * sections 6, 7, 14. */
#ifndef MEGAMLA_PREFILL_ATTENTION_H
#define MEGAMLA_PREFILL_ATTENTION_H

#include "megamla/decode_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct megamla_prefill_attention_params {
  size_t struct_size;
  megamla_tensor q; /* as in decode_attention */
  int32_t q_layout; /* megamla_q_layout */
  int32_t q_norm;
  float q_norm_eps;
  float softmax_scale;
  megamla_tensor positions; /* I32 or I64 [T] */
  megamla_tensor cos_sin;   /* F32 [P, 64]; absent: no rotation in or out */

  megamla_tensor
      kv; /* BF16 [s_kv, 512], RoPE already applied; row stride free, a multiple of 8 elements, base 16-byte aligned */
  megamla_tensor indices;     /* I32 [T, topk] rows of kv; valid iff 0 <= index < s_kv */
  megamla_tensor topk_length; /* I32 [T], clamped to [0, topk]; entries past it are never read as rows. Absent: topk */

  megamla_tensor attn_sink; /* F32 [H] or absent */
  int64_t live_heads;       /* 0 = H */

  int32_t output;     /* megamla_attention_output */
  int32_t reserved;   /* 0 */
  megamla_tensor out; /* as in decode_attention */
  megamla_tensor out_scale;
  megamla_tensor lse;        /* F32 [T, H] or absent */
  megamla_tensor max_logits; /* F32 [T, H] or absent: largest softmax_scale * q.k; -inf with no valid key, else NaN with
                                a position outside */
} megamla_prefill_attention_params;

MEGAMLA_API void megamla_prefill_attention_init(megamla_prefill_attention_params* params);
MEGAMLA_API megamla_status megamla_prefill_attention_supports(const megamla_prefill_attention_params* params,
                                                              megamla_device device);
MEGAMLA_API megamla_status megamla_prefill_attention_implementation(const megamla_prefill_attention_params* params,
                                                                    megamla_device device, const char** name);
/* Reads limits tokens, heads, compressed_width (= topk), num_threads. */
MEGAMLA_API megamla_status megamla_prefill_attention_workspace_size(const megamla_limits* limits, megamla_device device,
                                                                    int64_t* bytes);
MEGAMLA_API megamla_status megamla_prefill_attention(const megamla_prefill_attention_params* params,
                                                     const megamla_exec* exec);

#ifdef __cplusplus
}
#endif
#endif
