// O^T += V^T P^T for a warp's 128 dims: dims are the rows of the product, heads its columns. A fragment wants two keys
// of one dim in a register, so codes of two keys are interleaved byte by byte before they are widened:
//   e2m1 to f16 as in scores.cuh, probabilities f16, sums in units of 2^-6
//   e4m3 to bf16 by a shift, times the bf16 scale, probabilities bf16, sums in units of 2^-60 (any scale up to 2^67)
#pragma once

#include "cuda/decode_attention/few_heads/scores.cuh"

namespace megamla::cuda::few_heads {

// [eight of heads][product][]: a lane's 16 dims, 2t and 2t + 1 in product t. They are neighbours; with fp8_584, whose
// last 64 dims are another kind, 8 of each half of the warp's dims.
template <int kEights>
using Sums = float[kEights][8][4];

// Two e4m3 scale bytes -> f16x2.
__device__ __forceinline__ uint32_t e4m3_scale_pair(uint32_t first, uint32_t second) {
  return ptx::low_e4m3_to_f16(first | second << 8);
}
// Two ue8m0 scale bytes -> bf16x2 of 2^(byte - 127 + 120 - 60); 120 undoes the bias of shifted codes.
__device__ __forceinline__ uint32_t ue8m0_scale_pair(uint32_t first, uint32_t second) {
  constexpr uint32_t kMost = 254 - (120 - kKeyShift);
  constexpr uint32_t kBias = (120u - kKeyShift) << 7;
  return (min(second, kMost) << 23) + (min(first, kMost) << 7) + (kBias << 16 | kBias);
}

// Code `byte` of four of key a and of four of key b -> bf16x2 of 2^-120 of their values. A byte is spread with its sign
// to 16 bits, then all but the sign moves by 4.
template <int kByte>
__device__ __forceinline__ uint32_t e4m3_pair_to_bf16(uint32_t a, uint32_t b) {
  return (ptx::permute_bytes<0xc480 + kByte * 0x1111>(a, b) << 4) & 0x87f087f0u;
}

template <int kEights>
struct Values {
  const Lane& me;
  Sums<kEights>& o;
  uint32_t tile;
  const uint32_t (*probabilities)[kEights][32][2];

  // A lane's keys of a step are 2c, 2c + 1, 2c + 8, 2c + 9: where the first two have a piece, and a step's distances.
  template <class R>
  struct Reader {
    uint32_t data[2];
    uint32_t scale;
    __device__ Reader(uint32_t tile, int c, int piece, uint32_t piece_byte, int scale_byte)
        : data{piece_address<R>(tile, 2 * c, piece) + piece_byte,
               piece_address<R>(tile, 2 * c + 1, piece) + piece_byte},
          scale(scale_address<R>(tile, 2 * c) + scale_byte) {}
    __device__ __forceinline__ uint32_t data_at(int i) const { return data[i & 1] + (i >> 1) * 8 * RawTile<R>::kPitch; }
    __device__ __forceinline__ uint32_t scale_at(int i) const {
      return scale + ((i & 1) + (i >> 1) * 8) * RawTile<R>::kScalePitch;
    }
    __device__ __forceinline__ void advance() {
      data[0] += 16 * RawTile<R>::kPitch, data[1] += 16 * RawTile<R>::kPitch, scale += 16 * RawTile<R>::kScalePitch;
    }
  };
  __device__ __forceinline__ void take_probabilities(int step, uint2 (&b)[kEights]) const {
#pragma unroll
    for (int e = 0; e < kEights; ++e) b[e] = *reinterpret_cast<const uint2*>(probabilities[step][e][me.lane]);
  }

