// The comparison rules of attention results (docs/golden.md, contract section 16).
#pragma once

#include "check/case.hpp"

namespace megamla::check {

struct AttentionTruth {
  megamla_tensor o;            // F64 [T, H, 512], standard order
  megamla_tensor lse;          // F64 [T, H]
  megamla_tensor scale_words;  // I32 [G, 32, A]
  double scale = 1;            // largest |key value| in use, at least 1
  int64_t live_heads = 0;
  int64_t first_token = 0;  // column of token 0 in scale_words
};

// Of the output pair's data [T, G, 4096] and scale [T, G, 32].
void compare_pair(const AttentionTruth& truth, const megamla_tensor& pair, const megamla_tensor& scale,
                  Verdict& verdict);
void compare_bf16(const AttentionTruth& truth, const megamla_tensor& out, Verdict& verdict);
// lse or max_logits: infinities and NaN in the same places, else close.
void compare_lse(const AttentionTruth& truth, const megamla_tensor& lse, const std::string& rule, Verdict& verdict);

// The pair's data of one (token, head) as values, standard order; the scale byte of each 32 dims where `scale_bytes` is
// not null.
void dequantise_head(const megamla_tensor& data, const megamla_tensor& scale, int64_t token, int64_t head,
                     float* values, uint8_t* scale_bytes);

}  // namespace megamla::check
