// Q K^T of a step over a warp's dims. Keys are the rows of the product, heads its columns, so that 8 heads fill an
// instruction. A key's codes become f16 in the registers that multiply them:
//   e4m3: the hardware's conversion; the group's power of two multiplies the fp32 sum of its products (any ue8m0).
//   e2m1: sign and the other three bits go to where an e4m3 code has them, which is the value times 2^-6; then the
//         conversion and a multiplication by the group's e4m3 scale, exact in f16. What was widened is left in shared
//         memory for the values.
#pragma once

#include "cuda/decode_attention/few_heads/query.cuh"
#include "cuda/f16x2.cuh"

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

// Widened e2m1 keys are left as the products' fragments, 512 bytes each: matrices of 8 keys x 8 dims, 128 bytes each,
// of keys 0 .. 7 and 8 .. 15. Fragment 8 i + 2 w + v of a lane's piece i of 32 dims has dims 8 w + 4 v .. + 3: even
// ones in the first two matrices, odd ones in the others.
constexpr int kFragmentBytes = 512;
// The last ones stay in registers instead.
template <int kEights>
constexpr int kKeptFragments = kEights == 1 ? 6 : 4;
template <int kEights>
using KeptFragments = ptx::FragmentA[kKeptFragments<kEights>];

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

  // A lane's piece of 32 dims of keys g and g + 8, and its two scales.
  struct Piece {
    uint4 codes[2];
    uint32_t scales[2];
  };
  __device__ __forceinline__ static Piece load_piece(uint32_t row, uint32_t scales, int c, int i) {
    using R = Raw<format::Nvfp4_288, kEights>;
    Piece piece;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      piece.codes[r] = ptx::load_shared((row ^ R::read(c, i)) + r * 8 * R::kPitch);
      piece.scales[r] = ptx::load_shared_u16(scales + i * 2 + r * 8 * R::kScalePitch);
    }
    return piece;
  }

  __device__ __forceinline__ void run(format::Nvfp4_288, uint32_t raw, uint32_t wide, Logits& acc,
                                      KeptFragments<kEights>& kept) const {
    using R = Raw<format::Nvfp4_288, kEights>;
    const uint32_t row = raw + R::row(me.g);
    const uint32_t scales = raw + R::kScales + me.g * R::kScalePitch + me.c * (2 * R::kLanePieces);
    uint32_t to = wide + me.lane * 16;
    // Of the lane's eights of dims, by its pieces of 32.
    uint32_t q[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      q[w] = query + (me.part * (kWarpDims<kEights> / 8) + me.c * (4 * R::kLanePieces) + w) * 128 +
             ((me.g ^ ((me.c ^ w) << 1)) << 4);
    }
    Logits other = {};
    // The next piece is asked for before stores, which loads do not pass.
    Piece next = load_piece(row, scales, me.c, 0);
#pragma unroll
    for (int i = 0; i < R::kLanePieces; ++i) {
      const Piece piece = next;
      constexpr int kTogether = 2 / kEights;
      uint4 b[4][kEights];
      const auto load_query = [&](int w) {
#pragma unroll
        for (int e = 0; e < kEights; ++e) b[w][e] = ptx::load_shared(q[w] + e * (format::kHeadDim / 8 * 128));
        q[w] += 4 * 128;
      };
#pragma unroll
      for (int w = 0; w < kTogether; ++w) load_query(w);
      next = load_piece(row, scales, me.c, (i + 1) % R::kLanePieces);
      const uint32_t scale[2] = {ptx::low_e4m3_to_f16(piece.scales[0]), ptx::low_e4m3_to_f16(piece.scales[1])};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        ptx::FragmentA first, second;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint32_t s = w < 2 ? ptx::both_f16<0>(scale[r]) : ptx::both_f16<1>(scale[r]);
          const uint4& v = piece.codes[r];
          const uint32_t word = w == 0 ? v.x : w == 1 ? v.y : w == 2 ? v.z : v.w;
          const uint32_t even = even_e2m1_to_e4m3(word);
          const uint32_t odd = odd_e2m1_to_e4m3(word);
          first[r] = f16x2_multiply(ptx::low_e4m3_to_f16(even), s);
          first[2 + r] = f16x2_multiply(ptx::low_e4m3_to_f16(odd), s);
          second[r] = f16x2_multiply(ptx::high_e4m3_to_f16(even), s);
          second[2 + r] = f16x2_multiply(ptx::high_e4m3_to_f16(odd), s);
        }
        const int keep = (i - R::kLanePieces) * 8 + 2 * w + kKeptFragments<kEights>;
        if (keep < 0) {
          ptx::store_matrices(to + 2 * w * kFragmentBytes, first);
          ptx::store_matrices(to + (2 * w + 1) * kFragmentBytes, second);
        } else {
          // Transposed, for the values.
          kept[keep][0] = ptx::transposed(first[0]), kept[keep][1] = ptx::transposed(first[2]);
          kept[keep][2] = ptx::transposed(first[1]), kept[keep][3] = ptx::transposed(first[3]);
          kept[keep + 1][0] = ptx::transposed(second[0]), kept[keep + 1][1] = ptx::transposed(second[2]);
          kept[keep + 1][2] = ptx::transposed(second[1]), kept[keep + 1][3] = ptx::transposed(second[3]);
        }
        if (w + kTogether < 4) load_query(w + kTogether);
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
          ptx::mma_f16(acc[e], first, b[w][e].x, b[w][e].y);
          ptx::mma_f16(other[e], second, b[w][e].z, b[w][e].w);
        }
      }
      to += 8 * kFragmentBytes;
    }
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int k = 0; k < 4; ++k) acc[e][k] += other[e][k];
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

  __device__ __forceinline__ void run(format::Fp8_528, uint32_t raw, uint32_t, Logits& acc,
                                      KeptFragments<kEights>&) const {
    using R = Raw<format::Fp8_528, kEights>;
    const uint32_t row = raw + R::place(me.g, me.c / 2) + me.c % 2 * 8;
    const uint32_t scales = raw + R::kScales + me.g * R::kScalePitch;
    const uint32_t q = query + (me.part * (kWarpDims<kEights> / 8) + me.c) * 128 + ((me.g ^ (me.c << 1)) << 4);
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
        const int own = !A::kNibbles ? 0 : (four * 4 + i) * 4 / (kWarpDims<kEights> / 32);
        add(part, first, second, (q ^ (own << 5)) + (four * 4 + i) * 512);
        const float scale[2] = {ue8m0_to_float(bytes[0], i), ue8m0_to_float(bytes[1], i)};
        add_scaled(acc, part, scale);
      }
    }
  }

  __device__ __forceinline__ void run(format::Fp8_584, uint32_t raw, uint32_t, Logits& acc,
                                      KeptFragments<kEights>&) const {
    using R = Raw<format::Fp8_584, kEights>;
    constexpr int kPlain = 448 / 64;
    const uint32_t row = raw + R::place(me.g, me.c);
    const uint32_t scales = raw + R::kScales + me.g * R::kScalePitch;
    const uint32_t q = query + 2 * me.c * 128 + ((me.g ^ (me.c << 1)) << 4);
    constexpr int kWarpGroups = kWarpDims<kEights> / 64;
    const int begin = me.part * kWarpGroups;
    const bool rope = me.part + 1 == kCrewWarps<kEights>;
    const int groups = kWarpGroups - (rope ? 1 : 0);
    struct Codes {
      uint4 low, high;
    };
    const auto load = [&](int i) {
      const uint32_t at = (row ^ ((i & 1) << 6)) + (i >> 1) * 128;
      return Codes{ptx::load_shared(at), ptx::load_shared(at + 8 * R::kPitch)};
    };
    Codes next = load(0);
#pragma unroll 1
    for (int i = 0; i < groups; ++i) {
      const int group = begin + i;
      const Codes codes = next;
      const float scale[2] = {ue8m0_to_float(ptx::load_shared_u8(scales + group), 0),
                              ue8m0_to_float(ptx::load_shared_u8(scales + group + 8 * R::kScalePitch), 0)};
      next = load(i + 1);  // beyond the last: of the rotated dims, or of memory that is there
      Logits part = {};
      ptx::FragmentA first, second;
      widen({codes.low.x, codes.low.y}, {codes.high.x, codes.high.y}, first, second);
      add(part, first, second, q + group * 8 * 128);
      widen({codes.low.z, codes.low.w}, {codes.high.z, codes.high.w}, first, second);
      add(part, first, second, q + (group * 8 + 1) * 128);
      add_scaled(acc, part, scale);
    }
    if (!rope) return;
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
