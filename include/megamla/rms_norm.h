/* rms_norm: y = x * rsqrt(mean(x^2) + eps) * weight, rounded to bf16 once, after the weight. Contract section 12. */
#ifndef MEGAMLA_RMS_NORM_H
#define MEGAMLA_RMS_NORM_H

#include "megamla/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct megamla_rms_norm_params {
  size_t struct_size;
  float eps;             /* 1e-20 for the model; >= 0 */
  int32_t reserved;      /* 0 */
  megamla_tensor x;      /* BF16 or F32 [T, n], row stride free; n >= 1 */
  megamla_tensor weight; /* BF16 [n] */
  megamla_tensor y;      /* BF16 [T, n], row stride free. An all-zero row with eps 0 becomes zeros */
} megamla_rms_norm_params;

MEGAMLA_API void megamla_rms_norm_init(megamla_rms_norm_params* params);
MEGAMLA_API megamla_status megamla_rms_norm_supports(const megamla_rms_norm_params* params, megamla_device device);
MEGAMLA_API megamla_status megamla_rms_norm_implementation(const megamla_rms_norm_params* params, megamla_device device,
                                                           const char** name);
/* No workspace: 0 on every device. */
MEGAMLA_API megamla_status megamla_rms_norm_workspace_size(const megamla_limits* limits, megamla_device device,
                                                           int64_t* bytes);
MEGAMLA_API megamla_status megamla_rms_norm(const megamla_rms_norm_params* params, const megamla_exec* exec);

#ifdef __cplusplus
}
#endif
#endif
