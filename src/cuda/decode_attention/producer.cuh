// Producer warps: gather records, widen them to bf16 * 2^-60, store them as a swizzled key tile.
//
// A warp serves two batches of 8 keys of each tile. Lane l has, of each batch, key l % 8 and every fourth 16-byte piece
// of its record, beginning at l / 8: the 8 lanes of a shared-memory phase then write 8 rows at one chunk, which the
// swizzle spreads over all banks. A record is read in sections of 3 or 4 pieces a lane.
//
// Random records take about 3000 clocks to come from memory. So the slots of a tile are fetched two tiles ahead, and
// the registers of a section are loaded anew as soon as it has been widened. (Calling records to L2 a tile earlier
// still cost more than it hid.)
//
// All roles share the instruction cache: code is kept small, and what runs once a row is not unrolled.
#pragma once

#include <cuda_fp8.h>

#include "cuda/decode_attention/tiles.cuh"

namespace megamla::cuda {

constexpr uint32_t kSigns = 0x80008000u;

__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// Bit 7 of some byte is set where a byte of the e4m3 codes is NaN.
__device__ __forceinline__ uint32_t nan_bits(uint32_t codes) { return (codes & 0x7f7f7f7fu) + 0x01010101u; }

// 2^(byte - 127 + 120 - 60) as two bf16, 120 being the bias between e4m3 codes in bf16's place and their values.
__device__ __forceinline__ uint32_t ue8m0_factor(uint32_t byte, bool nan) {
  const uint32_t factor = (nan || byte == 255) ? 0x7fc0u : min(byte + (120 - kKeyShift), 254u) << 7;
  return factor * 0x10001u;
}

// Four pairs of e4m3 codes at the high (odd) or low (even) bytes of each half -> bf16, times the factor.
__device__ __forceinline__ uint32_t widen_high_e4m3(uint32_t codes, uint32_t factor) {
  return multiply_bf16x2((codes & kSigns) | ((codes >> 4) & 0x07f007f0u), factor);
}
__device__ __forceinline__ uint32_t widen_low_e4m3(uint32_t codes, uint32_t factor) {
  return multiply_bf16x2(((codes << 8) & kSigns) | ((codes << 4) & 0x07f007f0u), factor);
}

// 8 dims in two words of e4m3 -> the pairs (i, 4 + i), i = 0 .. 3.
__device__ __forceinline__ uint4 widen_e4m3(uint32_t low, uint32_t high, uint32_t factor) {
  const uint32_t first = __byte_perm(low, high, 0x5410);
  const uint32_t second = __byte_perm(low, high, 0x7632);
  return {widen_low_e4m3(first, factor), widen_high_e4m3(first, factor), widen_low_e4m3(second, factor),
          widen_high_e4m3(second, factor)};
}

// A nibble's sign and its other three bits go to different places: a product puts copies at both, a mask keeps one of
// each. `nibbles` has 4 bits in each half; kTimes places them.
template <uint32_t kTimes>
__device__ __forceinline__ uint32_t place_e2m1(uint32_t nibbles, uint32_t factor) {
  return multiply_bf16x2((nibbles * kTimes) & (kSigns | 0x01c001c0u), factor);
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
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(scales.y * 0x1p66F), "f"(scales.x * 0x1p66F));
  return both;  // exact: 4 significant bits
}

template <class Record>
constexpr int kPieces = Record::kDataBytes == 576 ? 3 : 4;  // of a lane in a section
template <class Record>
constexpr int kSections = Record::kDataBytes / (kPieces<Record> * 64);

// What a lane holds of a section.
struct Section {
  uint4 data[4];
  uint32_t scale[4];
};

// Where a lane's key lies. An entry that names no key reads record 0 and is widened with a factor of 0: its codes are
// finite before the factor, whatever they are.
struct Key {
  const uint8_t* data;  // of this lane's first piece
  const uint8_t* scale;
  bool valid;
};

