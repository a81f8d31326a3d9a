// The output of a row, straight from accumulator registers: division by the sum, rotation back, and the cast into the
// output pair (or bf16 / fp32).
//
// Of a group of 32 dims a thread's 16 accumulators are those of two heads: o[4 i + 2 r + e] is dim 8 i + 2 c + e of
// head r, c = lane % 4.
#pragma once

#include "cuda/attention/output_pair.cuh"
#include "cuda/attention/rotation.cuh"
#include "cuda/prefill_attention/params.hpp"
#include "cuda/ptx/sync.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace megamla::cuda::prefill {

constexpr int kGroups = 8;          // of 32 dims, in a warpgroup's accumulators
constexpr int kGroupsTogether = 4;  // on their way through shared memory
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

// Where a warp's 16 heads x 32 dims of codes lie on their way out, 32 bytes a head. The four lanes of a head have 2
// bytes each of four runs of 8: stmatrix puts runs 2 h and 2 h + 1 of a head into one row of 16 bytes, 2 bytes of
// either in turn, and lane l takes the row of head l / 2, h = l % 2. Rows of heads 4 on are swapped, against bank
// conflicts.
constexpr int kCodeBytes = 16 * 32;

struct CodePlace {
  uint32_t put;   // the lane's row of stmatrix: matrix lane / 8 has heads lane / 16 * 8 on, h = lane / 8 % 2
  uint32_t take;  // the lane's 16 bytes
  __device__ __forceinline__ CodePlace(uint32_t codes, int lane)
      : put(codes + (lane / 16 * 8 + lane % 8) * 32 + ((lane / 8 ^ lane / 4) & 1) * 16),
        take(codes + lane / 2 * 32 + ((lane ^ lane / 8) & 1) * 16) {}
};

// Of four groups from kGroup on and head r: the factors that make values of codes, for all; the scale of the c-th
// group.
template <int kGroup>
__device__ __forceinline__ uint8_t find_factors(const float (&o)[128], int r, float factor, int c,
                                                float (&factors)[4]) {
  float largest[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    largest[k] = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) largest[k] = fmaxf(largest[k], fabsf(o[(kGroup + k) * 16 + i / 2 * 4 + r * 2 + i % 2]));
  }
  // The four lanes of a head hand each other two groups, then one: each is left with its own.
  const bool upper = (c & 2) != 0;
  const bool odd = (c & 1) != 0;
  const float first = fmaxf(upper ? largest[2] : largest[0], __shfl_xor_sync(~0u, upper ? largest[0] : largest[2], 2));
  const float second = fmaxf(upper ? largest[3] : largest[1], __shfl_xor_sync(~0u, upper ? largest[1] : largest[3], 2));
  const float own = fmaxf(odd ? second : first, __shfl_xor_sync(~0u, odd ? first : second, 1));
  const int e = format::output_group_exponent(own * factor);
  const float f = factor * __int_as_float((127 - e) << 23);  // e is at most 120
#pragma unroll
  for (int k = 0; k < 4; ++k) factors[k] = __shfl_sync(~0u, f, k, 4);
  return static_cast<uint8_t>(e + 127);
}

// A group's codes to `put`.
template <int kGroup>
__device__ __forceinline__ void put_codes(const float (&o)[128], float first, float second, uint32_t put) {
  const float f[2] = {first, second};
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* x = o + kGroup * 16 + i % 2 * 8 + i / 2 * 2;
    words[i] = e4m3x4(x[0] * f[i / 2], x[1] * f[i / 2], x[4] * f[i / 2], x[5] * f[i / 2]);
  }
  ptx::store_matrices(put, words);
}

__device__ __forceinline__ uint4 take_codes(uint32_t take) {
  const uint4 v = ptx::load_shared(take);
  return {__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.z, v.w, 0x5410), __byte_perm(v.x, v.y, 0x7632),
          __byte_perm(v.z, v.w, 0x7632)};
}

