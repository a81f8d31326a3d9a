// Q K^T over a warp's 128 dims for every key of a tile. Keys are the rows of the product, heads its columns, so that 8
// heads fill an instruction. A key's codes become f16 in the registers that multiply them:
//   e4m3: the hardware's conversion; the group's power of two multiplies the fp32 sum of its products (any ue8m0).
//   e2m1: sign and the other three bits go to where an e4m3 code has them, which is the value times 2^-6; then the
//         conversion and a multiplication by the group's e4m3 scale, exact in f16.
#pragma once

#include "cuda/decode_attention/few_heads/query.cuh"

namespace megamla::cuda::few_heads {

// The even (low) and odd nibbles of eight e2m1 codes as e4m3 codes of 2^-6 of their values.
__device__ __forceinline__ uint32_t even_e2m1_to_e4m3(uint32_t codes) {
  return ((codes << 4) & 0x80808080u) | ((codes << 2) & 0x1c1c1c1cu);
}
__device__ __forceinline__ uint32_t odd_e2m1_to_e4m3(uint32_t codes) {
  return (codes & 0x80808080u) | ((codes >> 2) & 0x1c1c1c1cu);
}
constexpr float kNibbleUnshift = 0x1p6F;

// Scale byte i of a word as a float, 2^(byte - 127); 0 counts as 0 and 255 as infinity (see softmax.cuh).
__device__ __forceinline__ float ue8m0_to_float(uint32_t bytes, int i) {
  return __uint_as_float(__byte_perm(bytes, 0, i << 12 | 0x444) >> 1);
}

template <int kEights>
struct Scores {
  const Lane& me;
  const Query<kEights>& q;
  uint32_t tile;
  float (*partial)[kEights][16][8];  // of this warp

  __device__ __forceinline__ void store(int step, const float (&acc)[kEights][4]) const {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      *reinterpret_cast<float2*>(&partial[step][e][me.g][2 * me.c]) = {acc[e][0], acc[e][1]};
      *reinterpret_cast<float2*>(&partial[step][e][me.g + 8][2 * me.c]) = {acc[e][2], acc[e][3]};
    }
  }

