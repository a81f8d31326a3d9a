// The output of a row, from accumulators that have dims on M: rotation back, division by the sum, and the cast, whose
// groups of 32 dims lie in two warps; codes go through shared memory, so that they are stored in runs.
#pragma once

#include "cuda/attention/output_pair.cuh"
#include "cuda/attention/rotation.cuh"
#include "cuda/prefill_attention/few_heads/shared.cuh"

namespace megamla::cuda::prefill::few_heads {

constexpr int kMyBlocks = kBlocks / 2;  // of 64 dims, of a values warpgroup
using Accumulators = float[kMyBlocks][8];

// Who a thread of the values role is.
struct Part {
  int warpgroup;  // 0, 1
  int warp;       // of the warpgroup
  int lane;
  // Of the 512 dims, that of the accumulators with half `half` in block `block`.
  __device__ __forceinline__ int dim(int block, int half) const {
    return (warpgroup * kMyBlocks + block) * 64 + warp * 16 + lane / 4 + half * 8;
  }
};

// Dims 448 .. 511 are the last block of the second warpgroup; a pair's dims are 4 lanes apart.
__device__ __forceinline__ void rotate_back(const Part& part, const float* cos_sin, float (&x)[8]) {
  const bool second = (part.lane & 4) != 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int pair = (part.dim(kMyBlocks - 1, accumulator_half(i)) - format::kNopeDim) / 2;
    const float cosine = cos_sin[pair];
    const float sine = cos_sin[format::kRopeDim / 2 + pair];
    const float other = __shfl_xor_sync(~0u, x[i], 4);
    const format::Pair y =
        format::rotate_back(second ? format::Pair{other, x[i]} : format::Pair{x[i], other}, cosine, sine);
    x[i] = second ? y.x1 : y.x0;
  }
}

// The largest |o| of each block and head in the warp's 16 dims, to shared memory.
__device__ __forceinline__ void find_largest(Shared& shared, const Part& part, const Accumulators& o) {
#pragma unroll
  for (int b = 0; b < kMyBlocks; ++b) {
    float x[kThreadHeads];
#pragma unroll
    for (int j = 0; j < kThreadHeads; ++j) {
      const int i = j / 2 * 4 + j % 2;  // sum i + 2 is of the same head
      x[j] = fmaxf(fabsf(o[b][i]), fabsf(o[b][i + 2]));
#pragma unroll
      for (int other = 4; other < 32; other *= 2) x[j] = fmaxf(x[j], __shfl_xor_sync(~0u, x[j], other));
    }
    if (part.lane < 4) {
      float* to = shared.largest[part.warpgroup][b][part.warp] + part.lane * 2;
      *reinterpret_cast<float2*>(to) = {x[0], x[1]};
      *reinterpret_cast<float2*>(to + 8) = {x[2], x[3]};
    }
  }
}

// The codes of one block, as stmatrix takes them: dims d and d + 8 of heads 2 c and 2 c + 1 in words[0], of those 8 on
// in words[1]. Scales to the output pair, at `scale` for the first head.
__device__ __forceinline__ void cast_block(const PrefillParams& p, const Shared& shared, const Part& part, int b,
                                           const float (&factor)[kThreadHeads], const float (&o)[8], uint8_t* scale,
                                           uint32_t* words) {
  float both[kThreadHeads];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto& largest = shared.largest[part.warpgroup][b];
    const int k = head_of(half * 2, part.lane);
    const float2 mine = *reinterpret_cast<const float2*>(&largest[part.warp][k]);
    const float2 others = *reinterpret_cast<const float2*>(&largest[part.warp ^ 1][k]);
    both[half * 2] = fmaxf(mine.x, others.x);
    both[half * 2 + 1] = fmaxf(mine.y, others.y);
  }
  const bool first_warp = part.lane < 4 && part.warp % 2 == 0;  // of a group of 32 dims
  float f[kThreadHeads];
#pragma unroll
  for (int j = 0; j < kThreadHeads; ++j) {
    const int e = format::output_group_exponent(both[j] * factor[j]);
    f[j] = factor[j] * __int_as_float((127 - e) << 23);  // e is at most 120
    if (first_warp && j / 2 * format::kGroupHeads < p.live_heads) {
      scale[j / 2 * 4 * p.scale_group_stride + j % 2] = static_cast<uint8_t>(e + 127);
    }
  }
  words[0] = e4m3x4(o[0] * f[0], o[2] * f[0], o[1] * f[1], o[3] * f[1]);
  words[1] = e4m3x4(o[4] * f[2], o[6] * f[2], o[5] * f[3], o[7] * f[3]);
}