// Where a thread's part of the output pair goes.
struct RowPlace {
  uint8_t* scale;  // of the c-th group and the first head
  uint8_t* data;   // 16 bytes of head lane / 2 of the warp
  bool scale_live[2];
  bool data_live;
};

// Four groups. `codes`: the warp's places for them.
template <int kGroup>
__device__ __forceinline__ void store_four(const PrefillParams& p, const RowPlace& at, const CodePlace& codes,
                                           const float (&o)[128], const float (&factor)[2], int c) {
  float f[2][4];
  uint8_t scales[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) scales[r] = find_factors<kGroup>(o, r, factor[r], c, f[r]);
  put_codes<kGroup>(o, f[0][0], f[1][0], codes.put);
  put_codes<kGroup + 1>(o, f[0][1], f[1][1], codes.put + kCodeBytes);
  put_codes<kGroup + 2>(o, f[0][2], f[1][2], codes.put + 2 * kCodeBytes);
  put_codes<kGroup + 3>(o, f[0][3], f[1][3], codes.put + 3 * kCodeBytes);
  // The second head is 8 on: in the next output group.
  if (at.scale_live[0]) at.scale[0] = scales[0];
  if (at.scale_live[1]) at.scale[4 * p.scale_group_stride] = scales[1];
  __syncwarp();
#pragma unroll
  for (int k = 0; k < kGroupsTogether; ++k) {
    const uint4 v = take_codes(codes.take + k * kCodeBytes);
    if (at.data_live) *reinterpret_cast<uint4*>(at.data + format::o_chunked_index(0, (kGroup + k) * 32)) = v;
  }
  __syncwarp();
}

// `codes`: the warp's kGroupsTogether places.
__device__ __forceinline__ void store_pairs(const PrefillParams& p, int token, int head, int group,
                                            const float (&o)[128], const float (&factor)[2], int c, uint32_t codes) {
  static_assert(kGroupsTogether == 4 && kGroups == 8);
  const int lane = ptx::lane_id();
  const CodePlace code_place(codes, lane);
  const PairPlace first = pair_place(p, token, head, group, 0);
  const int code_head = head - lane / 4 + lane / 16 * 8;
  const int64_t group_scale = format::packed_scale(format::o_chunk(0, 32)).word * 4 * p.scale_word_stride;
  RowPlace at{first.scale + c * group_scale,
              pair_place(p, token, code_head, group, 0).data + lane % 16 * 16,
              {first.live, head + 8 < p.live_heads},
              code_head < p.live_heads};
  store_four<0>(p, at, code_place, o, factor, c);
  at.scale += kGroupsTogether * group_scale;
  store_four<kGroupsTogether>(p, at, code_place, o, factor, c);
}

// Elements of bf16 or fp32, two at a time; `to`: the head's, from the thread's first dim on.
template <class Two>
__device__ __forceinline__ void store_plain(Two* to, const float (&o)[128], int r, float factor) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const float low = factor == 0 ? 0 : o[i * 4 + r * 2] * factor;
    const float high = factor == 0 ? 0 : o[i * 4 + r * 2 + 1] * factor;
    if constexpr (sizeof(Two) == 4) {
      to[i * 4] = bf16x2_round(low, high);
    } else {
      to[i * 4] = {low, high};
    }
  }
}

// The accumulators' groups of 32 dims begin at `group`; the thread's heads are `head` and `head + 8`. `codes`: room for
// kGroupsTogether groups of the warp.
__device__ __forceinline__ void store_row(const PrefillParams& p, int token, int head, int group, float (&o)[128],
                                          const float (&factor)[2], int c, uint32_t codes) {
  if (p.output == MEGAMLA_OUTPUT_FP8_PAIR) {
    // Products with 0 may be -0, which is no code of 0.
    if (factor[0] == 0 || factor[1] == 0) {
#pragma unroll
      for (int i = 0; i < 128; ++i) o[i] = factor[i / 2 % 2] == 0 ? 0 : o[i];
      ptx::pin(o);  // a branch, not a select each
    }
    store_pairs(p, token, head, group, o, factor, c, codes);
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
