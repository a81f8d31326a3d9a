/* output_cast: the two FP8 casts as an op of their own. Contract sections 7 and 11. Attention and block_scaled_linear
 * fuse them; engines that hold unquantised values use this. */
#ifndef MEGAMLA_OUTPUT_CAST_H
#define MEGAMLA_OUTPUT_CAST_H

#include "megamla/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum megamla_cast_target {
  MEGAMLA_CAST_ATTENTION_OUTPUT = 0, /* in F32 or BF16 [T, H, 512] -> out F8_E4M3 [T, G, 4096] chunked, out_scale I32
                                        [T, G, 32] strides (1, 32*A, A) */
  MEGAMLA_CAST_MXFP8 = 1 /* in F32 (rounded to bf16 first) or BF16 [T, K] -> out F8_E4M3 [T, K], out_scale F8_E8M0 flat
                            F8_128x4. K % 32 == 0; padding scale bytes are written as 0 */
} megamla_cast_target;

typedef struct megamla_output_cast_params {
  size_t struct_size;
  int32_t target;   /* megamla_cast_target */
  int32_t reserved; /* 0 */
  megamla_tensor in;
  megamla_tensor out;
  megamla_tensor out_scale;
} megamla_output_cast_params;

MEGAMLA_API void megamla_output_cast_init(megamla_output_cast_params* params);
MEGAMLA_API megamla_status megamla_output_cast_supports(const megamla_output_cast_params* params,
                                                        megamla_device device);
MEGAMLA_API megamla_status megamla_output_cast_implementation(const megamla_output_cast_params* params,
                                                              megamla_device device, const char** name);
/* No workspace: 0 on every device. */
MEGAMLA_API megamla_status megamla_output_cast_workspace_size(const megamla_limits* limits, megamla_device device,
                                                              int64_t* bytes);
MEGAMLA_API megamla_status megamla_output_cast(const megamla_output_cast_params* params, const megamla_exec* exec);

#ifdef __cplusplus
}
#endif
#endif
