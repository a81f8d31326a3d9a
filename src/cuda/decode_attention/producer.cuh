// Producer warps: raw records through a ring in shared memory, widened into key tiles.
//
// A warp serves two batches of 8 keys of each tile, one 64-byte column of its 16 records at a time. The front of the
// ring is kColumns - 1 columns ahead of the column that is widened, whatever tile or row that leads into, since records
// take some 3000 clocks to come from memory: 40 KB are on their way. A lane reads what it copied itself, so nothing is
// waited for but its own copies; scales alone go through the warp.
//
// One loop, one copy of everything: all roles share the instruction cache, and its code is fetched cold by each launch.
#pragma once

#include "cuda/decode_attention/widen.cuh"

namespace megamla::cuda {

template <class First, class Second>
struct Producer {
  static constexpr bool kSame = First::kFormat == Second::kFormat;
  static constexpr int kAhead = kColumns - 1;
  static_assert(kAhead < (kLists - 1) * (Columns<Second>::kCount + 1));  // tiles on their way fit `opened`

  const DecodeParams& p;
  Shared& shared;
  int key;   // 0 .. 7 of a batch
  int part;  // 0 .. 3
  int lane;
  int warp;  // of the producers

  // The tile whose slots are asked for next.
  struct Walk {
    Row row;
    int index = 0;  // of the next row
    int tile = 0;
    int end = 0;
  };
  Walk walk;
  // The column that is copied next.
  struct Front {
    const uint8_t* data[kBatches];  // of this lane's piece
    bool named[kBatches];           // false for an entry that names no key: zeros come instead of a record
    int columns = 0;                // left of the tile
    int list = 0;                   // next to be opened
    int opened = 0;
    uint32_t at;  // place in the ring
  };

  __device__ Producer(const DecodeParams& params, Shared& s, int thread)
      : p(params),
        shared(s),
        key(thread % 8),
        part(thread % 32 / 8),
        lane(thread % 32),
        warp(__shfl_sync(~0u, thread / 32, 0)) {}

  __device__ __forceinline__ uint32_t ring_begin() const { return ptx::shared_address(shared.raw[warp]) + lane * 16; }
  __device__ __forceinline__ static void advance(uint32_t& at, uint32_t begin) {
    at += kColumnBytes;
    if (at == begin + kColumns * kColumnBytes) at = begin;
  }

  // Asks for the slots of the next tile, and for its list's length.
  __device__ __forceinline__ void request(int place) {
    while (walk.tile >= walk.end) {
      walk.row = row_at(p, shared, walk.index);
      if (!walk.row.any()) break;
      ++walk.index;
      walk.tile = walk.row.begin;
      walk.end = walk.row.end;
    }
    TileList& list = shared.lists[warp][place];
    if (!walk.row.any()) {
      list.source = -1;
    } else {
      const int source = walk.tile < p.window_tiles ? 0 : 1;
      const DecodeKeys& keys = p.keys[source];
      const int first = (walk.tile - (source == 0 ? 0 : p.window_tiles)) * kTileKeys;
      list.source = source;
      list.first = first;
      if (lane < 8 * kBatches) {
        const int entry = first + (lane / 8 * kProducerWarps + warp) * 8 + key;
        ptx::copy_4_async(ptx::shared_address(&list.slots[lane]),
                          keys.slots + walk.row.token * keys.slots_row_stride + entry * keys.slots_column_stride,
                          entry < keys.width);
      } else if (lane == 8 * kBatches) {
        if (keys.lens == nullptr) {
          list.length = keys.width;
        } else {
          ptx::copy_4_async(ptx::shared_address(&list.length), keys.lens + walk.row.token * keys.lens_stride, true);
        }
      }
      walk.tile += walk.row.step;
    }
    __syncwarp();
    ptx::arrive_after_copies(&shared.lists_full[warp][place]);
  }

  // Finds the records of a tile's `count` keys, this lane that of the warp's key lane % 16, and copies their scales.
  __device__ __forceinline__ void locate(Front& front, uint32_t slot, int source, int count) const {
    const DecodeKeys& keys = p.keys[source];
    const int mine = lane % 16;
    const bool valid = (mine / 8 * kProducerWarps + warp) * 8 + mine % 8 < count && slot < keys.num_slots;
    const uint32_t valid_keys = __ballot_sync(~0u, valid);
    if (!valid) slot = 0;
    const uint32_t page =
        static_cast<uint32_t>((static_cast<uint64_t>(slot) * keys.division.multiplier) >> keys.division.shift);
    const uint32_t in_page = slot - page * keys.page_size;
    const uint8_t* begin = keys.cache + static_cast<int64_t>(page) * keys.page_stride;
    const uint8_t* scale = begin + keys.scale_begin + static_cast<int64_t>(in_page) * keys.scale_step;
    const uint32_t to = front.at - lane * 16 + mine / 8 * (kColumnBytes / kBatches) + mine % 8 * 16;
    if (kSame || source == 0) {
      copy_scales(First{}, to, scale, lane, valid);
    } else {
      copy_scales(Second{}, to, scale, lane, valid);
    }
    const uint8_t* data = begin + static_cast<int64_t>(in_page) * keys.data_step;
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
      const auto at = __shfl_sync(~0u, reinterpret_cast<unsigned long long>(data), b * 8 + key);
      front.data[b] = reinterpret_cast<const uint8_t*>(at) + part * 16;
      front.named[b] = (valid_keys >> (b * 8 + key) & 1) != 0;
    }
    static_assert(kBatches == 2);
    if (lane == 0) shared.opened[warp][front.opened % kLists] = (valid_keys & 0xffffu) | source << 16;
    ++front.opened;
    trace(Trace::kOpened);
    front.columns = kSame || source == 0 ? Columns<First>::kCount : Columns<Second>::kCount;
  }

