// Slots -> raw records in shared memory, all asynchronous. A row's slots are fetched a ring ahead of its records: when
// a tile has arrived, so have the slots of the tile that will be asked for then.
#pragma once

#include "cuda/decode_attention/few_heads/tiles.cuh"

namespace megamla::cuda::few_heads {

__device__ __forceinline__ void copy_scales(format::Nvfp4_288, uint32_t to, const uint8_t* from, int quarter,
                                            bool valid) {
  if (quarter < 2) ptx::copy_16_async(to + quarter * 16, from + quarter * 16, valid);
}
__device__ __forceinline__ void copy_scales(format::Fp8_528, uint32_t to, const uint8_t* from, int quarter,
                                            bool valid) {
  if (quarter == 0) ptx::copy_16_async(to, from, valid);
}
__device__ __forceinline__ void copy_scales(format::Fp8_584, uint32_t to, const uint8_t* from, int quarter,
                                            bool valid) {
  if (quarter == 0) ptx::copy_8_async(to, from, valid);
}

// A warp serves every fourth 8 keys of a tile, four lanes a key.
template <class First, class Second>
struct Loader {
  using K = Kinds<First, Second>;
  const DecodeParams& p;
  uint32_t ring;
  uint64_t* full;
  int stages;
  int token;
  Lane me;

  __device__ __forceinline__ uint32_t slots_address(const Cursor& at) const {
    return ring + at.stage * K::kStageBytes + K::kTileBytes + (at.round & 1) * kSlotBytes;
  }
  __device__ __forceinline__ int key_of(int batch) const { return (batch * kWarps + me.warp) * 8; }

  __device__ __forceinline__ void fetch_slots(const Share& share, int index, const Cursor& at) const {
    if (index >= share.tiles) return;
    const Tile t = tile_of<First, Second>(share, index);
    const DecodeKeys& keys = p.keys[t.source];
    const int key = key_of(me.lane / 8) + me.lane % 8;
    if (key < (t.source == 0 ? RawTile<First>::kKeys : RawTile<Second>::kKeys)) {
      ptx::copy_4_async(slots_address(at) + key * 4,
                        keys.slots + token * keys.slots_row_stride + (t.first + key) * keys.slots_column_stride,
                        key < t.count);
    }
  }

  template <class Record>
  __device__ __forceinline__ void copy_tile(const Tile& t, const Cursor& at) const {
    const DecodeKeys& keys = p.keys[K::kSame ? t.source : Record::kFormat == First::kFormat ? 0 : 1];
    const uint32_t slots = slots_address(at);
    const uint32_t tile = ring + at.stage * K::kStageBytes;
#pragma unroll
    for (int batch = 0; batch < RawTile<Record>::kKeys / 8 / kWarps; ++batch) {
      if (key_of(batch) >= ((t.count + 15) & ~15)) break;
      const int key = key_of(batch) + me.g;
      uint32_t slot = ptx::load_shared_1(slots + key * 4);
      const bool valid = key < t.count && slot < keys.num_slots;
      if (!valid) slot = 0;
      const uint32_t page =
          static_cast<uint32_t>((static_cast<uint64_t>(slot) * keys.division.multiplier) >> keys.division.shift);
      const uint32_t in_page = slot - page * keys.page_size;
      const uint8_t* begin = keys.cache + static_cast<int64_t>(page) * keys.page_stride;
      const uint8_t* data = begin + static_cast<int64_t>(in_page) * keys.data_step + me.c * 16;
      const uint8_t* scales = begin + keys.scale_begin + static_cast<int64_t>(in_page) * keys.scale_step;
#pragma unroll
      for (int i = 0; i < Record::kDataBytes / 64; ++i) {
        ptx::copy_16_async(piece_address<Record>(tile, key, i * 4 + me.c), data + i * 64, valid);
      }
      copy_scales(Record{}, scale_address<Record>(tile, key), scales, me.c, valid);
      __syncwarp();
      if (me.c == 0) ptx::store_shared(slots + key * 4, valid ? 0u : 0xff800000u);
    }
  }

  __device__ __forceinline__ void fetch_records(const Share& share, int index, const Cursor& at) const {
    if (index >= share.tiles) return;
    const Tile t = tile_of<First, Second>(share, index);
    if (K::kSame || t.source == 0) {
      copy_tile<First>(t, at);
    } else {
      copy_tile<Second>(t, at);
    }
    ptx::arrive_after_copies(&full[at.stage]);
  }

  // Those that must be there before the first records are asked for.
  __device__ __forceinline__ void fetch_first_slots(const Share& share) const {
    Cursor at;
#pragma unroll 1
    for (int index = 0; index < 2 * stages - 2; ++index, at.advance(stages)) fetch_slots(share, index, at);
  }
};

}  // namespace megamla::cuda::few_heads
