#include "cpu/kv_compress.hpp"

#include <algorithm>
#include <bit>

#include "core/simd.hpp"
#include "core/threads.hpp"
#include "cpu/norm_row.hpp"
#include "cpu/rms_norm.hpp"
#include "format/chunked.hpp"
#include "plan/compress_rows.hpp"

namespace megamla::cpu {
namespace {

using plan::kPooledWidth;
using plan::kStateWidth;

// The last token of the call that each state row takes, found by hashing: the ring as it would be if the tokens were
// stored one after the other. In caller's memory, linear probing, at most half full.
class NewestTokens {
 public:
  struct Entry {
    int64_t row;  // -1: free
    int64_t token;
  };
  static int64_t size_for(int64_t tokens) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * tokens)));
  }

  NewestTokens(Entry* entries, int64_t tokens) : entries_(entries), size_(size_for(tokens)) {
    std::fill_n(entries_, size_, Entry{-1, -1});
  }
  int64_t size() const { return size_; }
  const Entry& entry(int64_t i) const { return entries_[i]; }
  int64_t find(int64_t row) const { return at(row).token; }  // -1: none so far
  void store(int64_t row, int64_t token) { at(row) = {row, token}; }

 private:
  Entry& at(int64_t row) const {
    const uint64_t mixed = static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15U;
    int64_t i = static_cast<int64_t>(mixed >> 32) & (size_ - 1);
    while (entries_[i].row != -1 && entries_[i].row != row) i = (i + 1) & (size_ - 1);
    return entries_[i];
  }

  Entry* entries_;
  int64_t size_;
};

// Where the first row of a token's group comes from.
constexpr int64_t kOpenGroup = INT64_MIN;
constexpr int64_t from_state(int64_t row) { return -1 - row; }  // its own inverse; tokens are >= 0

struct Scratch {
  NewestTokens::Entry* newest;
  int64_t* partners;  // [T]: kOpenGroup, a token of this call, or from_state(row)
};
int64_t newest_bytes(int64_t tokens) {
  return NewestTokens::size_for(tokens) * static_cast<int64_t>(sizeof(NewestTokens::Entry));
}
int64_t scratch_bytes(int64_t tokens) {
  return tokens == 0 ? 0 : newest_bytes(tokens) + format::round_up(tokens * 8, 64);
}
Scratch carve(void* workspace, int64_t tokens) {
  auto* bytes = static_cast<char*>(workspace);
  return {reinterpret_cast<NewestTokens::Entry*>(bytes), reinterpret_cast<int64_t*>(bytes + newest_bytes(tokens))};
}

// exp(x) for x <= 0, to about two units in the last place; results below 2^-125 are kept there, NaN stays NaN. No
// branch and no call, so that loops over it become vector code.
inline float exp_nonpositive(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // 9 bits: its product with an integer below 2^15 is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRoundToInteger = 12582912.0F;  // 1.5 * 2^23
  x = x < -87.0F ? -87.0F : x;
  const float shifted = x * kLog2E + kRoundToInteger;
  const float n = shifted - kRoundToInteger;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float series = 1.0F / 5040;
  series = series * r + 1.0F / 720;
  series = series * r + 1.0F / 120;
  series = series * r + 1.0F / 24;
  series = series * r + 1.0F / 6;
  series = series * r + 0.5F;
  series = series * r * r + r + 1.0F;
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRoundToInteger) + 127U;
  return series * std::bit_cast<float>(exponent << 23);
}

// Softmax over the two scores of each dim weights the two kv values.
MEGAMLA_SIMD_CLONES void pool(const float* __restrict first, const float* __restrict second, float* __restrict pooled) {
  for (int64_t d = 0; d < kPooledWidth; ++d) {
    const float difference = second[kPooledWidth + d] - first[kPooledWidth + d];
    const float smaller = exp_nonpositive(difference < 0 ? difference : -difference);
    const float larger_weight = 1 / (1 + smaller);
    const float smaller_weight = smaller * larger_weight;
    const float second_weight = difference < 0 ? smaller_weight : larger_weight;
    const float first_weight = difference < 0 ? larger_weight : smaller_weight;
    pooled[d] = first[d] * first_weight + second[d] * second_weight;
  }
}

// Every closing token's partner, as if tokens were stored one after the other; the state itself is not touched yet.
void find_partners(const megamla_kv_compress_params& p, NewestTokens& newest, int64_t* partners) {
  for (int64_t t = 0; t < p.kv_score.shape[0]; ++t) {
    const plan::StateRows rows = plan::state_rows(p, t);
    partners[t] = kOpenGroup;
    if (rows.own >= 0) newest.store(rows.own, t);
    if (rows.partner < 0) continue;
    const int64_t token = newest.find(rows.partner);
    partners[t] = token >= 0 ? token : from_state(rows.partner);
  }
}

void compress_pair(const megamla_kv_compress_params& p, int64_t t, int64_t partner) {
  const float* first =
      partner >= 0 ? &at<const float>(p.kv_score, partner, 0) : plan::state_row(p, from_state(partner));
  alignas(64) float pooled[kPooledWidth];
  pool(first, &at<const float>(p.kv_score, t, 0), pooled);
  norm_row(pooled, data<const format::Bf16>(p.weight), kPooledWidth, p.eps, &at<format::Bf16>(p.latent, t, 0));
}

Status compress_pairs(const megamla_kv_compress_params& p, const megamla_exec& exec) {
  const int64_t tokens = p.kv_score.shape[0];
  if (tokens == 0) return {};
  const Scratch scratch = carve(exec.workspace, tokens);
  NewestTokens newest(scratch.newest, tokens);
  find_partners(p, newest, scratch.partners);
  const int threads = resolve_threads(exec.num_threads);
  parallel_ranges(tokens, threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const bool closes = scratch.partners[t] != kOpenGroup;
      if (present(p.written)) at<uint8_t>(p.written, t) = closes ? 1 : 0;
      if (closes) compress_pair(p, t, scratch.partners[t]);
    }
  });
  // Only now: partners of earlier calls have been read.
  parallel_ranges(newest.size(), threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const NewestTokens::Entry& entry = newest.entry(i);
      if (entry.row < 0) continue;
      std::copy_n(&at<const float>(p.kv_score, entry.token, 0), kStateWidth, plan::state_row(p, entry.row));
    }
  });
  return {};
}

}  // namespace

int64_t kv_compress_workspace(const megamla_limits& limits) { return scratch_bytes(limits.tokens); }

Status kv_compress(const megamla_kv_compress_params& p, const megamla_exec& exec) {
  if (p.compress_ratio == 2) return compress_pairs(p, exec);
  if (present(p.written)) std::fill_n(data<uint8_t>(p.written), p.written.shape[0], uint8_t{1});
  megamla_rms_norm_params norm{};
  norm.eps = p.eps;
  norm.x = p.kv_score;
  norm.weight = p.weight;
  norm.y = p.latent;
  return rms_norm(norm, exec);
}

}  // namespace megamla::cpu
