// Attention over one list of keys per query row, in double precision: the truth for decode and prefill alike.
#pragma once

#include "core/attention_view.hpp"
#include "core/status.hpp"

namespace megamla::reference {

Status attention_rows(const AttentionView& view, const megamla_exec& exec);

}  // namespace megamla::reference
