// Q K^T of a step over a warp's dims. Keys are the rows of the product, heads its columns, so that 8 heads fill an
// instruction. A key's codes become f16 in the registers that multiply them:
//   e4m3: the hardware's conversion; the group's power of two multiplies the fp32 sum of its products (any ue8m0).
//   e2m1: sign and the other three bits go to where an e4m3 code has them, which is the value times 2^-6; then the
//         conversion and a multiplication by the group's e4m3 scale, exact in f16. What was widened is left in shared
//         memory for the values.
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
constexpr int kNibbleShift = 6;

// Scale byte i of a word as a float, 2^(byte - 127); 0 counts as 0 and 255 as infinity (see softmax.cuh).
__device__ __forceinline__ float ue8m0_to_float(uint32_t bytes, int i) {
  return __uint_as_float(__byte_perm(bytes, 0, i << 12 | 0x444) >> 1);
}

// Widened e2m1 keys: a row of f16 for each key; every 16 dims of a row are two pieces, even dims and odd dims. Those of
// dims 16 t are at block i, half row h, and there at 4 of the lane's parity, 2 u, 1 odd; swizzled by the key and by the
// high half of lane c, which decides which 16 dims those are: t = (c (pieces of a lane) + i) 2 + u.
template <int kEights>
struct Wide {
  static constexpr int kPitch = 2 * kWarpDims<kEights>;
  static constexpr int kLanePieces = 4 / kEights;
  // Where lane (g, c) writes; exclusive or of u << 5 and odd << 4, plus i << 8.
  __device__ __forceinline__ static uint32_t written(const Lane& me) {
    return me.g * kPitch + ((me.c >> 1) << 7) + ((((me.c & 1) << 2) ^ me.g ^ (me.c & 2)) << 4);
  }
  // Where ldmatrix finds a lane's row: matrices are even and odd dims of keys 0 .. 7, then of keys 8 .. 15.
  __device__ __forceinline__ static uint32_t read(int lane) {
    const int key = lane % 8 + lane / 16 * 8;
    return key * kPitch + (((key & 7) ^ (lane / 8 & 1)) << 4);
  }
  // To 16 dims t of that: an exclusive or, and a distance.
  static constexpr uint32_t other_bits(int t) {
    const int c = t / (2 * kLanePieces);
    return static_cast<uint32_t>(((c & 1) << 2) ^ ((t & 1) << 1) ^ (c & 2)) << 4;
  }
  static constexpr uint32_t distance(int t) {
    const int c = t / (2 * kLanePieces);
    return static_cast<uint32_t>((t / 2 % kLanePieces) << 8 | (c >> 1) << 7);
  }
};

template <class First, class Second, int kEights>
struct Scores {
  using A = Arena<First, Second, kEights>;
  using Logits = float[kEights][4];
  static constexpr int kGroups = kWarpDims<kEights> / 32;
  const Lane& me;
  uint32_t query;  // of shared memory

