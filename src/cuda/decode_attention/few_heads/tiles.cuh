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

// A crew attends 16 keys at a time; its warps share the dims, so that a lane has 64 sums.
constexpr int kStepKeys = 16;
template <int kEights>
constexpr int kCrewWarps = 2 * kEights;
// What a step costs a crew beside others; measured.
template <class Record, class Second>
constexpr int kStepCost = Record::kFormat == Second::kFormat ? 3 : 4;
template <int kEights>
constexpr int kWarpDims = format::kHeadDim / kCrewWarps<kEights>;
constexpr int kMostWarps = 16;  // of a block

// Lane as the fragments of ptx/mma.cuh see it, and the warp's place in its crew.
struct Lane {
  int warp;
  int part;  // of the dims, in its crew
  int lane;
  int g;  // lane / 4
  int c;  // lane % 4
};

constexpr int round_up_128(int bytes) { return (bytes + 127) / 128 * 128; }

// A warp's part of 16 records: data in rows of 16-byte pieces, then scales. Lane (g, c) copies every fourth piece of
// keys g and g + 8. Pieces are swizzled so that readers (scores: 2 keys x 4 pieces, or 4 keys x 32 bytes; values: 8
// keys, one piece) find other banks; 64 bytes of a record, which four lanes copy, stay 64 bytes: others cost more.
template <class Record, int kEights>
struct Raw;

// A lane's pieces are neighbours in the record.
template <int kEights>
struct Raw<format::Nvfp4_288, kEights> {
  static constexpr int kLanePieces = 4 / kCrewWarps<kEights>;
  static constexpr int kPitch = kLanePieces * 64;
  static constexpr int kScales = kStepKeys * kPitch;
  static constexpr int kScalePitch = format::Nvfp4_288::kScaleBytes / kCrewWarps<kEights>;
  static constexpr int kBytes = round_up_128(kScales + kStepKeys * kScalePitch);  // as swizzles are exclusive ors
  static_assert(kLanePieces == 1 || kLanePieces == 2);
  __device__ __forceinline__ static uint32_t row(int key) {
    return key * kPitch + (kLanePieces == 1 ? 0 : (key & 1) << 4);
  }
  // Where the copying lane puts its first piece, and the reading lane finds piece i of its own, as an exclusive or.
  __device__ __forceinline__ static uint32_t copied(int c) { return c << 4; }
  __device__ __forceinline__ static uint32_t read(int c, int i) { return (c * kLanePieces + i) << 4; }
};

template <int kPitchBytes, int kScaleRowBytes>
struct RawE4m3 {
  static constexpr int kPitch = kPitchBytes;
  static constexpr int kScales = kStepKeys * kPitch;
  static constexpr int kScalePitch = kScaleRowBytes;
  static constexpr int kBytes = round_up_128(kScales + kStepKeys * kScalePitch);  // as swizzles are exclusive ors
  // The same for key and key + 8.
  __device__ __forceinline__ static uint32_t swizzle(int key) {
    return ((key & 1) << 2) | (key & 2) | ((key >> 2) & 1);
  }
  __device__ __forceinline__ static uint32_t place(int key, int piece) {
    return key * kPitch + ((piece ^ swizzle(key)) << 4);
  }
};
template <int kEights>
struct Raw<format::Fp8_528, kEights> : RawE4m3<kWarpDims<kEights>, format::Fp8_528::kScaleBytes / kCrewWarps<kEights>> {
};
// The last 64 dims of a crew's last warp are bf16. Rows are whole eights of pieces.
template <int kEights>
struct Raw<format::Fp8_584, kEights> : RawE4m3<kWarpDims<kEights> + 128, format::Fp8_584::kScaleBytes> {};

constexpr int larger(int a, int b) { return a > b ? a : b; }

