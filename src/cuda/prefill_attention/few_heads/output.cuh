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

// The next block comes to the front, the first one to the back: straight code for all blocks would be fetched anew for
// every row.
__device__ __forceinline__ void turn(Accumulators& o) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float first = o[0][i];
#pragma unroll
    for (int b = 0; b + 1 < kMyBlocks; ++b) o[b][i] = o[b + 1][i];
    o[kMyBlocks - 1][i] = first;
  }
}

// The largest |o| of each block and head in the warp's 16 dims, to shared memory.
__device__ __forceinline__ void find_largest(Shared& shared, const Part& part, Accumulators& o) {
#pragma unroll 1
  for (int b = 0; b < kMyBlocks; ++b) {
#pragma unroll
    for (int j = 0; j < kThreadHeads; ++j) {
      float x = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (accumulator_head(i) == j) x = fmaxf(x, fabsf(o[0][i]));
      }
#pragma unroll
      for (int other = 4; other < 32; other *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, other));
      if (part.lane < 4) shared.largest[part.warpgroup][b][part.warp][head_of(j, part.lane)] = x;
    }
    turn(o);
  }
}

// Codes to shared memory, scales to the output pair.
__device__ __forceinline__ void cast(const PrefillParams& p, Shared& shared, const Part& part, int token,
                                     const float (&factor)[kThreadHeads], Accumulators& o) {
  const bool first_warp = part.lane < 4 && part.warp % 2 == 0;  // of a group of 32 dims
  const int head = head_of(0, part.lane);
  uint8_t* scale = pair_place(p, token, head, part.dim(0, 0) / 32, 0).scale;
  uint8_t* codes_at = shared.codes[0] + format::o_chunked_index(head, part.dim(0, 0));
#pragma unroll 1
  for (int b = 0; b < kMyBlocks; ++b) {
    const auto& largest = shared.largest[part.warpgroup][b];
#pragma unroll
    for (int j = 0; j < kThreadHeads; ++j) {
      const int k = head_of(j, part.lane);
      const float both = fmaxf(largest[part.warp][k], largest[part.warp ^ 1][k]);
      const int e = format::output_group_exponent(both * factor[j]);
      const float f = factor[j] * format::inverse_power_of_two(e);
      // Sums i and i + 2 are 8 dims apart.
      const int i = j / 2 * 4 + j % 2;
      const uint32_t codes = factor[j] == 0 ? 0 : e4m3x2(o[0][i] * f, o[0][i + 2] * f);
      uint8_t* to = codes_at + j / 2 * format::kGroupWidth + format::o_chunked_index(j % 2, 0);
      to[0] = static_cast<uint8_t>(codes);
      to[8] = static_cast<uint8_t>(codes >> 8);
      if (first_warp && j / 2 * format::kGroupHeads < p.live_heads) {
        scale[j / 2 * 4 * p.scale_group_stride + j % 2] = static_cast<uint8_t>(e + 127);
      }
    }
    codes_at += format::o_chunked_index(0, 64);
    scale += format::packed_scale(format::o_chunk(0, 64)).word * 4 * p.scale_word_stride;
    turn(o);
  }
}

__device__ __forceinline__ void store_pair(const PrefillParams& p, Shared& shared, const Part& part, int token,
                                           const float (&factor)[kThreadHeads], Accumulators& o) {
  const int barrier = 2 + part.warpgroup;
  find_largest(shared, part, o);
  ptx::named_barrier<kValueThreads / 2>(barrier);
  cast(p, shared, part, token, factor, o);
  ptx::named_barrier<kValueThreads / 2>(barrier);
  // The warpgroup's half of each group of 8 heads.
  constexpr int kHalfBytes = format::kGroupWidth / 2;
  const int first = part.warpgroup * kHalfBytes + (part.warp * 32 + part.lane) * 8;
#pragma unroll 1
  for (int group = 0; group < p.live_heads / format::kGroupHeads; ++group) {
    const uint8_t* from = shared.codes[group] + first;
    uint8_t* to = static_cast<uint8_t*>(p.out) + token * p.out_token_stride + group * p.out_head_stride + first;
#pragma unroll
    for (int i = 0; i < kHalfBytes; i += kValueThreads / 2 * 8) {
      *reinterpret_cast<uint2*>(to + i) = *reinterpret_cast<const uint2*>(from + i);
    }
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
    store_plain<uint16_t>(p, part, token, factor, o, [](float x) { return static_cast<uint16_t>(pack_bf16(x, 0)); });
  } else {
    store_plain<float>(p, part, token, factor, o, [](float x) { return x; });
  }
}

}  // namespace megamla::cuda::prefill::few_heads