template <class Record>
__device__ __forceinline__ void load_data(Section& set, const Key& key, int section) {
#pragma unroll
  for (int i = 0; i < kPieces<Record>; ++i) {
    ptx::load_stream(set.data[i], key.data + section * (kPieces<Record> * 64) + i * 64);
  }
}
__device__ __forceinline__ void load_scales(format::Nvfp4_288, Section& set, const Key& key, int part, int) {
#pragma unroll
  for (int i = 0; i < 4; ++i) ptx::load_u16(set.scale[i], key.scale + i * 8 + part * 2);
}
__device__ __forceinline__ void load_scales(format::Fp8_528, Section& set, const Key& key, int, int section) {
  ptx::load_2(set.scale, key.scale + section * 8);
}
__device__ __forceinline__ void load_scales(format::Fp8_584, Section& set, const Key& key, int, int) {
  ptx::load_2(set.scale, key.scale);
}

template <class First, class Second>
struct Producer {
  static constexpr bool kSame = First::kFormat == Second::kFormat;
  static_assert(kPieces<First> == kPieces<Second>);

  const DecodeParams& p;
  Shared& shared;
  int key;   // 0 .. 7 of the warp's
  int part;  // 0 .. 3
  int lane;
  int warp;  // of the producers
  struct Tile {
    int source = 0;
    int count = 0;  // entries of the list from the tile's begin on; 0: no tile
  };
  // Walks the tiles of all rows.
  struct Walk {
    Row row;
    int index = 0;  // of the next row
    int tile = 0;
  };

  __device__ Producer(const DecodeParams& params, Shared& s, int thread)
      : p(params),
        shared(s),
        key(thread % 8),
        part(thread % 32 / 8),
        lane(thread % 32),
        warp(__shfl_sync(~0u, thread / 32, 0)) {}

  // The next tile; its slots are on their way to ring place `place` when this returns.
  __device__ __forceinline__ Tile next_tile(Walk& walk, int place) const {
    Row& row = walk.row;
    while (walk.tile >= row.end) {
      const ComingRow coming = load_row(p, walk.index);
      if (coming.token < 0) return {};
      ++walk.index;
      row = arrived(p, coming);
      walk.tile = row.begin;
    }
    Tile t;
    t.source = walk.tile < row.window_tiles() ? 0 : 1;
    const DecodeKeys& keys = p.keys[t.source];
    const int first = (walk.tile - (t.source == 0 ? 0 : row.window_tiles())) * kTileKeys;
    t.count = (t.source == 0 ? row.length[0] : row.length[1]) - first;
    const int entry = key_in_tile(lane / 8) % kTileKeys;
    if (lane < 8 * kBatches) {
      ptx::copy_4_async(ptx::shared_address(&shared.slots[warp][place][lane]),
                        keys.slots + row.token * keys.slots_row_stride + (first + entry) * keys.slots_column_stride,
                        entry < t.count);
    }
    walk.tile += row.ranks;
    return t;
  }

  __device__ __forceinline__ int key_in_tile(int batch) const { return (batch * kProducerWarps + warp) * 8 + key; }

  __device__ __forceinline__ Key locate(const Tile& t, int place, int batch) const {
    const DecodeKeys& keys = p.keys[t.source];
    uint32_t slot = static_cast<uint32_t>(shared.slots[warp][place][batch * 8 + key]);
    const bool valid = key_in_tile(batch) < t.count && slot < keys.num_slots;
    if (!valid) slot = 0;
    const uint32_t page =
        static_cast<uint32_t>((static_cast<uint64_t>(slot) * keys.division.multiplier) >> keys.division.shift);
    const uint32_t in_page = slot - page * keys.page_size;
    const uint8_t* begin = keys.cache + static_cast<int64_t>(page) * keys.page_stride;
    return {begin + static_cast<int64_t>(in_page) * keys.data_step + part * 16,
            begin + keys.scale_begin + static_cast<int64_t>(in_page) * keys.scale_step, valid};
  }

