/* block_scaled_linear: y[t, g, :] = W[g] x[t, g, :], the projections of the layer: wq_a|wkv, wq_b, the compressor's,
 * grouped wo_a, wo_b. Contract sections 11 and 12. Products are exact in bf16 x bf16 -> fp32 arithmetic: e4m3 times a
 * power-of-two scale is a bf16 value. */
#ifndef MEGAMLA_BLOCK_SCALED_LINEAR_H
#define MEGAMLA_BLOCK_SCALED_LINEAR_H

#include "megamla/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum megamla_linear_input {
  MEGAMLA_LINEAR_IN_BF16 = 0,     /* x BF16 [T, G, in], features contiguous */
  MEGAMLA_LINEAR_IN_FP8_PAIR = 1, /* x F8_E4M3 [T, G, in], x_scale I32 [T, G, in/128] with strides (1, (in/128)*A, A):
                                     the attention output pair */
  MEGAMLA_LINEAR_IN_MXFP8 = 2     /* x F8_E4M3 [T, in] (G = 1), x_scale F8_E8M0 flat in the F8_128x4 layout */
} megamla_linear_input;

typedef enum megamla_linear_weight {
  MEGAMLA_LINEAR_WEIGHT_BF16 = 0,     /* BF16 [G, out, in], no scale */
  MEGAMLA_LINEAR_WEIGHT_BLOCK_32 = 1, /* F8_E4M3 [G, out, in], scale F8_E8M0 [G, out/32, in/32] */
  MEGAMLA_LINEAR_WEIGHT_ROW_32 = 2 /* F8_E4M3 [G, out, in], scale F8_E8M0 [G, out, in/32]: one per row and 32 columns */
} megamla_linear_weight;

typedef enum megamla_linear_output {
  MEGAMLA_LINEAR_OUT_BF16 = 0, /* y BF16 [T, G, out] */
  MEGAMLA_LINEAR_OUT_F32 = 1,  /* y F32 [T, G, out] */
  MEGAMLA_LINEAR_OUT_MXFP8 = 2 /* y F8_E4M3 [T, G*out], y_scale F8_E8M0 flat F8_128x4 over the G*out columns; each value
                                  rounded to bf16 first */
} megamla_linear_output;

typedef struct megamla_block_scaled_linear_params {
  size_t struct_size;
  int32_t input;               /* megamla_linear_input */
  int32_t weight_kind;         /* megamla_linear_weight */
  int32_t output;              /* megamla_linear_output */
  int32_t batch_invariant;     /* not 0: a row's bits do not depend on the other rows of the call */
  megamla_tensor x;            /* a G of 1 may be left out: [T, in]; token and group strides free */
  megamla_tensor x_scale;      /* see megamla_linear_input; absent for BF16 */
  megamla_tensor weight;       /* contiguous; a G of 1 may be left out: [out, in]. `in` is a multiple of 32 (128 for
                                  FP8_PAIR); for BLOCK_32 `out` too */
  megamla_tensor weight_scale; /* contiguous; absent for BF16 */
  megamla_tensor y;            /* token and group strides free (OUT_MXFP8: contiguous), features contiguous */
  megamla_tensor y_scale; /* OUT_MXFP8: F8_E8M0 [round_up(T, 128) * round_up(G*out/32, 4)]; G*out % 128 == 0. Padding
                             bytes are written as 0 */
} megamla_block_scaled_linear_params;

MEGAMLA_API void megamla_block_scaled_linear_init(megamla_block_scaled_linear_params* params);
MEGAMLA_API megamla_status megamla_block_scaled_linear_supports(const megamla_block_scaled_linear_params* params,
                                                                megamla_device device);
MEGAMLA_API megamla_status megamla_block_scaled_linear_implementation(const megamla_block_scaled_linear_params* params,
                                                                      megamla_device device, const char** name);
/* Reads limits tokens, groups, in_features, out_features, num_threads. */
MEGAMLA_API megamla_status megamla_block_scaled_linear_workspace_size(const megamla_limits* limits,
                                                                      megamla_device device, int64_t* bytes);
MEGAMLA_API megamla_status megamla_block_scaled_linear(const megamla_block_scaled_linear_params* params,
                                                       const megamla_exec* exec);

#ifdef __cplusplus
}
#endif
#endif
