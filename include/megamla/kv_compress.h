/* kv_compress: the compressor. Scores and kv of tokens -> normalised latent rows, with a per-request state ring.
 * Contract section 10. */
#ifndef MEGAMLA_KV_COMPRESS_H
#define MEGAMLA_KV_COMPRESS_H

#include "megamla/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct megamla_kv_compress_params {
  size_t struct_size;
  int32_t compress_ratio;  /* 1 or 2 */
  float eps;               /* 1e-20 for the model */
  megamla_tensor kv_score; /* F32: ratio 1 [T, 512] = kv; ratio 2 [T, 1024] = kv then score; row stride free */
  megamla_tensor weight;   /* BF16 [512], RMSNorm weight */
  /* Ratio 2 only (absent otherwise): */
  megamla_tensor token_to_req; /* I32 [T]; < 0 or >= R: padding, the token is skipped */
  megamla_tensor positions;   /* I32 or I64 [T]; consecutive within a request's tokens of one call; negative: skipped */
  megamla_tensor state_block; /* I32 [R]: block of each request in `state`; 0 (the null block) or out of range: its
                                 tokens are skipped */
  megamla_tensor state; /* F32 [num_blocks, capacity, 1024], contiguous, read and written. capacity: a power of two
                           >= 8. Row of a token: pos % capacity of its request's block; of a call longer than the ring
                           the last rows stay */
  megamla_tensor
      latent; /* BF16 [T, 512], row stride free. Row t is written where token t closes a group (ratio 1: every token) */
  megamla_tensor written; /* U8 [T] or absent: 1 where row t of latent was written, else 0 */
} megamla_kv_compress_params;

MEGAMLA_API void megamla_kv_compress_init(megamla_kv_compress_params* params);
MEGAMLA_API megamla_status megamla_kv_compress_supports(const megamla_kv_compress_params* params,
                                                        megamla_device device);
MEGAMLA_API megamla_status megamla_kv_compress_implementation(const megamla_kv_compress_params* params,
                                                              megamla_device device, const char** name);
/* Reads limits tokens. */
MEGAMLA_API megamla_status megamla_kv_compress_workspace_size(const megamla_limits* limits, megamla_device device,
                                                              int64_t* bytes);
MEGAMLA_API megamla_status megamla_kv_compress(const megamla_kv_compress_params* params, const megamla_exec* exec);

#ifdef __cplusplus
}
#endif
#endif