  __device__ __forceinline__ void load_section(const Key& k, int source, int section, Section& set) const {
    load_data<First>(set, k, section);
    if (kSame || source == 0) {
      load_scales(First{}, set, k, part, section);
    } else {
      load_scales(Second{}, set, k, part, section);
    }
  }

  // 16 dims: half of the chunks of group `group` of 32 dims.
  __device__ __forceinline__ void store_e4m3(uint4 piece, uint32_t byte, bool valid, uint32_t at, int group) const {
    const bool nan =
        ((nan_bits(piece.x) | nan_bits(piece.y) | nan_bits(piece.z) | nan_bits(piece.w)) & 0x80808080u) != 0;
    const uint32_t factor = valid ? ue8m0_factor(byte, nan) : 0;
    const uint4 first = widen_e4m3(piece.x, piece.y, factor);
    const uint4 second = widen_e4m3(piece.z, piece.w, factor);
    const uint32_t offset = (part & 1) * 8;
    ptx::store_shared(chunk_address(at, key, group * 4) + offset, uint2{first.x, second.x});
    ptx::store_shared(chunk_address(at, key, group * 4 + 1) + offset, uint2{first.y, second.y});
    ptx::store_shared(chunk_address(at, key, group * 4 + 2) + offset, uint2{first.z, second.z});
    ptx::store_shared(chunk_address(at, key, group * 4 + 3) + offset, uint2{first.w, second.w});
  }