  __device__ __forceinline__ void add(Logits& acc, const ptx::FragmentA& first, const ptx::FragmentA& second,
                                      uint32_t at, bool bf16 = false) const {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const uint4 q = ptx::load_shared(at + e * (format::kHeadDim / 8 * 128));
      if (bf16) {
        ptx::mma_bf16(acc[e], first, q.x, q.y);
        ptx::mma_bf16(acc[e], second, q.z, q.w);
      } else {
        ptx::mma_f16(acc[e], first, q.x, q.y);
        ptx::mma_f16(acc[e], second, q.z, q.w);
      }
    }
  }

  __device__ __forceinline__ void run(format::Nvfp4_288, uint32_t raw, uint32_t wide, Logits& acc) const {
    using R = Raw<format::Nvfp4_288, kEights>;
    using W = Wide<kEights>;
    const uint32_t row = raw + R::row(me.g);
    const uint32_t scales = raw + R::kScales + me.g * R::kScalePitch + me.c * (2 * R::kLanePieces);
    const uint32_t to = wide + W::written(me);
    // Of the lane's eights of dims, by its pieces of 32.
    const uint32_t q = query + (me.half * 32 + me.c * (4 * R::kLanePieces)) * 128 + ((me.g ^ (me.c << 1)) << 4);
#pragma unroll 2
    for (int i = 0; i < R::kLanePieces; ++i) {
      uint4 codes[2];
      uint32_t scale[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        codes[r] = ptx::load_shared((row ^ R::read(me.c, i)) + r * 8 * R::kPitch);
        scale[r] = ptx::low_e4m3_to_f16(ptx::load_shared_u16(scales + i * 2 + r * 8 * R::kScalePitch));
      }
#pragma unroll
      for (int u = 0; u < 2; ++u) {  // 16 dims, a scale
        uint32_t even[2][4];
        uint32_t odd[2][4];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint32_t s = u == 0 ? ptx::both_f16<0>(scale[r]) : ptx::both_f16<1>(scale[r]);
#pragma unroll
          for (int w = 0; w < 2; ++w) {
            const uint32_t word = u == 0 ? (w == 0 ? codes[r].x : codes[r].y) : (w == 0 ? codes[r].z : codes[r].w);
            const uint32_t e = even_e2m1_to_e4m3(word);
            const uint32_t o = odd_e2m1_to_e4m3(word);
            even[r][2 * w] = ptx::multiply_f16x2(ptx::low_e4m3_to_f16(e), s);
            even[r][2 * w + 1] = ptx::multiply_f16x2(ptx::high_e4m3_to_f16(e), s);
            odd[r][2 * w] = ptx::multiply_f16x2(ptx::low_e4m3_to_f16(o), s);
            odd[r][2 * w + 1] = ptx::multiply_f16x2(ptx::high_e4m3_to_f16(o), s);
          }
          const uint32_t at = (to ^ (u << 5)) + (i << 8) + r * 8 * W::kPitch;
          ptx::store_shared(at, uint4{even[r][0], even[r][1], even[r][2], even[r][3]});
          ptx::store_shared(at ^ 16, uint4{odd[r][0], odd[r][1], odd[r][2], odd[r][3]});
        }
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          const ptx::FragmentA first = {even[0][2 * w], even[1][2 * w], odd[0][2 * w], odd[1][2 * w]};
          const ptx::FragmentA second = {even[0][2 * w + 1], even[1][2 * w + 1], odd[0][2 * w + 1], odd[1][2 * w + 1]};
          const int eight = 2 * u + w;
          add(acc, first, second, (q ^ (eight << 5)) + (i * 4 + eight) * 128);
        }
      }
    }
  }

  // Eight dims of keys g and g + 8 as fragments in the order of q.
  __device__ __forceinline__ static void widen(uint2 low, uint2 high, ptx::FragmentA& first, ptx::FragmentA& second) {
    if (A::kNibbles) {
      low = {__byte_perm(low.x, 0, 0x3120), __byte_perm(low.y, 0, 0x3120)};
      high = {__byte_perm(high.x, 0, 0x3120), __byte_perm(high.y, 0, 0x3120)};
    }
    first[0] = ptx::low_e4m3_to_f16(low.x), first[1] = ptx::low_e4m3_to_f16(high.x);
    first[2] = ptx::high_e4m3_to_f16(low.x), first[3] = ptx::high_e4m3_to_f16(high.x);
    second[0] = ptx::low_e4m3_to_f16(low.y), second[1] = ptx::low_e4m3_to_f16(high.y);
    second[2] = ptx::high_e4m3_to_f16(low.y), second[3] = ptx::high_e4m3_to_f16(high.y);
  }
  __device__ __forceinline__ static void add_scaled(Logits& acc, const Logits& part, const float (&scale)[2]) {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int k = 0; k < 4; ++k) acc[e][k] = fmaf(part[e][k], scale[k / 2], acc[e][k]);
    }
  }

  __device__ __forceinline__ void run(format::Fp8_528, uint32_t raw, uint32_t, Logits& acc) const {
    using R = Raw<format::Fp8_528, kEights>;
    const uint32_t row = raw + R::place(me.g, me.c / 2) + me.c % 2 * 8;
    const uint32_t scales = raw + R::kScales + me.g * R::kScalePitch + me.half * kGroups;
    const uint32_t q = query + (me.half * 32 + me.c) * 128 + ((me.g ^ (me.c << 1)) << 4);
#pragma unroll 1
    for (int four = 0; four < kGroups / 4; ++four) {
      const uint32_t bytes[2] = {ptx::load_shared_1(scales + four * 4),
                                 ptx::load_shared_1(scales + four * 4 + 8 * R::kScalePitch)};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t at = (row ^ (i << 5)) + four * 128;
        ptx::FragmentA first, second;
        widen(ptx::load_shared_2(at), ptx::load_shared_2(at + 8 * R::kPitch), first, second);
        Logits part = {};
        // See query_swizzle.
        const int own = !A::kNibbles ? 0 : kEights == 1 ? four : four * 2 + i / 2;
        add(part, first, second, (q ^ (own << 5)) + (four * 4 + i) * 512);
        const float scale[2] = {ue8m0_to_float(bytes[0], i), ue8m0_to_float(bytes[1], i)};
        add_scaled(acc, part, scale);
      }
    }
  }

  __device__ __forceinline__ void run(format::Fp8_584, uint32_t raw, uint32_t, Logits& acc) const {
    using R = Raw<format::Fp8_584, kEights>;
    constexpr int kPlain = 448 / 64;
    const uint32_t row = raw + R::place(me.g, me.c);
    const uint32_t scales = raw + R::kScales + me.g * R::kScalePitch;
    const uint32_t q = query + 2 * me.c * 128 + ((me.g ^ (me.c << 1)) << 4);
    const int begin = me.half * (kWarpDims<kEights> / 64);
    const int end = min(begin + kWarpDims<kEights> / 64, kPlain);
#pragma unroll 1
    for (int group = begin; group < end; ++group) {
      const int i = group - begin;
      const uint32_t at = (row ^ ((i & 1) << 6)) + (i >> 1) * 128;
      const uint4 low = ptx::load_shared(at);
      const uint4 high = ptx::load_shared(at + 8 * R::kPitch);
      const float scale[2] = {ue8m0_to_float(ptx::load_shared_u8(scales + group), 0),
                              ue8m0_to_float(ptx::load_shared_u8(scales + group + 8 * R::kScalePitch), 0)};
      Logits part = {};
      ptx::FragmentA first, second;
      widen({low.x, low.y}, {high.x, high.y}, first, second);
      add(part, first, second, q + group * 8 * 128);
      widen({low.z, low.w}, {high.z, high.w}, first, second);
      add(part, first, second, q + (group * 8 + 1) * 128);
      add_scaled(acc, part, scale);
    }
    if (end != kPlain) return;
      // The rotated dims, bf16: pieces 2c and 2c + 1 after those.
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t at = raw + R::place(me.g, (kPlain - begin) * 4 + 2 * me.c + j);
      const uint4 low = ptx::load_shared(at);
      const uint4 high = ptx::load_shared(at + 8 * R::kPitch);
      add(acc, {low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}, q + (kPlain * 8 + j) * 128, true);
    }
  }
};

}  // namespace megamla::cuda::few_heads
