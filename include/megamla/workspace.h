/* Workspace: one caller-owned buffer that all layers of a model share. Contract section 13.
 *
 * A step lays its views out from the head; `retained` is the tail, whose contents may survive from one layer's call to
 * the next. Before lock() the workspace may grow through the caller's function; after it, a larger request is an error
 * that names the needed and the present size.
 */
#ifndef MEGAMLA_WORKSPACE_H
#define MEGAMLA_WORKSPACE_H

#include "megamla/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct megamla_workspace megamla_workspace;

/* Returns a buffer of at least `bytes`, 256-byte aligned, in memory of the device, or NULL. The previous buffer may be
 * freed or moved by it; nothing of it is needed any more. */
typedef void* (*megamla_workspace_grow_fn)(void* context, void* previous, int64_t bytes);

/* A workspace over `buffer` (may be NULL with 0 bytes). grow may be NULL: then the buffer never grows, and a larger
 * request before lock() fails too, but is remembered by megamla_workspace_required. */
MEGAMLA_API megamla_status megamla_workspace_create(void* buffer, int64_t bytes, megamla_workspace_grow_fn grow,
                                                    void* context, megamla_workspace** workspace);
MEGAMLA_API void megamla_workspace_destroy(megamla_workspace* workspace);
/* Another buffer; retained contents count as lost. Refused after lock(). */
MEGAMLA_API megamla_status megamla_workspace_bind(megamla_workspace* workspace, void* buffer, int64_t bytes);
/* Makes sure that `bytes` are there (grows if it may). */
MEGAMLA_API megamla_status megamla_workspace_reserve(megamla_workspace* workspace, int64_t bytes);
/* The largest size asked for so far, and the present size. */
MEGAMLA_API int64_t megamla_workspace_required(const megamla_workspace* workspace);
MEGAMLA_API int64_t megamla_workspace_bytes(const megamla_workspace* workspace);
MEGAMLA_API void megamla_workspace_lock(megamla_workspace* workspace);

/* Views from the head, each rounded up to 256 bytes: pointers[i] gets bytes[i]. Any retained span that they reach into
 * is lost. */
MEGAMLA_API megamla_status megamla_workspace_head(megamla_workspace* workspace, const int64_t* bytes, int64_t count,
                                                  void** pointers);
/* The last ceil256(bytes) of the buffer. *intact = 1 only if the last retained call had the same key and size, no head
 * view has reached into the span since, and the buffer has not moved. */
MEGAMLA_API megamla_status megamla_workspace_retained(megamla_workspace* workspace, uint64_t key, int64_t bytes,
                                                      void** pointer, int32_t* intact);

#ifdef __cplusplus
}
#endif
#endif
