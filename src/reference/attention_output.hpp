// Writes one head of an attention output row in each of its kinds: contract section 7.
#pragma once

#include "core/attention_view.hpp"

namespace megamla::reference {

// o[512], already rotated back.
void write_head(const AttentionView& view, int64_t t, int64_t head, const double* o);

}  // namespace megamla::reference