  // Opens the next tile that is not beyond its list's length; false: no more.
  __device__ __forceinline__ bool open(Front& front) {
    for (;;) {
      const int place = front.list % kLists;
      ptx::mbarrier_wait(&shared.lists_full[warp][place], front.list / kLists & 1);
      const TileList& list = shared.lists[warp][place];
      const int source = __shfl_sync(~0u, list.source, 0);
      if (source < 0) return false;
      const int count = __shfl_sync(~0u, min(max(list.length, 0), p.keys[source].width) - list.first, 0);
      const auto slot = static_cast<uint32_t>(list.slots[lane % 16]);
      if (count > 0) locate(front, slot, source, count);
      request((front.list + kLists - 1) % kLists);  // the place that was read the last time
      ++front.list;
      if (count > 0) return true;
    }
  }

  // Copies one column, or nothing after the last tile; a group of copies either way.
  __device__ __forceinline__ void copy_column(Front& front) {
    if (front.columns > 0) {
#pragma unroll
      for (int b = 0; b < kBatches; ++b) {
        ptx::copy_16_async(front.at + b * (kColumnBytes / kBatches), front.data[b], front.named[b]);
        front.data[b] += 64;
      }
      --front.columns;
      advance(front.at, ring_begin());
    } else if (open(front)) {
      advance(front.at, ring_begin());
    }
    ptx::commit_copies();
  }

  __device__ __forceinline__ void hand_over(int stage, int tile_part) const {
    if (!kReadersFence) ptx::fence_async_proxy();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&shared.barriers.keys_full[stage][tile_part]);
  }

  // A column of both batches from the ring into the stage.
  template <class Record>
  __device__ __forceinline__ void widen_column(const uint4 (&piece)[kBatches], Scales (&scales)[kBatches],
                                               const Ring& ring, int column) const {
    if (column == Columns<Record>::kHalf) {
      ptx::mbarrier_wait(&shared.barriers.keys_empty[ring.stage()][1], ring.parity() ^ 1);
    }
    const uint32_t row = ptx::shared_address(shared.keys[ring.stage()]) + (warp * 8 + key) * kRowBytes;
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
      widen(Record{}, piece[b], scales[b], row + b * kProducerWarps * 8 * kRowBytes, key, part, column);
    }
    const int dims = dims_after(Record{}, column);
    if (dims % kPartDims == 0) hand_over(ring.stage(), dims / kPartDims - 1);
  }

  // Before the block's other barriers are ready.
  __device__ __forceinline__ void begin() {
    if (lane < kLists) ptx::mbarrier_init(&shared.lists_full[warp][lane], 32);
    __syncwarp();
#pragma unroll 1
    for (int place = 0; place < kLists - 1; ++place) request(place);
  }

  __device__ __forceinline__ void run() {
    Front front;
    front.at = ring_begin();
    uint32_t at = ring_begin();  // the oldest column
    Ring ring;
    Scales scales[kBatches];
    int source = 0;
    int column = 0, columns = 0;  // of the tile that is widened
    int widened = 0;
#pragma unroll 1
    for (int step = 0;; ++step) {
      uint4 piece[kBatches] = {};
      if (step >= kAhead) {
        ptx::wait_copies<kAhead - 1>();
#pragma unroll
        for (int b = 0; b < kBatches; ++b) piece[b] = ptx::load_shared(at + b * (kColumnBytes / kBatches));
      }
      copy_column(front);  // while the piece is on its way
      if (step < kAhead) continue;
      if (column == columns) {
        __syncwarp();  // the scales and `opened` come from other lanes
        if (widened == front.opened) return;
        const uint32_t opened = shared.opened[warp][widened % kLists];
        source = static_cast<int>(opened >> 16);
#pragma unroll
        for (int b = 0; b < kBatches; ++b) {
          const uint32_t from = at - lane * 16 + b * (kColumnBytes / kBatches);
          scales[b] =
              kSame || source == 0 ? take_scales(First{}, from, key, part) : take_scales(Second{}, from, key, part);
        }
        ++widened;
        column = 0;
        columns = kSame || source == 0 ? Columns<First>::kCount : Columns<Second>::kCount;
        trace(Trace::kColumn);
        ptx::mbarrier_wait(&shared.barriers.keys_empty[ring.stage()][0], ring.parity() ^ 1);
        trace(Trace::kFree);
        if (lane < kBatches) {
          shared.valid[ring.stage()][lane * kProducerWarps + warp] = static_cast<uint8_t>(opened >> (lane * 8));
        }
        __syncwarp();  // their places are free for copies
      } else {
        if (kSame || source == 0) {
          widen_column<First>(piece, scales, ring, column);
        } else {
          widen_column<Second>(piece, scales, ring, column);
        }
        ++column;
        if (column == columns) {
          ring.advance();
          trace(Trace::kWidened);
        }
      }
      advance(at, ring_begin());
    }
  }
};

}  // namespace megamla::cuda
