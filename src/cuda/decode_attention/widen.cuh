// Codes of a record -> bf16 * 2^-60 in a swizzled key tile, a column of 16 bytes a lane at a time.
#pragma once

#include <cuda_fp8.h>

#include "cuda/bf16x2.cuh"
#include "cuda/decode_attention/tiles.cuh"

namespace megamla::cuda {

constexpr uint32_t kSigns = 0x80008000u;

// Bit 7 of some byte is set where a byte of the e4m3 codes is NaN.
__device__ __forceinline__ uint32_t nan_bits(uint32_t codes) { return (codes & 0x7f7f7f7fu) + 0x01010101u; }

// 2^(byte - 127 + 120 - 60) as two bf16, 120 being the bias between e4m3 codes in bf16's place and their values.
__device__ __forceinline__ uint32_t ue8m0_factor(uint32_t byte, bool nan) {
  const uint32_t factor = (nan || byte == 255) ? 0x7fc0u : min(byte + (120 - kKeyShift), 254u) << 7;
  return factor * 0x10001u;
}

// Byte i of `low` and of `high`, each with its sign in all bits of the byte above it.
template <int kByte>
__device__ __forceinline__ uint32_t signed_halves(uint32_t low, uint32_t high) {
  uint32_t halves;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(halves) : "r"(low), "r"(high), "n"((kByte * 0x1111 + 0x4400) | 0x8080));
  return halves;
}
template <int kByte>
__device__ __forceinline__ uint32_t widen_e4m3_pair(uint32_t low, uint32_t high, uint32_t factor) {
  return bf16x2_multiply((signed_halves<kByte>(low, high) << 4) & (kSigns | 0x07f007f0u), factor);
}
// 8 dims in two words of e4m3 -> the pairs (i, 4 + i), i = 0 .. 3.
__device__ __forceinline__ uint4 widen_e4m3(uint32_t low, uint32_t high, uint32_t factor) {
  return {widen_e4m3_pair<0>(low, high, factor), widen_e4m3_pair<1>(low, high, factor),
          widen_e4m3_pair<2>(low, high, factor), widen_e4m3_pair<3>(low, high, factor)};
}

// A nibble's sign and its other three bits go to different places: a product puts copies at both, a mask keeps one of
// each. `nibbles` has 4 bits in each half; kTimes places them.
template <uint32_t kTimes>
__device__ __forceinline__ uint32_t place_e2m1(uint32_t nibbles, uint32_t factor) {
  return bf16x2_multiply((nibbles * kTimes) & (kSigns | 0x01c001c0u), factor);
}
// 8 dims in one word of e2m1, likewise.
__device__ __forceinline__ uint4 widen_e2m1(uint32_t codes, uint32_t factor) {
  const uint32_t upper = codes >> 8;
  return {place_e2m1<0x1040>(codes & 0x000f000fu, factor), place_e2m1<0x104>(codes & 0x00f000f0u, factor),
          place_e2m1<0x1040>(upper & 0x000f000fu, factor), place_e2m1<0x104>(upper & 0x00f000f0u, factor)};
}

// 8 dims of bf16, likewise.
__device__ __forceinline__ uint4 pair_bf16(uint4 v) {
  return {__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632), __byte_perm(v.y, v.w, 0x5410),
          __byte_perm(v.y, v.w, 0x7632)};
}

// 2^(126 - 60) times two e4m3 scales, 126 being the bias between e2m1 codes in bf16's place and their values.
__device__ __forceinline__ uint32_t e4m3_factors(uint32_t codes) {
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  const float2 scales = __half22float2(__half2(halves));
  static_assert(kKeyShift == 60);
  const float second = scales.y * 0x1p66F;
  return bf16x2_round(scales.x * 0x1p66F, second);  // exact: 4 significant bits
}

