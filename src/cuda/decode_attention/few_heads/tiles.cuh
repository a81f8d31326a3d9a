// How a warp keeps the raw records of 16 keys in shared memory, and what else a block keeps there.
#pragma once

#include "cuda/attention/rotation.cuh"
#include "cuda/decode_attention/params.hpp"
#include "cuda/ptx/matrix_load.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/sync.cuh"
#include "format/kv_record.hpp"
#include "plan/decode_split.hpp"

namespace megamla::cuda::few_heads {

// A crew attends 16 keys at a time: one warp with all 512 dims for 8 heads, two with half of them each for 16.
constexpr int kStepKeys = 16;
template <int kEights>
constexpr int kWarpDims = format::kHeadDim / kEights;

// Lane as the fragments of ptx/mma.cuh see it, and the warp's place in its crew.
struct Lane {
  int warp;
  int half;  // of the dims, in a crew of two
  int lane;
  int g;  // lane / 4
  int c;  // lane % 4
};

// A warp's part of 16 records: data in rows of 16-byte pieces, then scales. Lane (g, c) copies every fourth piece of
// keys g and g + 8. Pieces are swizzled so that copies and both readers (scores: 2 keys x 4 pieces, or 4 keys x 32
// bytes; values: 8 keys, one piece) find other banks.
template <class Record, int kEights>
struct Raw;

// Piece p of a lane's share p / (pieces of a lane), in turn: a lane's pieces are neighbours in the record.
template <int kEights>
struct Raw<format::Nvfp4_288, kEights> {
  static constexpr int kLanePieces = 4 / kEights;
  static constexpr int kPitch = kLanePieces * 64;
  static constexpr int kScales = kStepKeys * kPitch;
  static constexpr int kScalePitch = format::Nvfp4_288::kScaleBytes / kEights;
  static constexpr int kBytes = kScales + kStepKeys * kScalePitch;
  __device__ __forceinline__ static uint32_t row(int key) { return key * kPitch + ((key & 1) << 6); }
  // Where the copying lane puts its piece j, and the reading lane finds piece i of its own, as an exclusive or.
  __device__ __forceinline__ static uint32_t copied(int c, int j) {
    return kEights == 1 ? ((5 * c) ^ j) << 4 : (((c & 1) << 2) | (c >> 1) | (j << 1)) << 4;
  }
  __device__ __forceinline__ static uint32_t read(int c, int i) {
    return kEights == 1 ? ((5 * i) ^ c) << 4 : ((i << 2) ^ c) << 4;
  }
};

template <int kPitchBytes, int kScaleRowBytes>
struct RawE4m3 {
  static constexpr int kPitch = kPitchBytes;
  static constexpr int kScales = kStepKeys * kPitch;
  static constexpr int kScalePitch = kScaleRowBytes;
  static constexpr int kBytes = kScales + kStepKeys * kScalePitch;
  // The same for key and key + 8.
  __device__ __forceinline__ static uint32_t swizzle(int key) {
    return ((key & 1) << 2) | (key & 2) | ((key >> 2) & 1);
  }
  __device__ __forceinline__ static uint32_t place(int key, int piece) {
    return key * kPitch + ((piece ^ swizzle(key)) << 4);
  }
};
template <int kEights>
struct Raw<format::Fp8_528, kEights> : RawE4m3<512 / kEights, format::Fp8_528::kScaleBytes> {};
// Of a crew of two the first warp has dims 0 .. 255, the other the rest, whose last 64 are bf16. Rows are whole eights
// of pieces.
template <int kEights>
struct Raw<format::Fp8_584, kEights> : RawE4m3<kEights == 1 ? 640 : 384, format::Fp8_584::kScaleBytes> {};

constexpr int round_up_128(int bytes) { return (bytes + 127) / 128 * 128; }
constexpr int larger(int a, int b) { return a > b ? a : b; }

// What a warp has to itself. Its steps are first those of the window, then those of the compressed list: e2m1 keys,
// widened to f16 for the values, lie where window records were. At the end its sums lie there.
template <class First, class Second, int kEights>
struct Arena {
  static constexpr bool kSame = First::kFormat == Second::kFormat;
  static constexpr bool kNibbles = Second::kFormat == MEGAMLA_KV_NVFP4_288;
  static constexpr bool kRopeBf16 = First::kFormat == MEGAMLA_KV_FP8_584;
  static constexpr int kStages = kEights == 2 ? 3 : kSame && !kRopeBf16 ? 3 : 2;
  static constexpr int kFirstBytes = Raw<First, kEights>::kBytes;
  static constexpr int kSecondBytes = Raw<Second, kEights>::kBytes;
  static constexpr int kWideBytes = kNibbles ? kStepKeys * 2 * kWarpDims<kEights> : 0;
  static constexpr int kSumsBytes = 32 * 32 * 16;
  static constexpr int kSecond = kSame ? 0 : larger(kStages * kFirstBytes, kWideBytes);
  // Partial logits for the other warp of the crew, two in turn.
  static constexpr int kExchange = larger(kSecond + kStages * kSecondBytes, kSumsBytes);
  static constexpr int kExchangeBytes = kEights == 1 ? 0 : 2 * 32 * 4 * kEights * 4;
  static constexpr int kSlots = kExchange + kExchangeBytes;  // of the stages' next steps
  static constexpr int kBytes = (kSlots + kStages * kStepKeys * 4 + 255) / 256 * 256;
};

constexpr int kMostWarps = 8;

// Beside the arenas.
template <int kEights>
struct Shared {
  static constexpr int kHeads = 8 * kEights;
  static constexpr int kMostCrews = kMostWarps / kEights;
  // Q as b fragments: eight dims of a head are a piece, at [eight of heads][eight of dims][place of the head]. Later,
  // 1 KB of it for each warp.
  uint4 query[kEights][format::kHeadDim / 8][8];
  float logit_factor[kHeads];
  float crew_max[kMostCrews][kHeads];
  float crew_sum[kMostCrews][kHeads];
  float warp_unit[kMostWarps];
  float weight[larger(plan::kMostShares, kMostWarps)][kHeads];  // of warps, then of the cluster's blocks
  float block_max[kHeads];
  float block_sum[kHeads];
  float factor[kHeads];
  Rotation rotation;
};
template <int kEights>
constexpr int kSharedBytes = round_up_128(static_cast<int>(sizeof(Shared<kEights>)));

__device__ __forceinline__ int load_length(const DecodeKeys& keys, int token) {
  const int length = keys.lens == nullptr ? keys.width : keys.lens[token * keys.lens_stride];
  return min(max(length, 0), keys.width);
}

// 2^exponent, 0 for much less.
__device__ __forceinline__ float power_of_two(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(min(max(exponent, -127), 127) + 127) << 23);
}

}  // namespace megamla::cuda::few_heads