// What a warp has to itself. Its steps are first those of the window, then those of the compressed list: e2m1 keys,
// widened to f16 for the values, lie where window records were. At the end its sums lie there.
template <class First, class Second, int kEights>
struct Arena {
  static constexpr bool kSame = First::kFormat == Second::kFormat;
  static constexpr bool kNibbles = Second::kFormat == MEGAMLA_KV_NVFP4_288;
  static constexpr bool kRopeBf16 = First::kFormat == MEGAMLA_KV_FP8_584;
  static constexpr int kStages = kEights == 2 && !kRopeBf16 ? 3 : 2;
  static constexpr int kFirstBytes = Raw<First, kEights>::kBytes;
  static constexpr int kSecondBytes = Raw<Second, kEights>::kBytes;
  static constexpr int kWideBytes = kNibbles ? kStepKeys * 2 * kWarpDims<kEights> : 0;
  static constexpr int kSumsBytes = 32 * 16 * 16;
  static constexpr int kScratchBytes = 1024;  // of the row's end, after the sums
  static constexpr int kSecond = kSame ? 0 : larger(kStages * kFirstBytes, kWideBytes);
  // Parts of logits for the other warps of the crew. Eight heads leave little room: with records of two kinds, parts
  // lie where a record's stage is free meanwhile, as the records of the step are of the other kind or have been
  // widened.
  static constexpr int kPartBytes = 32 * 4 * kEights * 4;
  static constexpr bool kPartsInStage = kEights == 1 && !kSame;
  // Not where a warp that has ended leaves its sums while another one still reads.
  static constexpr int kStagesEnd = larger(kSecond + kStages * kSecondBytes, kSumsBytes);
  static constexpr int kParts = kPartsInStage ? kSecond : kStagesEnd;
  static constexpr int kPartsStep = kPartsInStage ? kSecondBytes : 0;  // from stage to stage
  static_assert(!kPartsInStage || kPartBytes <= kSecondBytes);
  // Of a crew of four, in its first warp's arena.
  static constexpr int kProbabilities = kStagesEnd + (kPartsInStage ? 0 : kPartBytes);
  static constexpr int kProbabilityBytes = kEights == 1 ? 0 : kStepKeys * 16 * kEights;
  static constexpr int kSlots = kProbabilities + kProbabilityBytes;  // of the stages' next steps
  static constexpr int kBytes =
      (larger(kSlots + kStages * kStepKeys * 4, kSumsBytes + kScratchBytes) + 127) / 128 * 128;
};

// Beside the arenas.
template <int kEights>
struct Shared {
  static constexpr int kHeads = 8 * kEights;
  static constexpr int kMostCrews = kMostWarps / kCrewWarps<kEights>;
  // Q as b fragments: eight dims of a head are a piece, at [eight of heads][eight of dims][place of the head].
  uint4 query[kEights][format::kHeadDim / 8][8];
  float logit_factor[kHeads];
  uint64_t read[kMostWarps];   // barriers of crews of two: the other warp has read the part of the logits
  int lengths[kMostWarps][2];  // of the row's lists; a warp's own
  float crew_max[kMostCrews][kHeads];
  float crew_sum[kMostCrews][kHeads];
  float warp_unit[kMostWarps];
  union {
    float shrink[kMostCrews][kHeads];                             // while there are steps
    float weight[larger(plan::kMostShares, kMostWarps)][kHeads];  // of warps, then of the cluster's blocks
  };
  float2 block[plan::kMostShares][kHeads];  // maximum and sum of the cluster's blocks, which bring them
  float factor[kHeads];
  Rotation rotation;
};
template <int kEights>
constexpr int kSharedBytes = round_up_128(static_cast<int>(sizeof(Shared<kEights>)));

__device__ __forceinline__ int load_length(const DecodeKeys& keys, int token) {
  return keys.lens == nullptr ? keys.width : keys.lens[token * keys.lens_stride];
}

// 2^exponent, 0 for much less.
__device__ __forceinline__ float power_of_two(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(min(max(exponent, -127), 127) + 127) << 23);
}

}  // namespace megamla::cuda::few_heads