// Lane l of a producer warp has, of each batch of 8 keys, key l % 8 and every fourth 16-byte piece of its record,
// beginning at part = l / 8: a column is four such pieces, 64 bytes of a record. The 8 lanes of a shared-memory phase
// then write 8 rows at one chunk, which the swizzle spreads over all banks.
//
// What a lane needs of a record's scales, the next column's lowest.
struct Scales {
  uint32_t low, high;
  template <int kBits>
  __device__ __forceinline__ uint32_t next() {
    const uint32_t v = low & ((1u << kBits) - 1);
    low = __funnelshift_r(low, high, kBits);
    high >>= kBits;
    return v;
  }
};

// A format's way through the ring: tiles in units of four columns. kExtra: a tile's last unit has one more.
template <class Record>
struct Columns {
  static constexpr int kUnits = Record::kDataBytes / 256;
  static constexpr bool kExtra = Record::kDataBytes % 256 != 0;
};
static_assert(Columns<format::Fp8_584>::kUnits == 2 && format::Fp8_584::kDataBytes == 9 * 64);

// The scales of a warp's 16 keys: 16 bytes a key, a batch after the other, 128 bytes on the next 16 of each. `from` is
// those of key lane % 16, `to` where its first 16 bytes go.
__device__ __forceinline__ void copy_scales(format::Nvfp4_288, uint32_t to, const uint8_t* from, int lane, bool valid) {
  const int half = lane / 16;
  ptx::copy_16_async(to + half * 128, from + half * 16, valid);
}
__device__ __forceinline__ void copy_scales(format::Fp8_528, uint32_t to, const uint8_t* from, int lane, bool valid) {
  if (lane < 16) ptx::copy_16_async(to, from, valid);
}
__device__ __forceinline__ void copy_scales(format::Fp8_584, uint32_t to, const uint8_t* from, int lane, bool valid) {
  if (lane < 16) ptx::copy_8_async(to, from, valid);
}

// Piece i of part p is scaled by the bytes 8 i + 2 p and 8 i + 2 p + 1.
__device__ __forceinline__ Scales take_scales(format::Nvfp4_288, uint32_t at, int key, int part) {
  const uint4 a = ptx::load_shared(at + key * 16);
  const uint4 b = ptx::load_shared(at + (8 + key) * 16);
  const uint32_t mine = part * 0x22 + 0x10;
  return {__byte_perm(__byte_perm(a.x, a.y, mine), __byte_perm(a.z, a.w, mine), 0x5410),
          __byte_perm(__byte_perm(b.x, b.y, mine), __byte_perm(b.z, b.w, mine), 0x5410)};
}
// Its group i by the byte 4 i + p.
__device__ __forceinline__ Scales take_scales(format::Fp8_528, uint32_t at, int key, int part) {
  const uint4 a = ptx::load_shared(at + key * 16);
  const uint32_t mine = part * 0x11 + 0x40;
  return {__byte_perm(__byte_perm(a.x, a.y, mine), __byte_perm(a.z, a.w, mine), 0x5410), 0};
}
// By the byte 2 i + p / 2; of the last group by byte 6.
__device__ __forceinline__ Scales take_scales(format::Fp8_584, uint32_t at, int key, int part) {
  const uint4 a = ptx::load_shared(at + key * 16);
  return {__byte_perm(a.x, a.y, part < 2 ? 0x6420u : 0x6531u), 0};
}

// Where the first of the chunks of a lane's group 0 goes, of its key's row of a tile: the part's half of block part
// / 2. Its other chunks are at this address with bits 4 and 5 changed, its next groups two blocks on.
__device__ __forceinline__ uint32_t first_chunk(uint32_t row, int key, int part) {
  return row + part / 2 * kBlockBytes + (((part % 2 * 4) ^ key) << 4);
}

