/* kv_gather: dequantise rows of a paged cache into a bf16 workspace for prefill_attention. Contract section 9. */
#ifndef MEGAMLA_KV_GATHER_H
#define MEGAMLA_KV_GATHER_H

#include "megamla/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct megamla_kv_gather_params {
  size_t struct_size;
  megamla_kv_cache cache;
  megamla_tensor seq_lens;    /* I32 [R], in cache rows (tokens / ratio for a compressed cache); negative = 0 */
  megamla_tensor gather_lens; /* I32 [R], in cache rows, clamped to [0, seq_len]; absent: all rows */
  megamla_tensor block_table; /* I32 [R, nb], row stride free; a negative entry, one >= num_pages, or a column >= nb
                                 names no page */
  int64_t offset;             /* row of out that the first gathered row of each request goes to, >= 0 */
  megamla_tensor out; /* BF16 [R, M, 512], dims contiguous. Row out[r, offset + i] = position seq_len - gather_len + i.
                         Rows that no page backs and rows beyond stay as they were. A row >= M is dropped: the lengths
                         are data, and a device reads them after the call has returned */
} megamla_kv_gather_params;

MEGAMLA_API void megamla_kv_gather_init(megamla_kv_gather_params* params);
MEGAMLA_API megamla_status megamla_kv_gather_supports(const megamla_kv_gather_params* params, megamla_device device);
MEGAMLA_API megamla_status megamla_kv_gather_implementation(const megamla_kv_gather_params* params,
                                                            megamla_device device, const char** name);
/* No workspace: 0 on every device. */
MEGAMLA_API megamla_status megamla_kv_gather_workspace_size(const megamla_limits* limits, megamla_device device,
                                                            int64_t* bytes);
MEGAMLA_API megamla_status megamla_kv_gather(const megamla_kv_gather_params* params, const megamla_exec* exec);

#ifdef __cplusplus
}
#endif
#endif
