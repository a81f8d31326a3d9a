// The output of a row, straight from accumulator registers: division by the sum, rotation back, and the cast into the
// output pair (or bf16 / fp32).
//
// Of a group of 32 dims a thread's 16 accumulators are those of two heads: o[4 i + 2 r + e] is dim 8 i + 2 c + e of
// head r, c = lane % 4.
#pragma once

#include "cuda/attention/output_pair.cuh"
#include "cuda/attention/rotation.cuh"
#include "cuda/prefill_attention/params.hpp"

namespace megamla::cuda::prefill {

constexpr int kGroups = 8;          // of 32 dims, in a warpgroup's accumulators
constexpr int kGroupsTogether = 4;  // in an iteration: straight code for all would be fetched anew for every row
constexpr int kRotatedGroups = format::kRopeDim / 32;

// The last two groups of the accumulators are the rotated dims.
__device__ __forceinline__ void rotate_back(float (&o)[128], const float* cos_sin, int c) {
#pragma unroll
  for (int i = 0; i < kRotatedGroups * 4; ++i) {
    const float cosine = cos_sin[i * 4 + c];
    const float sine = cos_sin[format::kRopeDim / 2 + i * 4 + c];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float* pair = o + (kGroups - kRotatedGroups) * 16 + i * 4 + r * 2;
      const format::Pair y = format::rotate_back({pair[0], pair[1]}, cosine, sine);
      pair[0] = y.x0, pair[1] = y.x1;
    }
  }
}

// Four lanes have 2 bytes each of four runs of 8 bytes, run i in codes[i]; afterwards lane c has run c.
__device__ __forceinline__ uint2 exchange_codes(const uint32_t (&codes)[4], int c) {
  const uint32_t low = codes[0] | (codes[1] << 16);
  const uint32_t high = codes[2] | (codes[3] << 16);
  const bool upper = (c & 2) != 0;
  const bool odd = (c & 1) != 0;
  // Runs 2 (c / 2) and 2 (c / 2) + 1, from lanes c and c ^ 2.
  const uint32_t own = upper ? high : low;
  const uint32_t other = __shfl_xor_sync(~0u, upper ? low : high, 2);
  // Run c from lanes c and c ^ 2, then from c ^ 1 and c ^ 3.
  const uint32_t here = __byte_perm(own, other, odd ? 0x7632 : 0x5410);
  const uint32_t there = __shfl_xor_sync(~0u, __byte_perm(own, other, odd ? 0x5410 : 0x7632), 1);
  const uint32_t first = odd ? there : here;
  const uint32_t second = odd ? here : there;
  return {__byte_perm(first, second, upper ? 0x7632 : 0x5410), __byte_perm(first, second, upper ? 0x5410 : 0x7632)};
}

// One head's part of a group, to the output pair.
__device__ __forceinline__ void store_pair(const PairPlace& place, const float (&x)[8], float factor, int c) {
  const int e = shared_exponent(x, factor);
  const float f = factor * format::inverse_power_of_two(e);
  uint32_t codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) codes[i] = e4m3x2(x[2 * i] * f, x[2 * i + 1] * f);
  const uint2 run = exchange_codes(codes, c);
  if (place.live) *reinterpret_cast<uint2*>(place.data) = factor == 0 ? uint2{0, 0} : run;
  if (place.live && c == 0) *place.scale = static_cast<uint8_t>(e + 127);
}

// Groups one after the other; after an iteration the accumulators move down.
__device__ __forceinline__ void store_pairs(const PrefillParams& p, PairPlace place, bool second_live, float (&o)[128],
                                            const float (&factor)[2], int c) {
#pragma unroll 1
  for (int group = 0; group < kGroups; group += kGroupsTogether) {
#pragma unroll
    for (int k = 0; k < kGroupsTogether; ++k) {
      // The second head is 8 on: in the next output group.
      const PairPlace places[2] = {
          place, {place.data + p.out_head_stride, place.scale + 4 * p.scale_group_stride, second_live}};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float x[8];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          x[2 * i] = o[k * 16 + i * 4 + r * 2];
          x[2 * i + 1] = o[k * 16 + i * 4 + r * 2 + 1];
        }
        store_pair(places[r], x, factor[r], c);
      }
      to_next_group(p, place);
    }
#pragma unroll
    for (int i = 0; i < 128 - 16 * kGroupsTogether; ++i) o[i] = o[i + 16 * kGroupsTogether];
  }
}

// Elements of bf16 or fp32, two at a time; `to`: the head's, from the thread's first dim on.
template <class Two>
__device__ __forceinline__ void store_plain(Two* to, const float (&o)[128], int r, float factor) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const float low = factor == 0 ? 0 : o[i * 4 + r * 2] * factor;
    const float high = factor == 0 ? 0 : o[i * 4 + r * 2 + 1] * factor;
    if constexpr (sizeof(Two) == 4) {
      to[i * 4] = pack_bf16(low, high);
    } else {
      to[i * 4] = {low, high};
    }
  }
}

// The accumulators' groups of 32 dims begin at `group`; the thread's heads are `head` and `head + 8`.
__device__ __forceinline__ void store_row(const PrefillParams& p, int token, int head, int group, float (&o)[128],
                                          const float (&factor)[2], int c) {
  if (p.output == MEGAMLA_OUTPUT_FP8_PAIR) {
    store_pairs(p, pair_place(p, token, head, group, c), head + 8 < p.live_heads, o, factor, c);
    return;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (head + r * 8 >= p.live_heads) return;
    const int64_t first = token * p.out_token_stride + (head + r * 8) * p.out_head_stride + group * 32 + c * 2;
    if (p.output == MEGAMLA_OUTPUT_BF16) {
      store_plain(reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p.out) + first), o, r, factor[r]);
    } else {
      store_plain(reinterpret_cast<float2*>(static_cast<float*>(p.out) + first), o, r, factor[r]);
    }
  }
}

}  // namespace megamla::cuda::prefill
