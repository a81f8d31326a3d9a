/* MegaMLA: the whole C ABI. Each op has a header of its own, which states its contract; types.h states the rules that
 * all of them share. C++ callers may prefer megamla.hpp, a thin layer over the same functions. */
#ifndef MEGAMLA_MEGAMLA_H
#define MEGAMLA_MEGAMLA_H

#include "megamla/block_scaled_linear.h"
#include "megamla/communicator.h"
#include "megamla/decode_attention.h"
#include "megamla/index_ops.h"
#include "megamla/kv_compress.h"
#include "megamla/kv_gather.h"
#include "megamla/kv_insert.h"
#include "megamla/layer.h"
#include "megamla/output_cast.h"
#include "megamla/page_layout.h"
#include "megamla/permute_weights.h"
#include "megamla/plan.h"
#include "megamla/prefill_attention.h"
#include "megamla/rms_norm.h"
#include "megamla/rope_table.h"
#include "megamla/types.h"
#include "megamla/workspace.h"

#endif
