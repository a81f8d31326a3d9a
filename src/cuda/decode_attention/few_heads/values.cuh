// O^T += V^T P^T for a warp's dims: dims are the rows of the product, heads its columns. ldmatrix transposes while it
// reads, so that a register has two keys of one dim:
//   e2m1: the f16 fragments that scores left; sums in units of 2^6
//   e4m3: raw bytes, two dims at a time, then converted to f16 without their scales; those multiply the probabilities,
//         relative to `unit`, a power of two that follows the largest scale so far; sums in units of it
#pragma once

#include "cuda/decode_attention/few_heads/scores.cuh"
#include "cuda/f16x2.cuh"

namespace megamla::cuda::few_heads {

// [eight of heads][16 dims][]: of a lane even dims 2g (0, 1) and odd dims 2g + 1 (2, 3) of 16, heads 2c and 2c + 1; of
// bf16 dims g and 8 + g. From its first e2m1 key on, and at the end of a row that may have some, fragment by fragment
// of what scores left: even and odd dims 2 (g % 2) of the four dims of lane g / 2.
template <int kEights>
constexpr int kTiles = kWarpDims<kEights> / 16;
template <int kEights>
using Sums = float[kEights][kTiles<kEights>][4];

constexpr int kNoUnit = -256;
// Scales up to 2^kUnitSlack times the unit are let be: probabilities are below 2^8, and f16 ends at 2^16.
constexpr int kUnitSlack = 7;
constexpr int kUnitBelow = 5;  // a new unit lies so far below the largest scale
constexpr int kLeastUnit = -112;

__device__ __forceinline__ uint32_t f16x2_to_bf16x2(uint32_t v) {
  float low, high;
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}\n"
      : "=f"(low), "=f"(high)
      : "r"(v));
  return bf16x2_round(low, high);
}

__device__ __forceinline__ void store_sums(uint32_t to, const float (&v)[4]) {
  ptx::store_shared(to,
                    uint4{__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3])});
}

template <class First, class Second, int kEights>
struct Values {
  using A = Arena<First, Second, kEights>;
  static constexpr int kTiles = few_heads::kTiles<kEights>;
  const Lane& me;
  Sums<kEights>& o;
  int& unit;

  __device__ __forceinline__ void change_unit(int to) const {
    if (unit != kNoUnit) {
      const float factor = power_of_two(unit - to);
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
#pragma unroll
          for (int i = 0; i < 4; ++i) o[e][t][i] *= factor;
        }
      }
    }
    unit = to;
  }

  // Where sums of 16 dims in turn lie among those by fragments: a lane's own place, and the distance to dims 16 t.
  __device__ __forceinline__ static uint32_t own_fragment(const Lane& me) {
    return (me.g >> 1) * kFragmentBytes + ((me.g & 1) * 4 + me.c) * 16;
  }
  static constexpr uint32_t fragment_distance(int t) {
    constexpr int kLanePieces = kWarpDims<kEights> / 128;
    const int piece = t / 2;
    return (piece % kLanePieces * 8 + t % 2 * 4) * kFragmentBytes + piece / kLanePieces * 128;
  }
  // `memory`: of the widened keys.
  __device__ __forceinline__ void turn_to_fragments(uint32_t memory) const {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      __syncwarp();
#pragma unroll
      for (int t = 0; t < kTiles; ++t) store_sums(memory + own_fragment(me) + fragment_distance(t), o[e][t]);
      __syncwarp();
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const float4 v = ptx::load_shared_floats(memory + t * kFragmentBytes + me.lane * 16);
        o[e][t][0] = v.x, o[e][t][1] = v.y, o[e][t][2] = v.z, o[e][t][3] = v.w;
      }
    }
    __syncwarp();
  }

  // The other order of matrices: dims are rows now.
  __device__ __forceinline__ uint32_t fragment_row(uint32_t wide) const {
    return wide + (me.lane % 8 + me.lane / 16 * 8 + (me.lane / 8 & 1) * 16) * 16;
  }
  // b: probabilities of keys 2c, 2c + 1 and 2c + 8, 2c + 9.
  __device__ __forceinline__ void run(format::Nvfp4_288, uint32_t, uint32_t wide, const KeptFragments<kEights>& kept,
                                      const uint2 (&b)[kEights]) const {
    const uint32_t row = fragment_row(wide);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      ptx::FragmentA a;
      const int keep = t - kTiles + kKeptFragments<kEights>;
      if (keep >= 0) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = kept[keep][i];
      } else {
        ptx::load_matrices_transposed(row + t * kFragmentBytes, a);
      }
