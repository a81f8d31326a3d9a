// The attention output pair as the harness makes and reads it (contract section 7).
#pragma once

#include "check/case.hpp"

namespace megamla::check {

struct OutputPair {
  megamla_tensor data;   // F8_E4M3 [tokens, groups, 4096]
  megamla_tensor scale;  // I32 [tokens, groups, 32], strides (1, 32 * A, A)
};

// A = `tokens` rounded up to 4; every byte is `fill_byte`, every scale word, pad columns included, `fill_word`.
OutputPair make_output_pair(app::Arena& arena, int64_t tokens, int64_t groups, uint8_t fill_byte, int32_t fill_word);

// A packed scale tensor as stored, I32 [groups, 32, A], as the view [tokens, groups, 32] that ops take.
megamla_tensor scale_view(const megamla_tensor& words, int64_t tokens);

// Rule `rule`: every byte and word outside tokens begin .. end-1 of the allocation still holds the filling. Of the
// tokens inside, groups from `live_groups` on count as outside.
void require_untouched(Verdict& verdict, const std::string& rule, const OutputPair& pair, int64_t begin, int64_t end,
                       int64_t live_groups, uint8_t fill_byte, int32_t fill_word);

}  // namespace megamla::check