// widen: a group of this lane's key; `at` is its first chunk.
__device__ __forceinline__ void widen(format::Nvfp4_288, uint4 piece, Scales& scales, uint32_t at) {
  const uint32_t factors = e4m3_factors(scales.next<16>());
  const uint32_t first = __byte_perm(factors, 0, 0x1010);
  const uint32_t second = __byte_perm(factors, 0, 0x3232);
  const uint4 w[4] = {widen_e2m1(piece.x, first), widen_e2m1(piece.y, first), widen_e2m1(piece.z, second),
                      widen_e2m1(piece.w, second)};
  ptx::store_shared(at, uint4{w[0].x, w[1].x, w[2].x, w[3].x});
  ptx::store_shared(at ^ 0x10, uint4{w[0].y, w[1].y, w[2].y, w[3].y});
  ptx::store_shared(at ^ 0x20, uint4{w[0].z, w[1].z, w[2].z, w[3].z});
  ptx::store_shared(at ^ 0x30, uint4{w[0].w, w[1].w, w[2].w, w[3].w});
}

__device__ __forceinline__ bool any_nan(uint4 piece) {
  return ((nan_bits(piece.x) | nan_bits(piece.y) | nan_bits(piece.z) | nan_bits(piece.w)) & 0x80808080u) != 0;
}
__device__ __forceinline__ void widen(format::Fp8_528, const uint4 (&pieces)[2], Scales& scales, uint32_t at) {
  const uint32_t factor = ue8m0_factor(scales.next<8>(), any_nan(pieces[0]) || any_nan(pieces[1]));
  const uint4 w[4] = {widen_e4m3(pieces[0].x, pieces[0].y, factor), widen_e4m3(pieces[0].z, pieces[0].w, factor),
                      widen_e4m3(pieces[1].x, pieces[1].y, factor), widen_e4m3(pieces[1].z, pieces[1].w, factor)};
  ptx::store_shared(at, uint4{w[0].x, w[1].x, w[2].x, w[3].x});
  ptx::store_shared(at ^ 0x10, uint4{w[0].y, w[1].y, w[2].y, w[3].y});
  ptx::store_shared(at ^ 0x20, uint4{w[0].z, w[1].z, w[2].z, w[3].z});
  ptx::store_shared(at ^ 0x30, uint4{w[0].w, w[1].w, w[2].w, w[3].w});
}
__device__ __forceinline__ void widen(format::Fp8_584, const uint4 (&pieces)[2], Scales& scales, uint32_t at) {
  widen(format::Fp8_528{}, pieces, scales, at);
}
// The last 64 dims of e4m3 of fp8_584, 16 of them a lane: half of the chunks of a group of the last block but one.
__device__ __forceinline__ void widen_half_groups(uint4 piece, uint32_t byte, uint32_t row, int key, int part) {
  const uint32_t factor = ue8m0_factor(byte, any_nan(piece));
  const uint4 first = widen_e4m3(piece.x, piece.y, factor);
  const uint4 second = widen_e4m3(piece.z, piece.w, factor);
  const uint32_t at = row + (kBlocks - 2) * kBlockBytes + (((part / 2 * 4) ^ key) << 4) + part % 2 * 8;
  ptx::store_shared(at, uint2{first.x, second.x});
  ptx::store_shared(at ^ 0x10, uint2{first.y, second.y});
  ptx::store_shared(at ^ 0x20, uint2{first.z, second.z});
  ptx::store_shared(at ^ 0x30, uint2{first.w, second.w});
}
// The rotated dims of fp8_584 are bf16 already, 32 of them a column: half 0 or 1 of the last block.
__device__ __forceinline__ void widen_rotated(uint4 piece, uint32_t row, int key, int part, int half) {
  constexpr uint32_t kFactor = (static_cast<uint32_t>(127 - kKeyShift) << 7) * 0x10001u;
  const uint4 pairs = pair_bf16(piece);
  const uint32_t at = row + (kBlocks - 1) * kBlockBytes + (((half * 4) ^ key) << 4) + part * 4;
  ptx::store_shared(at, bf16x2_multiply(pairs.x, kFactor));
  ptx::store_shared(at ^ 0x10, bf16x2_multiply(pairs.y, kFactor));
  ptx::store_shared(at ^ 0x20, bf16x2_multiply(pairs.z, kFactor));
  ptx::store_shared(at ^ 0x30, bf16x2_multiply(pairs.w, kFactor));
}

}  // namespace megamla::cuda