  __device__ __forceinline__ void run(format::Nvfp4_288, int steps) const {
    Reader<format::Nvfp4_288> keys(tile, me.c, me.warp * kDimGroups + me.g / 2, me.g % 2 * 8, me.warp * 8 + me.g);
#pragma unroll 1
    for (int step = 0; step < steps; ++step, keys.advance()) {
      uint2 b[kEights];
      take_probabilities(step, b);
      uint2 codes[4];
      uint32_t bytes[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        codes[i] = ptx::load_shared_2(keys.data_at(i));
        bytes[i] = ptx::load_shared_u8(keys.scale_at(i));
      }
      const uint32_t scale[2] = {e4m3_scale_pair(bytes[0], bytes[1]), e4m3_scale_pair(bytes[2], bytes[3])};
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) {  // 4 dims
        ptx::FragmentA first, second;
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          const uint32_t x = quarter < 2 ? codes[2 * pair].x : codes[2 * pair].y;
          const uint32_t y = quarter < 2 ? codes[2 * pair + 1].x : codes[2 * pair + 1].y;
          const uint32_t both = __byte_perm(x, y, quarter % 2 == 0 ? 0x5140 : 0x7362);
          const uint32_t even = even_e2m1_to_e4m3(both);
          const uint32_t odd = odd_e2m1_to_e4m3(both);
          first[2 * pair] = ptx::multiply_f16x2(ptx::low_e4m3_to_f16(even), scale[pair]);
          first[2 * pair + 1] = ptx::multiply_f16x2(ptx::low_e4m3_to_f16(odd), scale[pair]);
          second[2 * pair] = ptx::multiply_f16x2(ptx::high_e4m3_to_f16(even), scale[pair]);
          second[2 * pair + 1] = ptx::multiply_f16x2(ptx::high_e4m3_to_f16(odd), scale[pair]);
        }
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
          ptx::mma_f16(o[e][2 * quarter], first, b[e].x, b[e].y);
          ptx::mma_f16(o[e][2 * quarter + 1], second, b[e].x, b[e].y);
        }
      }
    }
  }

  // 4 dims of 4 keys into products t and t + 1.
  __device__ __forceinline__ void add_e4m3(const uint32_t (&codes)[4], const uint32_t (&scale)[2],
                                           const uint2 (&b)[kEights], int t) const {
    ptx::FragmentA first, second;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const uint32_t x = codes[2 * pair];
      const uint32_t y = codes[2 * pair + 1];
      first[2 * pair] = bf16x2_multiply(e4m3_pair_to_bf16<0>(x, y), scale[pair]);
      first[2 * pair + 1] = bf16x2_multiply(e4m3_pair_to_bf16<1>(x, y), scale[pair]);
      second[2 * pair] = bf16x2_multiply(e4m3_pair_to_bf16<2>(x, y), scale[pair]);
      second[2 * pair + 1] = bf16x2_multiply(e4m3_pair_to_bf16<3>(x, y), scale[pair]);
    }
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      ptx::mma_bf16(o[e][t], first, b[e].x, b[e].y);
      ptx::mma_bf16(o[e][t + 1], second, b[e].x, b[e].y);
    }
  }

  __device__ __forceinline__ void run(format::Fp8_528, int steps) const {
    Reader<format::Fp8_528> keys(tile, me.c, me.warp * 8 + me.g, 0, me.warp * kDimGroups + me.g / 2);
#pragma unroll 1
    for (int step = 0; step < steps; ++step, keys.advance()) {
      uint2 b[kEights];
      take_probabilities(step, b);
      uint4 codes[4];
      uint32_t bytes[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        codes[i] = ptx::load_shared(keys.data_at(i));
        bytes[i] = ptx::load_shared_u8(keys.scale_at(i));
      }
      const uint32_t scale[2] = {ue8m0_scale_pair(bytes[0], bytes[1]), ue8m0_scale_pair(bytes[2], bytes[3])};
      add_e4m3({codes[0].x, codes[1].x, codes[2].x, codes[3].x}, scale, b, 0);
      add_e4m3({codes[0].y, codes[1].y, codes[2].y, codes[3].y}, scale, b, 2);
      add_e4m3({codes[0].z, codes[1].z, codes[2].z, codes[3].z}, scale, b, 4);
      add_e4m3({codes[0].w, codes[1].w, codes[2].w, codes[3].w}, scale, b, 6);
    }
  }

  // Half of the warp's dims, 64 of one scale group.
  template <int kHalf>
  __device__ __forceinline__ void add_group(const Reader<format::Fp8_584>& keys, const uint2 (&b)[kEights]) const {
    uint2 codes[4];
    uint32_t bytes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      codes[i] = ptx::load_shared_2(keys.data_at(i));
      bytes[i] = ptx::load_shared_u8(keys.scale_at(i));
    }
    const uint32_t scale[2] = {ue8m0_scale_pair(bytes[0], bytes[1]), ue8m0_scale_pair(bytes[2], bytes[3])};
    add_e4m3({codes[0].x, codes[1].x, codes[2].x, codes[3].x}, scale, b, kHalf * 4);
    add_e4m3({codes[0].y, codes[1].y, codes[2].y, codes[3].y}, scale, b, kHalf * 4 + 2);
  }
  // The rotated dims.
  __device__ __forceinline__ void add_bf16(const Reader<format::Fp8_584>& keys, const uint2 (&b)[kEights]) const {
    constexpr uint32_t kShift = static_cast<uint32_t>(127 - kKeyShift) << 7;
    uint4 v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = ptx::load_shared(keys.data_at(i));
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      ptx::FragmentA a;
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const uint4& v0 = v[2 * pair];
        const uint4& v1 = v[2 * pair + 1];
        const uint32_t x = t == 0 ? v0.x : t == 1 ? v0.y : t == 2 ? v0.z : v0.w;
        const uint32_t y = t == 0 ? v1.x : t == 1 ? v1.y : t == 2 ? v1.z : v1.w;
        a[2 * pair] = bf16x2_multiply(__byte_perm(x, y, 0x5410), bf16x2_both(kShift));
        a[2 * pair + 1] = bf16x2_multiply(__byte_perm(x, y, 0x7632), bf16x2_both(kShift));
      }
#pragma unroll
      for (int e = 0; e < kEights; ++e) ptx::mma_bf16(o[e][4 + t], a, b[e].x, b[e].y);
    }
  }
  __device__ __forceinline__ void run(format::Fp8_584, int steps) const {
    using Keys = Reader<format::Fp8_584>;
    const bool rope = me.warp + 1 == kWarps;
    Keys low(tile, me.c, me.warp * 8 + me.g / 2, me.g % 2 * 8, me.warp * 2);
    Keys high = rope ? Keys(tile, me.c, format::kNopeDim / 16 + me.g, 0, 0)
                     : Keys(tile, me.c, me.warp * 8 + 4 + me.g / 2, me.g % 2 * 8, me.warp * 2 + 1);
#pragma unroll 1
    for (int step = 0; step < steps; ++step, low.advance(), high.advance()) {
      uint2 b[kEights];
      take_probabilities(step, b);
      add_group<0>(low, b);
      if (rope) {
        add_bf16(high, b);
      } else {
        add_group<1>(high, b);
      }
    }
  }
};

}  // namespace megamla::cuda::few_heads
