/* kv_insert: rotate latent rows, quantise them and write them into a paged cache, nothing else. Contract
 * sections 3.1, 3.2, 14. */
#ifndef MEGAMLA_KV_INSERT_H
#define MEGAMLA_KV_INSERT_H

#include "megamla/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum megamla_kv_writer {
  MEGAMLA_WRITER_WINDOW =
      0, /* every token, at its own position; the rotated value is rounded to bf16 before it is encoded */
  MEGAMLA_WRITER_COMPRESSED =
      1 /* tokens with (pos + 1) % ratio == 0, rotated at (pos / ratio) * ratio; the fp32 value is encoded */
} megamla_kv_writer;

typedef struct megamla_kv_insert_params {
  size_t struct_size;
  megamla_tensor latent;       /* BF16 [T, 512], before RoPE; row stride free */
  megamla_tensor positions;    /* I32 or I64 [T]; absent only if cos_sin is absent and the writer is WINDOW */
  megamla_tensor cos_sin;      /* F32 [P, 64]; absent: no rotation (rows are stored as they are) */
  megamla_tensor slot_mapping; /* I64 [S]; min(T, S) rows are written. Negative: the row is skipped */
  megamla_kv_cache cache; /* any format. No slot may appear twice in slot_mapping: on CUDA the row that stays would be
                           undefined; reference and cpu keep the last one */
  int32_t writer;         /* megamla_kv_writer */
  int32_t compress_ratio; /* COMPRESSED: 1 or 2 */
  megamla_tensor
      skipped_rows; /* I64 [1] or absent: number of rows skipped for a slot beyond the pool or a position
                       outside the table (negative slots and open groups do not count). Written for T = 0 too */
} megamla_kv_insert_params;

MEGAMLA_API void megamla_kv_insert_init(megamla_kv_insert_params* params);
MEGAMLA_API megamla_status megamla_kv_insert_supports(const megamla_kv_insert_params* params, megamla_device device);
MEGAMLA_API megamla_status megamla_kv_insert_implementation(const megamla_kv_insert_params* params,
                                                            megamla_device device, const char** name);
/* No workspace: 0 on every device. */
MEGAMLA_API megamla_status megamla_kv_insert_workspace_size(const megamla_limits* limits, megamla_device device,
                                                            int64_t* bytes);
MEGAMLA_API megamla_status megamla_kv_insert(const megamla_kv_insert_params* params, const megamla_exec* exec);

#ifdef __cplusplus
}
#endif
#endif