  __device__ __forceinline__ void widen(format::Fp8_528, const Section& set, bool valid, uint32_t at,
                                        int section) const {
    // Bytes 2i + part / 2 of the section's 8 scales.
    const uint32_t bytes = __byte_perm(set.scale[0], set.scale[1], (part & 2) != 0 ? 0x7531u : 0x6420u);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      store_e4m3(set.data[i], (bytes >> (i * 8)) & 0xffu, valid, at, section * 8 + i * 2 + part / 2);
    }
  }

  __device__ __forceinline__ void widen(format::Fp8_584, const Section& set, bool valid, uint32_t at,
                                        int section) const {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int scale = section * 3 + i;
      if (scale < format::Fp8_584::kScaleGroups) {
        const uint32_t word = scale < 4 ? set.scale[0] : set.scale[1];
        store_e4m3(set.data[i], (word >> (scale % 4 * 8)) & 0xffu, valid, at, scale * 2 + part / 2);
      } else {
        // The rotated dims are bf16 already.
        constexpr uint32_t kFactor = (static_cast<uint32_t>(127 - kKeyShift) << 7) * 0x10001u;
        const uint4 pairs = pair_bf16(valid ? set.data[i] : uint4{0, 0, 0, 0});
        const int chunk = format::kNopeDim / 8 + (scale - format::Fp8_584::kScaleGroups) * 4;
        ptx::store_shared(chunk_address(at, key, chunk) + part * 4, multiply_bf16x2(pairs.x, kFactor));
        ptx::store_shared(chunk_address(at, key, chunk + 1) + part * 4, multiply_bf16x2(pairs.y, kFactor));
        ptx::store_shared(chunk_address(at, key, chunk + 2) + part * 4, multiply_bf16x2(pairs.z, kFactor));
        ptx::store_shared(chunk_address(at, key, chunk + 3) + part * 4, multiply_bf16x2(pairs.w, kFactor));
      }
    }
  }

  __device__ __forceinline__ void widen(format::Nvfp4_288, const Section& set, bool valid, uint32_t at, int) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t factors = valid ? e4m3_factors(set.scale[i]) : 0;
      const uint32_t first = __byte_perm(factors, 0, 0x1010);
      const uint32_t second = __byte_perm(factors, 0, 0x3232);
      const uint4 w[4] = {widen_e2m1(set.data[i].x, first), widen_e2m1(set.data[i].y, first),
                          widen_e2m1(set.data[i].z, second), widen_e2m1(set.data[i].w, second)};
      const int chunk = i * 16 + part * 4;
      ptx::store_shared(chunk_address(at, key, chunk), uint4{w[0].x, w[1].x, w[2].x, w[3].x});
      ptx::store_shared(chunk_address(at, key, chunk + 1), uint4{w[0].y, w[1].y, w[2].y, w[3].y});
      ptx::store_shared(chunk_address(at, key, chunk + 2), uint4{w[0].z, w[1].z, w[2].z, w[3].z});
      ptx::store_shared(chunk_address(at, key, chunk + 3), uint4{w[0].w, w[1].w, w[2].w, w[3].w});
    }
  }

  // A tile of `Record`, whose first sections are on their way to `coming`; when this returns those of the next tile
  // are.
  template <class Record>
  __device__ __forceinline__ void produce(Section (&coming)[kBatches], Key (&keys)[kBatches], const Tile& next,
                                          int next_place, int stage) const {
    const uint32_t at = ptx::shared_address(shared.keys[stage]) + (warp * 8 + key) * kRowBytes;
    constexpr int kSource = kSame || Record::kFormat == First::kFormat ? 0 : 1;
#pragma unroll 1
    for (int section = 0; section < kSections<Record>; ++section) {
      const bool last = section + 1 == kSections<Record>;
#pragma unroll
      for (int b = 0; b < kBatches; ++b) {
        Section set;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint4 v = coming[b].data[i];
          set.data[i] = {ptx::copied(v.x), ptx::copied(v.y), ptx::copied(v.z), ptx::copied(v.w)};
          set.scale[i] = ptx::copied(coming[b].scale[i]);
        }
        const bool valid = keys[b].valid;
        if (!last) {
          load_section(keys[b], kSource, section + 1, coming[b]);
        } else {
          const uint32_t mask = __ballot_sync(~0u, valid);
          if (lane == 0) shared.valid[stage][b * kProducerWarps + warp] = static_cast<uint8_t>(mask & 0xffu);
          if (next.count > 0) {
            keys[b] = locate(next, next_place, b);
            load_section(keys[b], next.source, 0, coming[b]);
          }
        }
        widen(Record{}, set, valid, at + b * kProducerWarps * 8 * kRowBytes, section);
      }
    }
  }

  __device__ __forceinline__ void wait_slots(int tile) const {
    ptx::mbarrier_wait(&shared.slots_full[warp][tile % kSlotTiles], tile / kSlotTiles & 1);
  }

  __device__ __forceinline__ void run() const {
    Walk walk;
    walk.row.end = 0;
    Tile current, next;
    Key keys[kBatches];
    Section coming[kBatches];
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) coming[b].data[i] = uint4{0, 0, 0, 0}, coming[b].scale[i] = 0;
    }
    Ring ring;
    // Step s: the slots of tile s are fetched, the records of tile s - 1, and tile s - 2 is widened.
#pragma unroll 1
    for (int step = 0;; ++step) {
      const Tile after = next_tile(walk, step % kSlotTiles);
      ptx::arrive_after_copies(&shared.slots_full[warp][step % kSlotTiles]);
      if (step > 0) wait_slots(step - 1);
      const int next_place = (step - 1) % kSlotTiles;
      if (current.count > 0) {
        ptx::mbarrier_wait(&shared.keys_empty[ring.stage], ring.parity ^ 1);
        if (kSame || current.source == 0) {
          produce<First>(coming, keys, next, next_place, ring.stage);
        } else {
          produce<Second>(coming, keys, next, next_place, ring.stage);
        }
        ptx::fence_async_proxy();
        ptx::mbarrier_arrive(&shared.keys_full[ring.stage]);
        ring.advance();
      } else if (step == 1) {
        if (next.count == 0) return;
#pragma unroll
        for (int b = 0; b < kBatches; ++b) {
          keys[b] = locate(next, next_place, b);
          load_section(keys[b], next.source, 0, coming[b]);
        }
      } else if (step > 1) {
        return;
      }
      current = next;
      next = after;
    }
  }
};

}  // namespace megamla::cuda