  __device__ __forceinline__ void run(format::Nvfp4_288, int steps) const {
    using R = format::Nvfp4_288;
    uint32_t at[kDimGroups];
#pragma unroll
    for (int i = 0; i < kDimGroups; ++i) {
      at[i] = piece_address<R>(tile, me.g, me.warp * kDimGroups + i) + me.c * 4;
    }
    uint32_t scale_at = scale_address<R>(tile, me.g) + me.warp * 8;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      // Of the warp's 8 scales those of this lane's 4 groups of 16 dims.
      uint32_t scale[2][2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint2 bytes = ptx::load_shared_2(scale_at + r * 8 * RawTile<R>::kScalePitch);
        const uint32_t mine = __byte_perm(bytes.x, bytes.y, me.c < 2 ? 0x6420 : 0x7531);
        scale[r][0] = ptx::low_e4m3_to_f16(mine);
        scale[r][1] = ptx::high_e4m3_to_f16(mine);
      }
      float acc[kEights][4] = {};
#pragma unroll
      for (int i = 0; i < kDimGroups; ++i) {
        ptx::FragmentA first, second;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint32_t codes = ptx::load_shared_1(at[i] + r * 8 * RawTile<R>::kPitch);
          const uint32_t s = i % 2 == 0 ? ptx::both_f16<0>(scale[r][i / 2]) : ptx::both_f16<1>(scale[r][i / 2]);
          const uint32_t even = even_e2m1_to_e4m3(codes);
          const uint32_t odd = odd_e2m1_to_e4m3(codes);
          first[r] = ptx::multiply_f16x2(ptx::low_e4m3_to_f16(even), s);
          first[2 + r] = ptx::multiply_f16x2(ptx::low_e4m3_to_f16(odd), s);
          second[r] = ptx::multiply_f16x2(ptx::high_e4m3_to_f16(even), s);
          second[2 + r] = ptx::multiply_f16x2(ptx::high_e4m3_to_f16(odd), s);
        }
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
          ptx::mma_f16(acc[e], first, q[e][i][0], q[e][i][1]);
          ptx::mma_f16(acc[e], second, q[e][i][2], q[e][i][3]);
        }
        at[i] += 16 * RawTile<R>::kPitch;
      }
      scale_at += 16 * RawTile<R>::kScalePitch;
      store(step, acc);
    }
  }

  // Where a lane's first key has group i of 32 dims of e4m3 codes.
  template <class R>
  __device__ __forceinline__ uint32_t e4m3_address(int i) const {
    return piece_address<R>(tile, me.g, (me.warp * kDimGroups + i) * 2 + me.c / 2) + me.c % 2 * 8;
  }
  // Adds that group.
  template <class R, bool kNibbles>
  __device__ __forceinline__ void add_e4m3(float (&acc)[kEights][4], uint32_t at, int i,
                                           const float (&scale)[2]) const {
    uint2 codes[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      codes[r] = ptx::load_shared_2(at + r * 8 * RawTile<R>::kPitch);
      if (kNibbles) {  // the order of q
        codes[r] = {__byte_perm(codes[r].x, 0, 0x3120), __byte_perm(codes[r].y, 0, 0x3120)};
      }
    }
    const ptx::FragmentA first = {ptx::low_e4m3_to_f16(codes[0].x), ptx::low_e4m3_to_f16(codes[1].x),
                                  ptx::high_e4m3_to_f16(codes[0].x), ptx::high_e4m3_to_f16(codes[1].x)};
    const ptx::FragmentA second = {ptx::low_e4m3_to_f16(codes[0].y), ptx::low_e4m3_to_f16(codes[1].y),
                                   ptx::high_e4m3_to_f16(codes[0].y), ptx::high_e4m3_to_f16(codes[1].y)};
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      float part[4] = {};
      ptx::mma_f16(part, first, q[e][i][0], q[e][i][1]);
      ptx::mma_f16(part, second, q[e][i][2], q[e][i][3]);
#pragma unroll
      for (int k = 0; k < 4; ++k) acc[e][k] = fmaf(part[k], scale[k / 2], acc[e][k]);
    }
  }

  template <bool kNibbles>
  __device__ __forceinline__ void run_528(int steps) const {
    using R = format::Fp8_528;
    uint32_t at[kDimGroups];
#pragma unroll
    for (int i = 0; i < kDimGroups; ++i) at[i] = e4m3_address<R>(i);
    uint32_t scale_at = scale_address<R>(tile, me.g) + me.warp * kDimGroups;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      uint32_t bytes[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) bytes[r] = ptx::load_shared_1(scale_at + r * 8 * RawTile<R>::kScalePitch);
      float acc[kEights][4] = {};
#pragma unroll
      for (int i = 0; i < kDimGroups; ++i) {
        const float scale[2] = {ue8m0_to_float(bytes[0], i), ue8m0_to_float(bytes[1], i)};
        add_e4m3<R, kNibbles>(acc, at[i], i, scale);
        at[i] += 16 * RawTile<R>::kPitch;
      }
      scale_at += 16 * RawTile<R>::kScalePitch;
      store(step, acc);
    }
  }

  // The last warp's second half are the rotated dims, bf16.
  __device__ __forceinline__ void run(format::Fp8_584, int steps) const {
    using R = format::Fp8_584;
    const bool rope = me.warp + 1 == kWarps;
    uint32_t at[kDimGroups];
#pragma unroll
    for (int i = 0; i < kDimGroups; ++i) {
      at[i] = rope && i >= kDimGroups / 2
                  ? piece_address<R>(tile, me.g, format::kNopeDim / 16 + (i - kDimGroups / 2) * 4 + me.c)
                  : e4m3_address<R>(i);
    }
    uint32_t scale_at = scale_address<R>(tile, me.g) + me.warp * 2;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      uint32_t bytes[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) bytes[r] = ptx::load_shared_u16(scale_at + r * 8 * RawTile<R>::kScalePitch);
      float acc[kEights][4] = {};
#pragma unroll
      for (int i = 0; i < kDimGroups; ++i) {
        if (i < kDimGroups / 2 || !rope) {
          const float scale[2] = {ue8m0_to_float(bytes[0], i / 2), ue8m0_to_float(bytes[1], i / 2)};
          add_e4m3<R, false>(acc, at[i], i, scale);
        } else {
          const uint4 low = ptx::load_shared(at[i]);
          const uint4 high = ptx::load_shared(at[i] + 8 * RawTile<R>::kPitch);
          const ptx::FragmentA first = {low.x, high.x, low.y, high.y};
          const ptx::FragmentA second = {low.z, high.z, low.w, high.w};
#pragma unroll
          for (int e = 0; e < kEights; ++e) {
            ptx::mma_bf16(acc[e], first, q[e][i][0], q[e][i][1]);
            ptx::mma_bf16(acc[e], second, q[e][i][2], q[e][i][3]);
          }
        }
        at[i] += 16 * RawTile<R>::kPitch;
      }
      scale_at += 16 * RawTile<R>::kScalePitch;
      store(step, acc);
    }
  }
};

}  // namespace megamla::cuda::few_heads
