/* permute_weights: between standard and chunked orders, once at load. Contract section 4. Every kind is a pure
 * permutation of elements (scales expanded from blocks where a block no longer lies together). in and out may not
 * overlap. */
#ifndef MEGAMLA_PERMUTE_WEIGHTS_H
#define MEGAMLA_PERMUTE_WEIGHTS_H

#include "megamla/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum megamla_permute_kind {
  MEGAMLA_PERMUTE_Q = 0,     /* in, out: any dtype [n, H, 512]: standard -> chunked, per row of n */
  MEGAMLA_PERMUTE_PAD_Q = 1, /* in [n, local, 512] chunked -> out [n, padded, 512] chunked: in each 16-dim chunk live
                                heads first, zeros after */
  MEGAMLA_PERMUTE_O = 2, /* in, out: any dtype [n, G, 4096]: standard (h*512 + 32c + j) -> chunked ((c*8 + h)*32 + j) */
  MEGAMLA_PERMUTE_O_CHUNKS = 3, /* in, out: any dtype [n, G, 128]: h*16 + c -> c*8 + h */
  MEGAMLA_PERMUTE_WQ_B =
      4, /* in F8_E4M3 [H*512, r] with in_scale F8_E8M0 [H*16, r/32] -> out (rows in chunked order), out_scale
            F8_E8M0 [H*512, r/32] expanded per row; out_scale_packed I32 [ceil(r/32/4), H*512] */
  MEGAMLA_PERMUTE_WO_A = 5 /* in F8_E4M3 [G*d, 4096] with in_scale F8_E8M0 [G*d/32, 128] -> out [G, d, 4096] (columns in
                              chunked order), out_scale F8_E8M0 [G, d, 128]; out_scale_packed I32 [G, 32, d] */
} megamla_permute_kind;

typedef struct megamla_permute_weights_params {
  size_t struct_size;
  int32_t kind;            /* megamla_permute_kind */
  int32_t reserved;        /* 0 */
  megamla_tensor in;       /* contiguous, as are all here */
  megamla_tensor in_scale; /* WQ_B, WO_A; else absent */
  megamla_tensor out;
  megamla_tensor out_scale;        /* WQ_B, WO_A; else absent */
  megamla_tensor out_scale_packed; /* WQ_B, WO_A, or absent: word w of a row holds its scale columns 4w .. 4w+3, 4w in
                                      the low byte, columns past the last 0; stride 1 along the rows (always a multiple
                                      of 4 of them) */
} megamla_permute_weights_params;

MEGAMLA_API void megamla_permute_weights_init(megamla_permute_weights_params* params);
MEGAMLA_API megamla_status megamla_permute_weights_supports(const megamla_permute_weights_params* params,
                                                            megamla_device device);
MEGAMLA_API megamla_status megamla_permute_weights_implementation(const megamla_permute_weights_params* params,
                                                                  megamla_device device, const char** name);
/* No workspace: 0 on every device. */
MEGAMLA_API megamla_status megamla_permute_weights_workspace_size(const megamla_limits* limits, megamla_device device,
                                                                  int64_t* bytes);
MEGAMLA_API megamla_status megamla_permute_weights(const megamla_permute_weights_params* params,
                                                   const megamla_exec* exec);

#ifdef __cplusplus
}
#endif
#endif
