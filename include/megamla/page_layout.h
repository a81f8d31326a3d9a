/* Which layout do the pages of a cache have? Planar and interleaved pages have the same sizes and no mark, so every op
 * takes the layout as an argument; bytes read in the wrong one give finite nonsense. This tells the two apart on pages
 * that hold real rows: an encoder's scales fit its codes, bytes read as something else do not. Contract section 3.1. */
#ifndef MEGAMLA_PAGE_LAYOUT_H
#define MEGAMLA_PAGE_LAYOUT_H

#include "megamla/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* *planar, *interleaved: share, 0 to 1, of the scale groups that an encoder can have written if the pages are read so
 * (rows whose bytes are all 0x00 or all 0xff were never written and do not count). *likely: the megamla_page_layout
 * that fits, or -1: the bytes do not tell (nothing written, pages of one record, other bytes). cache: fp8_528 or
 * nvfp4_288 in host memory; its `layout` does not matter. slots: [num_slots] slots that hold rows; NULL with 0: every
 * slot. INVALID_ARGUMENT for a slot that the cache does not have. */
MEGAMLA_API megamla_status megamla_page_layout_scores(const megamla_kv_cache* cache, const int64_t* slots,
                                                      int64_t num_slots, double* planar, double* interleaved,
                                                      int32_t* likely);

#ifdef __cplusplus
}
#endif
#endif
