/* rope_table: cosines and sines of RoPE, plain or with YaRN as DeepSeek uses it (no mscale). Contract sections 1 and 5;
 * the formula: dim(r) = 64 ln(original / (2 pi r)) / (2 ln theta); low = max(floor(dim(beta_fast)), 0); high =
 * min(ceil(dim(beta_slow)), 63); ramp_j = clamp((j - low) / (high - low), 0, 1); inv_freq_j = theta^(-2j/64) ((1 -
 * ramp_j) + ramp_j / factor); factor 1: theta^(-2j/64). */
#ifndef MEGAMLA_ROPE_TABLE_H
#define MEGAMLA_ROPE_TABLE_H

#include "megamla/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum megamla_rope_angles {
  MEGAMLA_ROPE_EXACT = 0, /* float64 angle, cosine and sine rounded once to fp32 */
  MEGAMLA_ROPE_FP32 =
      1 /* fp32 position times fp32 inverse frequency, as engines build it: off by up to about position * 6e-8 */
} megamla_rope_angles;

typedef struct megamla_rope_table_params {
  size_t struct_size;
  double theta;                 /* > 1 */
  double factor;                /* >= 1; 1 = no scaling */
  double original_max_position; /* factor > 1 only */
  double beta_fast;
  double beta_slow;
  int32_t angles;           /* megamla_rope_angles */
  int32_t reserved;         /* 0 */
  megamla_tensor positions; /* I64 [P]; absent: 0 .. P-1 */
  megamla_tensor cos_sin;   /* out F32 [P, 64]: 32 cosines, 32 sines; row stride free */
  megamla_tensor inv_freq;  /* out F64 [32] in host memory or absent */
} megamla_rope_table_params;

MEGAMLA_API void megamla_rope_table_init(megamla_rope_table_params* params);
MEGAMLA_API megamla_status megamla_rope_table_supports(const megamla_rope_table_params* params, megamla_device device);
MEGAMLA_API megamla_status megamla_rope_table_implementation(const megamla_rope_table_params* params,
                                                             megamla_device device, const char** name);
/* No workspace: 0 on every device. */
MEGAMLA_API megamla_status megamla_rope_table_workspace_size(const megamla_limits* limits, megamla_device device,
                                                             int64_t* bytes);
MEGAMLA_API megamla_status megamla_rope_table(const megamla_rope_table_params* params, const megamla_exec* exec);

#ifdef __cplusplus
}
#endif
#endif