#pragma unroll
      for (int e = 0; e < kEights; ++e) ptx::mma_f16(o[e][t], a, b[e].x, b[e].y);
    }
  }

  // The unit that the step's scales ask for. Lanes have 8 bytes each.
  __device__ __forceinline__ void follow_scales(uint2 bytes) const {
    constexpr uint32_t kEven = 0x00ff00ffu;
    // Bytes are subnormal numbers of f16, too.
    const uint32_t most =
        f16x2_max(f16x2_max(bytes.x & kEven, bytes.x >> 8 & kEven), f16x2_max(bytes.y & kEven, bytes.y >> 8 & kEven));
    const int scale = static_cast<int>(__reduce_max_sync(~0u, max(most & 0xffffu, most >> 16))) - 127;
    if (scale > unit + kUnitSlack) change_unit(max(scale - kUnitBelow, kLeastUnit));
  }
  // Two scale bytes -> f16x2, relative to the unit; 0 for what is far below.
  __device__ __forceinline__ uint32_t relative(uint32_t bytes) const {
    const uint32_t least = static_cast<uint32_t>(unit + 127 - 15) * 0x10001u;
    return f16x2_max(bytes, least) * 1024u - least * 1024u;
  }
  __device__ __forceinline__ void scale_probabilities(const uint2 (&b)[kEights], uint32_t low, uint32_t high,
                                                      uint2 (&scaled)[kEights]) const {
    low = relative(low), high = relative(high);
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      scaled[e] = {f16x2_multiply(b[e].x, low), f16x2_multiply(b[e].y, high)};
    }
  }

  // Pieces 2 pair and 2 pair + 1, of 16 dims each.
  template <class R>
  __device__ __forceinline__ void add_e4m3(uint32_t row, int pair, const uint2 (&scaled)[kEights]) const {
    uint32_t v[4];
    ptx::load_matrices_transposed((row ^ ((pair & 3) << 5)) + (pair >> 2) * 128, v);
#pragma unroll
    for (int piece = 0; piece < 2; ++piece) {
      const uint32_t low = __byte_perm(v[piece], 0, 0x3120);
      const uint32_t high = __byte_perm(v[2 + piece], 0, 0x3120);
      const ptx::FragmentA a = {ptx::low_e4m3_to_f16(low), ptx::high_e4m3_to_f16(low), ptx::low_e4m3_to_f16(high),
                                ptx::high_e4m3_to_f16(high)};
#pragma unroll
      for (int e = 0; e < kEights; ++e) ptx::mma_f16(o[e][2 * pair + piece], a, scaled[e].x, scaled[e].y);
    }
  }
  // Matrices are two pieces of keys 0 .. 7, then of keys 8 .. 15.
  template <class R>
  __device__ __forceinline__ uint32_t matrix_row(uint32_t raw) const {
    return raw + R::place(me.lane % 8 + me.lane / 16 * 8, me.lane / 8 & 1);
  }

  __device__ __forceinline__ void run(format::Fp8_528, uint32_t raw, uint32_t, const KeptFragments<kEights>&,
                                      const uint2 (&b)[kEights]) const {
    using R = Raw<format::Fp8_528, kEights>;
    constexpr int kWords = kWarpDims<kEights> / 128;  // of a key's scales
    const uint32_t scales = raw + R::kScales;
    follow_scales(kWords == 2 ? ptx::load_shared_2(scales + me.lane % 16 * 8)
                              : uint2{ptx::load_shared_1(scales + me.lane % 16 * 4), 0});
    const uint32_t row = matrix_row<R>(raw);
    const uint32_t mine = scales + 2 * me.c * R::kScalePitch;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      uint32_t bytes[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) bytes[k] = ptx::load_shared_1(mine + w * 4 + (k % 2 + k / 2 * 8) * R::kScalePitch);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t low = __byte_perm(bytes[0], bytes[1], h == 0 ? 0x5410 : 0x7632);
        const uint32_t high = __byte_perm(bytes[2], bytes[3], h == 0 ? 0x5410 : 0x7632);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint2 scaled[kEights];
          scale_probabilities(b, low >> (8 * i) & 0x00ff00ffu, high >> (8 * i) & 0x00ff00ffu, scaled);
          add_e4m3<R>(row, w * 4 + h * 2 + i, scaled);
        }
      }
    }
  }

  __device__ __forceinline__ void run(format::Fp8_584, uint32_t raw, uint32_t, const KeptFragments<kEights>&,
                                      const uint2 (&b)[kEights]) const {
    using R = Raw<format::Fp8_584, kEights>;
    const uint32_t scales = raw + R::kScales;
    uint2 all = ptx::load_shared_2(scales + me.lane % 16 * 8);
    all.y &= 0x00ffffffu;  // the last byte is padding
    follow_scales(all);
    const uint32_t row = matrix_row<R>(raw);
    constexpr int kScales = kWarpDims<kEights> / 64;
    const uint32_t mine = scales + 2 * me.c * R::kScalePitch + me.part * kScales;
    uint32_t bytes[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t at = mine + (k % 2 + k / 2 * 8) * R::kScalePitch;
      bytes[k] = kScales == 4 ? ptx::load_shared_1(at) : ptx::load_shared_u16(at);
    }
#pragma unroll
    for (int i = 0; i < kScales; ++i) {  // 64 dims
      if (i + 1 == kScales && me.part + 1 == kCrewWarps<kEights>) {
        add_bf16<R>(row, b);
      } else {
        const uint32_t selector = i < 2 ? 0x5410 : 0x7632;
        uint2 scaled[kEights];
        scale_probabilities(b, __byte_perm(bytes[0], bytes[1], selector) >> (i % 2 * 8) & 0x00ff00ffu,
                            __byte_perm(bytes[2], bytes[3], selector) >> (i % 2 * 8) & 0x00ff00ffu, scaled);
        add_e4m3<R>(row, i * 2, scaled);
        add_e4m3<R>(row, i * 2 + 1, scaled);
      }
    }
  }
  // The rotated dims: the warp's last 64.
  template <class R>
  __device__ __forceinline__ void add_bf16(uint32_t row, const uint2 (&b)[kEights]) const {
    const uint32_t factor = __float_as_uint(power_of_two(-unit)) >> 16;
    uint2 scaled[kEights];
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      scaled[e] = {bf16x2_multiply(f16x2_to_bf16x2(b[e].x), bf16x2_both(factor)),
                   bf16x2_multiply(f16x2_to_bf16x2(b[e].y), bf16x2_both(factor))};
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int pair = (kTiles - 4) / 2 + t;  // of pieces
      ptx::FragmentA a;
      ptx::load_matrices_transposed((row ^ ((pair & 3) << 5)) + (pair >> 2) * 128, a);
#pragma unroll
      for (int e = 0; e < kEights; ++e) ptx::mma_bf16(o[e][kTiles - 4 + t], a, scaled[e].x, scaled[e].y);
    }
  }
};

}  // namespace megamla::cuda::few_heads
