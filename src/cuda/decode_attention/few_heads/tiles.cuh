// Tiles of raw records in shared memory, what else a block keeps there, and which keys of a row are its own.
#pragma once

#include "cuda/attention/rotation.cuh"
#include "cuda/decode_attention/params.hpp"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/sync.cuh"
#include "format/kv_record.hpp"
#include "plan/decode_split.hpp"

namespace megamla::cuda::few_heads {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kWarpDims = format::kHeadDim / kWarps;
constexpr int kDimGroups = kWarpDims / 32;  // of a warp

// How a tile of records lies in shared memory: key after key, data in 16-byte pieces, piece i of a key at place
// i ^ swizzle(key). The swizzle serves two readers without bank conflicts: scores (8 keys, each 4 neighbouring words or
// double words) and values (keys 2c or 2c + 1, 8 lanes along the dims). It is the same for key and key + 8.
template <class Record>
struct RawTile;
template <>
struct RawTile<format::Nvfp4_288> {
  static constexpr int kKeys = 64;
  static constexpr int kPitch = format::Nvfp4_288::kDataBytes;
  static constexpr int kScales = kKeys * kPitch;
  static constexpr int kScalePitch = format::Nvfp4_288::kScaleBytes;
  static constexpr int kBytes = kScales + kKeys * kScalePitch;
  __device__ static constexpr int swizzle(int key) { return key & 7; }
};
template <>
struct RawTile<format::Fp8_528> {
  static constexpr int kKeys = 32;
  static constexpr int kPitch = format::Fp8_528::kDataBytes;
  static constexpr int kScales = kKeys * kPitch;
  static constexpr int kScalePitch = format::Fp8_528::kScaleBytes;
  static constexpr int kBytes = kScales + kKeys * kScalePitch;
  __device__ static constexpr int swizzle(int key) { return ((key + ((key >> 2) & 1)) & 3) << 1; }
};
template <>
struct RawTile<format::Fp8_584> {
  static constexpr int kKeys = 32;
  static constexpr int kScales = format::Fp8_584::kDataBytes;
  static constexpr int kPitch = kScales + 32;  // scales, then padding to 8 words beyond a multiple of the banks
  static constexpr int kScalePitch = kPitch;
  static constexpr int kBytes = kKeys * kPitch;
  __device__ static constexpr int swizzle(int key) { return ((key >> 2) & 1) << 1; }
};
template <class Record>
__device__ __forceinline__ uint32_t piece_address(uint32_t tile, int key, int piece) {
  return tile + key * RawTile<Record>::kPitch + ((piece ^ RawTile<Record>::swizzle(key)) << 4);
}
template <class Record>
__device__ __forceinline__ uint32_t scale_address(uint32_t tile, int key) {
  return tile + RawTile<Record>::kScales + key * RawTile<Record>::kScalePitch;
}

constexpr int kMostStages = 4;
constexpr int kMostTileKeys = 64;
constexpr int kSlotBytes = kMostTileKeys * 4;

template <class First, class Second>
struct Kinds {
  static constexpr bool kSame = First::kFormat == Second::kFormat;
  static constexpr bool kNibbles = Second::kFormat == MEGAMLA_KV_NVFP4_288;
  static constexpr bool kRopeBf16 = First::kFormat == MEGAMLA_KV_FP8_584;
  static constexpr int kTileKeys =
      RawTile<First>::kKeys > RawTile<Second>::kKeys ? RawTile<First>::kKeys : RawTile<Second>::kKeys;
  static constexpr int kTileBytes =
      RawTile<First>::kBytes > RawTile<Second>::kBytes ? RawTile<First>::kBytes : RawTile<Second>::kBytes;
  // A stage: the records of a tile, and two places for slots: the stage's next tile but one has its slots fetched while
  // those of the next are in use. When a record has been asked for, its slot gives way to the bias of its logits: 0, or
  // -infinity for an entry that names no key.
  static constexpr int kStageBytes = kTileBytes + 2 * kSlotBytes;
  static_assert(kStageBytes % 128 == 0);
};

// The keys that are this block's of a row's two lists, one after the other in equal shares of whole 16s.
struct Share {
  int first[2];
  int count[2];
  int window_tiles;
  int tiles;
};
__device__ __forceinline__ int load_length(const DecodeKeys& keys, int token) {
  return keys.lens == nullptr ? keys.width : keys.lens[token * keys.lens_stride];
}
struct HeadFactors {
  float query;  // of q, so that f16 holds it
  float logit;  // of q . k
};

// kEights: heads of the block, by 8.
template <int kEights, int kTileKeys>
struct Shared {
  static constexpr int kHeads = 8 * kEights;
  static constexpr int kSteps = kTileKeys / 16;
  union {
    // A warp's part of the products q . k, over its 128 dims.
    float partial[kWarps][kSteps][kEights][16][8];
    struct {
      float most[kWarps][kHeads];  // |q|
      float square[kWarps][kHeads];
    } query;  // before the first tile
    struct {
      float sum[kWarps][kHeads];
      float weight[plan::kMostShares][kHeads];
      float factor[kHeads];
    } end;  // after the last one
  };
  // Probabilities as b fragments of 16 keys and 8 heads.
  uint32_t probabilities[kSteps][kEights][32][2];
  float tile_max[kWarps][kHeads];
  HeadFactors head[kHeads];
  float row_max[kHeads];
  float row_sum[kHeads];
  float row_unit;
  Share share;
  Rotation rotation;
  alignas(8) uint64_t full[kMostStages];
};
template <class First, class Second, int kEights>
constexpr int kFixedBytes = (static_cast<int>(sizeof(Shared<kEights, Kinds<First, Second>::kTileKeys>)) + 127) / 128 *
                            128;

template <class First, class Second>
__device__ __forceinline__ Share share_of(const DecodeParams& p, int window, int compressed, uint32_t rank) {
  const uint32_t total = static_cast<uint32_t>(window) + static_cast<uint32_t>(compressed);
  const uint32_t size = p.cluster == 1 ? total : (__umulhi(total + p.cluster - 1, p.cluster_reciprocal) + 15) & ~15u;
  const uint32_t begin = min(rank * size, total);
  const uint32_t end = min(begin + size, total);
  const uint32_t border = static_cast<uint32_t>(window);
  Share s;
  s.first[0] = static_cast<int>(min(begin, border));
  s.count[0] = static_cast<int>(min(end, border)) - s.first[0];
  s.first[1] = static_cast<int>(max(begin, border) - border);
  s.count[1] = static_cast<int>(max(end, border) - border) - s.first[1];
  s.window_tiles = (s.count[0] + RawTile<First>::kKeys - 1) / RawTile<First>::kKeys;
  s.tiles = s.window_tiles + (s.count[1] + RawTile<Second>::kKeys - 1) / RawTile<Second>::kKeys;
  return s;
}

struct Tile {
  int source;  // 0 window, 1 compressed
  int first;   // list position
  int count;   // keys, at most those of a tile
};
template <class First, class Second>
__device__ __forceinline__ Tile tile_of(const Share& s, int index) {
  Tile t;
  t.source = index < s.window_tiles ? 0 : 1;
  const int before = (t.source == 0 ? index : index - s.window_tiles) *
                     (t.source == 0 ? RawTile<First>::kKeys : RawTile<Second>::kKeys);
  t.first = (t.source == 0 ? s.first[0] : s.first[1]) + before;
  t.count = min((t.source == 0 ? s.count[0] : s.count[1]) - before,
                t.source == 0 ? RawTile<First>::kKeys : RawTile<Second>::kKeys);
  return t;
}

// A walk through the stages; `round` counts the turns.
struct Cursor {
  int stage = 0;
  uint32_t round = 0;
  __device__ __forceinline__ void advance(int stages) {
    if (++stage == stages) stage = 0, ++round;
  }
  // At most a turn.
  __device__ __forceinline__ Cursor ahead(int tiles, int stages) const {
    return stage + tiles < stages ? Cursor{stage + tiles, round} : Cursor{stage + tiles - stages, round + 1};
  }
  // Of the tile `stages` - 1 before.
  __device__ __forceinline__ Cursor a_ring_ago(int stages) const {
    return stage + 1 < stages ? Cursor{stage + 1, round - 1} : Cursor{0, round};
  }
};

// Lane as the fragments of ptx/mma.cuh see it.
struct Lane {
  int warp;
  int lane;
  int g;  // lane / 4
  int c;  // lane % 4
};

}  // namespace megamla::cuda::few_heads
