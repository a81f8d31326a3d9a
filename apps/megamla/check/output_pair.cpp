#include "check/output_pair.hpp"

#include <algorithm>

#include "format/chunked.hpp"
#include "megamla/megamla.hpp"

namespace megamla::check {
namespace {

constexpr int64_t kGroupDims = 4096;
constexpr int64_t kGroupWords = 32;

}  // namespace

megamla_tensor scale_view(const megamla_tensor& words, int64_t tokens) {
  const int64_t a = words.shape[2];
  return api::with_strides(
      api::tensor(words.data, {tokens, words.shape[0], kGroupWords}, MEGAMLA_I32, words.cuda_device),
      {1, kGroupWords * a, a});
}

OutputPair make_output_pair(app::Arena& arena, int64_t tokens, int64_t groups, uint8_t fill_byte, int32_t fill_word) {
  const megamla_tensor words = arena.tensor(MEGAMLA_I32, {groups, kGroupWords, format::round_up(tokens, 4)});
  std::fill_n(data<int32_t>(words), count_of(words), fill_word);
  return {arena.tensor(MEGAMLA_F8_E4M3, {tokens, groups, kGroupDims}, fill_byte), scale_view(words, tokens)};
}

void require_untouched(Verdict& verdict, const std::string& rule, const OutputPair& pair, int64_t begin, int64_t end,
                       int64_t live_groups, uint8_t fill_byte, int32_t fill_word) {
  const auto inside = [&](int64_t token, int64_t group) {
    return token >= begin && token < end && group < live_groups;
  };
  verdict.require(rule, true, "");
  const int64_t tokens = pair.data.shape[0];
  const int64_t groups = pair.data.shape[1];
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t g = 0; g < groups; ++g) {
      if (inside(t, g)) continue;
      const uint8_t* bytes = data<const uint8_t>(pair.data) + (t * groups + g) * kGroupDims;
      verdict.require(rule, std::all_of(bytes, bytes + kGroupDims, [&](uint8_t b) { return b == fill_byte; }),
                      [&] { return fmt::format("data of token {} group {} was written", t, g); });
    }
  }
  const int64_t a = pair.scale.stride[2];
  for (int64_t i = 0; i < groups * kGroupWords * a; ++i) {
    if (inside(i % a, i / (kGroupWords * a))) continue;
    verdict.require(rule, data<const int32_t>(pair.scale)[i] == fill_word, [&] {
      return fmt::format("scale word of column {} group {} was written", i % a, i / (kGroupWords * a));
    });
  }
}

}  // namespace megamla::check