// Codes to shared memory, where they lie as in the output pair but for the order within 16 dims: d, d + 8, d + 1, d + 9
// ..
__device__ __forceinline__ void cast(const PrefillParams& p, Shared& shared, const Part& part, int token,
                                     const float (&factor)[kThreadHeads], const Accumulators& o) {
  uint8_t* scale = pair_place(p, token, head_of(0, part.lane), part.dim(0, 0) / 32, 0).scale;
  const int64_t block_scale = format::packed_scale(format::o_chunk(0, 64)).word * 4 * p.scale_word_stride;
  // Lane l gives the row of head l % 16 in block l / 16 of two.
  const int first_dim = (part.warpgroup * kMyBlocks + part.lane / 16) * 64 + part.warp * 16;
  const uint32_t to = ptx::shared_address(shared.codes[part.lane / 8 % 2]) +
                      static_cast<uint32_t>(format::o_chunked_index(part.lane % 8, first_dim));
#pragma unroll
  for (int b = 0; b < kMyBlocks; b += 2) {
    uint32_t words[4];
    cast_block(p, shared, part, b, factor, o[b], scale + b * block_scale, words);
    cast_block(p, shared, part, b + 1, factor, o[b + 1], scale + (b + 1) * block_scale, words + 2);
    ptx::store_matrices_transposed(to + static_cast<uint32_t>(format::o_chunked_index(0, b * 64)), words);
  }
}

__device__ __forceinline__ void store_pair(const PrefillParams& p, Shared& shared, const Part& part, int token,
                                           const float (&factor)[kThreadHeads], Accumulators& o) {
  const int barrier = 2 + part.warpgroup;
  // Products with 0 may be -0, which is no code of 0.
  if (factor[0] == 0 || factor[1] == 0 || factor[2] == 0 || factor[3] == 0) {
#pragma unroll
    for (int b = 0; b < kMyBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 8; ++i) o[b][i] = factor[accumulator_head(i)] == 0 ? 0 : o[b][i];
      ptx::pin(o[b]);  // a branch, not a select each
    }
  }
  find_largest(shared, part, o);
  ptx::named_barrier<kValueThreads / 2>(barrier);
  cast(p, shared, part, token, factor, o);
  ptx::named_barrier<kValueThreads / 2>(barrier);
  // The warpgroup's half of each group of 8 heads, 16 dims a thread.
  constexpr int kHalfOfGroup = format::kGroupWidth / 2;
  static_assert(kHalfOfGroup == kValueThreads / 2 * 16);
  const int first = part.warpgroup * kHalfOfGroup + (part.warp * 32 + part.lane) * 16;
#pragma unroll 1
  for (int group = 0; group < p.live_heads / format::kGroupHeads; ++group) {
    const uint4 v = *reinterpret_cast<const uint4*>(shared.codes[group] + first);
    uint8_t* to = static_cast<uint8_t*>(p.out) + token * p.out_token_stride + group * p.out_head_stride + first;
    *reinterpret_cast<uint4*>(to) = {__byte_perm(v.x, v.y, 0x6420), __byte_perm(v.z, v.w, 0x6420),
                                     __byte_perm(v.x, v.y, 0x7531), __byte_perm(v.z, v.w, 0x7531)};
  }
}

template <class Element, class Convert>
__device__ __forceinline__ void store_plain(const PrefillParams& p, const Part& part, int token,
                                            const float (&factor)[kThreadHeads], const Accumulators& o,
                                            Convert&& convert) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int head = head_of(accumulator_head(i), part.lane);
    if (head >= p.live_heads) continue;
    const float f = factor[accumulator_head(i)];
    Element* to = static_cast<Element*>(p.out) + token * p.out_token_stride + head * p.out_head_stride;
#pragma unroll
    for (int b = 0; b < kMyBlocks; ++b) to[part.dim(b, accumulator_half(i))] = convert(f == 0 ? 0 : o[b][i] * f);
  }
}

// `cos_sin`, in shared memory: null where nothing is rotated.
__device__ __forceinline__ void store_row(const PrefillParams& p, Shared& shared, const Part& part, int token,
                                          const float* cos_sin, Accumulators& o) {
  if (part.warpgroup == 1 && cos_sin != nullptr) rotate_back(part, cos_sin, o[kMyBlocks - 1]);
  float factor[kThreadHeads];
#pragma unroll
  for (int j = 0; j < kThreadHeads; ++j) factor[j] = shared.factor[head_of(j, part.lane)];
  if (p.output == MEGAMLA_OUTPUT_FP8_PAIR) {
    store_pair(p, shared, part, token, factor, o);
  } else if (p.output == MEGAMLA_OUTPUT_BF16) {
    store_plain<uint16_t>(p, part, token, factor, o, [](float x) { return static_cast<uint16_t>(bf16x2_round(x, 0)); });
  } else {
    store_plain<float>(p, part, token, factor, o, [](float x) { return x; });
  }
}

}  // namespace megamla::cuda::prefill::few_heads
