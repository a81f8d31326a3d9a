/* Communicator: sums over tensor-parallel ranks, one GPU each, through NCCL. Contract section 11.
 *
 * The library does not link NCCL: libnccl.so.2 is opened when a communicator is first asked for. The environment
 * variable MEGAMLA_NCCL names another file. Sums are put on the caller's stream and can be captured in a graph.
 */
#ifndef MEGAMLA_COMMUNICATOR_H
#define MEGAMLA_COMMUNICATOR_H

#include "megamla/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct megamla_communicator megamla_communicator;

#define MEGAMLA_COMMUNICATOR_ID_BYTES 128

/* MEGAMLA_OK, or UNSUPPORTED with what is missing: a build with GPU kernels, or the library. */
MEGAMLA_API megamla_status megamla_communicator_supported(void);
/* Fills `id` (MEGAMLA_COMMUNICATOR_ID_BYTES) with the name of a new group. One rank makes it; the caller hands it to
 * the others. */
MEGAMLA_API megamla_status megamla_communicator_make_id(void* id);
/* Joins the group as rank `rank` of `size` with the GPU `cuda_device`. Returns once all ranks have called it: in one
 * process each rank needs a thread of its own. */
MEGAMLA_API megamla_status megamla_communicator_create(const void* id, int64_t size, int64_t rank, int32_t cuda_device,
                                                       megamla_communicator** communicator);
/* Only after everything that uses it has run. */
MEGAMLA_API void megamla_communicator_destroy(megamla_communicator* communicator);

/* x := sum of the ranks' x, in place. BF16 or F32, contiguous, memory of the communicator's GPU; same shape on every
 * rank. Every rank calls it, in the same order. */
MEGAMLA_API megamla_status megamla_all_reduce(megamla_communicator* communicator, const megamla_tensor* x,
                                              const megamla_exec* exec);
/* y [T / size, n] := rows rank * T / size .. of the sum of the ranks' x [T, n]. T must be a multiple of the size; y may
 * not overlap x. */
MEGAMLA_API megamla_status megamla_reduce_scatter(megamla_communicator* communicator, const megamla_tensor* x,
                                                  const megamla_tensor* y, const megamla_exec* exec);

#ifdef __cplusplus
}
#endif
#endif
