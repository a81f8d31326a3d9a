// Weights and inputs on their way from memory to bf16 operands of the tensor cores.
//
// Of a chunk of 64 columns lane t of four takes columns 16t .. 16t+15 of its rows: 16 codes in one load, and one scale.
// Step j of four of the chunk multiplies columns 16t + 4j .. 16t + 4j+3 of every t: they are k = 2t, 2t+1, 2t+8, 2t+9.
#pragma once

#include <cstdint>

#include "cuda/block_scaled_linear/linear_args.hpp"
#include "cuda/block_scaled_linear/mma.cuh"
#include "cuda/block_scaled_linear/tile_shape.hpp"
#include "cuda/record_decode.cuh"
#include "cuda/vector_access.cuh"
#include "format/chunked.hpp"

namespace megamla::cuda::linear {

// e4m3 codes to bf16: put where bf16 has sign, exponent and mantissa they are the value times 2^-120. One factor takes
// that back and applies the scale; exact, as a bf16 has more bits than a code. NaN codes, and scales beyond 2^7, whose
// factor leaves bf16, are rare: their products are mended.
constexpr uint32_t kLargestScale = 134;  // 2^(134 - 127 + 120) is the largest power of two of bf16

__device__ inline uint32_t widening_factor(uint32_t scale_byte) {
  return bf16x2_both((min(scale_byte, kLargestScale) + 120) << 7);
}

// Codes 2k and 2k+1 of a word, k = 0, 1, in the upper bytes of two halves.
__device__ inline uint32_t upper_bytes(uint32_t codes, int k) {
  return __byte_perm(codes, 0, k == 0 ? 0x1404 : 0x3424);
}
__device__ inline uint32_t widen_pair(uint32_t codes, int k, uint32_t factor) {
  const uint32_t upper = upper_bytes(codes, k);
  return bf16x2_multiply((upper & 0x80008000U) | ((upper >> 4) & 0x07f007f0U), factor);
}
__device__ inline uint32_t mend_pair(uint32_t product, uint32_t codes, int k, uint32_t scale_byte) {
  const uint32_t rest = max(scale_byte, kLargestScale) - kLargestScale;  // of the exponent
  const uint32_t factor = bf16x2_both(scale_byte == 0xff ? 0x7fc0U : (rest + 127) << 7);
  const uint32_t nan = ((upper_bytes(codes, k) & 0x7f007f00U) + 0x01000100U) & 0x80008000U;
  return bf16x2_multiply(product, factor) | (nan - (nan >> 9));  // 0x8000 -> 0x7fc0
}

// 16 columns of a weight row. `load` asks for them, or for zeros where there is no such row or column.
struct Fp8Run {
  static constexpr int kBytes = 1;
  uint32_t codes[4];
  uint32_t scale;

  __device__ void load(const uint8_t* from, const uint8_t* scale_from, bool there) {
    const uint4 quad = there ? load_once(from) : uint4{};
    codes[0] = quad.x;
    codes[1] = quad.y;
    codes[2] = quad.z;
    codes[3] = quad.w;
    scale = there ? __ldg(scale_from) : 127;
  }
  __device__ bool is_rare() const {
    bool rare = scale > kLargestScale;
#pragma unroll
    for (const uint32_t word : codes) rare |= has_e4m3_nan(word);
    return rare;
  }
  // Columns 4j + 2k and 4j + 2k+1.
  __device__ uint32_t widened(int j, int k) const { return widen_pair(codes[j], k, widening_factor(scale)); }
  __device__ uint32_t mended(uint32_t pair, int j, int k) const { return mend_pair(pair, codes[j], k, scale); }
};

struct Bf16Run {
  static constexpr int kBytes = 2;
  uint32_t pairs[8];

  __device__ void load(const uint8_t* from, const uint8_t*, bool there) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 quad = there ? load_once(from + 16 * i) : uint4{};
      pairs[4 * i] = quad.x;
      pairs[4 * i + 1] = quad.y;
      pairs[4 * i + 2] = quad.z;
      pairs[4 * i + 3] = quad.w;
    }
  }
  __device__ static bool is_rare() { return false; }
  __device__ uint32_t widened(int j, int k) const { return pairs[2 * j + k]; }
  __device__ static uint32_t mended(uint32_t pair, int, int) { return pair; }
};

// 8 columns of a token, the unit in which x goes to shared memory; zeros where there is no such token or column.
template <bool kFp8>
struct XUnit;

template <>
struct XUnit<false> {
  static constexpr int kBytes = 2;
  uint32_t pairs[4];

  __device__ void load(const uint8_t* from, bool aligned, const uint8_t*, bool there) {
#pragma unroll
    for (uint32_t& pair : pairs) pair = 0;
    if (there) load_run<16>(reinterpret_cast<const uint16_t*>(from), aligned, pairs);
  }
  __device__ uint4 widened() const { return {pairs[0], pairs[1], pairs[2], pairs[3]}; }
};

template <>
struct XUnit<true> {
  static constexpr int kBytes = 1;
  uint32_t codes[2];
  uint32_t scale;

  __device__ void load(const uint8_t* from, bool aligned, const uint8_t* scale_from, bool there) {
    codes[0] = codes[1] = 0;
    scale = 127;
    if (!there) return;
    scale = __ldg(scale_from);
    if (aligned) {
      const uint2 both = __ldg(reinterpret_cast<const uint2*>(from));
      codes[0] = both.x;
      codes[1] = both.y;
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) codes[i / 4] |= static_cast<uint32_t>(__ldg(from + i)) << (8 * (i % 4));
  }
  __device__ uint4 widened() const {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = widen_pair(codes[i / 2], i % 2, widening_factor(scale));
    if (scale > kLargestScale || has_e4m3_nan(codes[0]) || has_e4m3_nan(codes[1])) {
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = mend_pair(pairs[i], codes[i / 2], i % 2, scale);
    }
    return {pairs[0], pairs[1], pairs[2], pairs[3]};
  }
};

// Bytes from the first scale of x to that of a token, and to that of a column: in both layouts they add up.
__device__ inline int64_t x_scale_of_token(const LinearArgs& a, int64_t token, int64_t group) {
  if (a.x_scale_packed) return 4 * (token * a.x_scale_token + group * a.x_scale_group);
  return format::f8_128x4_index(a.in / 32, token, 0);
}
__device__ inline int64_t x_scale_of_column(const LinearArgs& a, int column) {
  if (!a.x_scale_packed) return format::f8_128x4_index(a.in / 32, 0, column / 32);
  const format::PackedScale at = format::packed_scale(column / 32);
  return 4 * at.word * a.x_scale_word + at.shift / 8;  // little endian
}

// Where x lies in shared memory: per chunk and tile of 8 tokens the operands of steps 0, 1 and those of steps 2, 3,
// each as 32 lanes of 16 bytes. The second half swaps fours of lanes, so that the stores of a lane's two halves do not
// meet in one bank.
template <int kTokenTiles>
__device__ inline int x_place(int chunk, int tile, int half, int lane) {
  return ((chunk * kTokenTiles + tile) * 2 + half) * 32 + (lane ^ (4 * half));
}

}  // namespace megamla::cuda::linear
