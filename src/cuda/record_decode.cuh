// Records to bf16, 8 dims a lane, so that a warp's stores are 512 bytes in a row. Chunk c is dims 8c .. 8c+7. Every
// finite value equals that of format::decode_row; a NaN may have other bits than on the CPU.
#pragma once

#include <cstdint>

#include "cuda/bf16x2.cuh"
#include "format/kv_record.hpp"

namespace megamla::cuda {

constexpr int kChunkDims = 8;
constexpr int kChunks = format::kHeadDim / kChunkDims;

// Codes 2k and 2k+1 of four e4m3 codes -> bf16x2. Sign, exponent and mantissa go where bf16 has them, which is the
// value times 2^(7 - 127), subnormals included. NaN codes are the caller's.
__device__ inline uint32_t e4m3x2_to_bf16x2(uint32_t codes, int k) {
  constexpr uint32_t kRebias = 0x7b807b80U;  // 2^120
  const uint32_t high_bytes = __byte_perm(codes, 0, k == 0 ? 0x1404 : 0x3424);
  return bf16x2_multiply((high_bytes & 0x80008000U) | ((high_bytes >> 4) & 0x07f007f0U), kRebias);
}
__device__ inline bool has_e4m3_nan(uint32_t codes) {
  return (((codes & 0x7f7f7f7fU) + 0x01010101U) & 0x80808080U) != 0;
}

// Byte k of eight e2m1 codes -> bf16x2, as above (times 2^(1 - 127)).
__device__ inline uint32_t e2m1x2_to_bf16x2(uint32_t codes, int k) {
  constexpr uint32_t kRebias = 0x7e807e80U;  // 2^126
  const uint32_t byte = codes >> (8 * k);
  const uint32_t halves = (byte & 0xfU) | ((byte & 0xf0U) << 12);
  return bf16x2_multiply(((halves & 0x00080008U) << 12) | ((halves & 0x00070007U) << 6), kRebias);
}

// A ue8m0 scale as bf16 bits.
__device__ inline uint32_t ue8m0_to_bf16_bits(uint32_t byte) {
  return byte == 0xffU ? 0x7fc0U : byte == 0 ? 0x0040U : byte << 7;
}

// The rare chunk that holds a NaN.
static __device__ __noinline__ uint4 decode_nan_chunk(uint2 codes, float scale) {
  uint32_t out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t pair = (i < 2 ? codes.x : codes.y) >> (16 * (i % 2));
    const uint32_t low = format::to_bf16(format::e4m3_to_float(static_cast<uint8_t>(pair)) * scale).bits;
    const uint32_t high = format::to_bf16(format::e4m3_to_float(static_cast<uint8_t>(pair >> 8)) * scale).bits;
    out[i] = low | (high << 16);
  }
  return {out[0], out[1], out[2], out[3]};
}

// Eight e4m3 codes times a scale, exact or rounded once where bf16 has no more bits.
__device__ inline uint4 decode_e4m3_chunk(uint2 codes, uint32_t scale_byte) {
  if (has_e4m3_nan(codes.x) || has_e4m3_nan(codes.y))
    return decode_nan_chunk(codes, format::ue8m0_to_float(static_cast<uint8_t>(scale_byte)));
  const uint32_t scale = bf16x2_both(ue8m0_to_bf16_bits(scale_byte));
  return {bf16x2_multiply(e4m3x2_to_bf16x2(codes.x, 0), scale), bf16x2_multiply(e4m3x2_to_bf16x2(codes.x, 1), scale),
          bf16x2_multiply(e4m3x2_to_bf16x2(codes.y, 0), scale), bf16x2_multiply(e4m3x2_to_bf16x2(codes.y, 1), scale)};
}

// The bytes of one chunk of a record. `load` and `decode` are apart, so that a warp has many rows in flight.
template <class Record>
struct RawChunk;

template <>
struct RawChunk<format::Fp8_528> {
  uint2 codes;
  uint32_t scale;

  __device__ void load(const uint8_t* data, const uint8_t* scales, int chunk) {
    codes = __ldg(reinterpret_cast<const uint2*>(data) + chunk);
    scale = __ldg(scales + chunk * kChunkDims / format::Fp8_528::kScaleGroup);
  }
  __device__ uint4 decode(int) const { return decode_e4m3_chunk(codes, scale); }
};

template <>
struct RawChunk<format::Nvfp4_288> {
  uint32_t codes;
  uint32_t scale;

  __device__ void load(const uint8_t* data, const uint8_t* scales, int chunk) {
    codes = __ldg(reinterpret_cast<const uint32_t*>(data) + chunk);
    scale = __ldg(scales + chunk * kChunkDims / format::Nvfp4_288::kScaleGroup);
  }
  __device__ uint4 decode(int) const {
    const uint32_t factor = bf16x2_both(format::to_bf16(format::e4m3_to_float(static_cast<uint8_t>(scale))).bits);
    return {bf16x2_multiply(e2m1x2_to_bf16x2(codes, 0), factor), bf16x2_multiply(e2m1x2_to_bf16x2(codes, 1), factor),
            bf16x2_multiply(e2m1x2_to_bf16x2(codes, 2), factor), bf16x2_multiply(e2m1x2_to_bf16x2(codes, 3), factor)};
  }
};

template <>
struct RawChunk<format::Fp8_584> {
  static constexpr int kCodeChunks = format::kNopeDim / kChunkDims;
  uint4 bytes;  // of e4m3 chunks the first half
  uint32_t scale;

  __device__ void load(const uint8_t* data, const uint8_t* scales, int chunk) {
    if (chunk < kCodeChunks) {
      const uint2 codes = __ldg(reinterpret_cast<const uint2*>(data) + chunk);
      bytes = {codes.x, codes.y, 0, 0};
      scale = __ldg(scales + chunk * kChunkDims / format::Fp8_584::kScaleGroup);
    } else {
      bytes = __ldg(reinterpret_cast<const uint4*>(data + format::kNopeDim) + (chunk - kCodeChunks));
      scale = 0;
    }
  }
  __device__ uint4 decode(int chunk) const {
    return chunk < kCodeChunks ? decode_e4m3_chunk({bytes.x, bytes.y}, scale) : bytes;
  }
};

}  // namespace megamla::cuda
