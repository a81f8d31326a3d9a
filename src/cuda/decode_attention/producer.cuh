// Producer warps: raw records through a ring in shared memory, widened into key tiles.
//
// A warp serves two batches of 8 keys of each tile. What it copies and widens at a time is a unit, 256 bytes of its 16
// records in columns of 64 bytes: a tile of fp4 codes, or half a tile of e4m3. The ring holds two units, and a column's
// place is filled anew, from the unit after the next, as soon as it has been widened, whatever tile or row that leads
// into: records take some 3000 clocks to come from memory, and about 32 KB are on their way. A lane reads what it
// copied itself, so nothing is waited for but its own copies; scales and slots alone go through the warp.
//
// An instruction of these warps costs 2.5 clocks where it is one of many that do not depend on each other, and 5 to 10
// in what steers them: what can be is worked out once a tile or a row, and a column is its codes and little else.
#pragma once

#include "cuda/decode_attention/widen.cuh"

namespace megamla::cuda {

// Stands in for the record of an entry that names no key.
__device__ const uint4 no_record[format::Fp8_584::kDataBytes / 16] = {};

template <class First, class Second>
struct Producer {
  static constexpr bool kSame = First::kFormat == Second::kFormat;
  static constexpr int kBatchBytes = kColumnBytes / kBatches;
  static constexpr int kInUnit = 4;  // columns, each a group of copies
  static constexpr uint32_t kEnd = ~0u;

  const DecodeParams& p;
  Shared& shared;
  int key;   // 0 .. 7 of a batch
  int part;  // 0 .. 3
  int lane;
  int warp;  // of the producers

  // The unit that is copied next.
  struct Front {
    const uint8_t* data[kBatches];  // of this lane's piece
    int units = 0;                  // left of the tile
    int list = 0;                   // next to be opened
    int opened = 0;
  };

  __device__ Producer(const DecodeParams& params, Shared& s, int thread)
      : p(params),
        shared(s),
        key(thread % 8),
        part(thread % 32 / 8),
        lane(thread % 32),
        warp(__shfl_sync(~0u, thread / 32, 0)) {}

  __device__ __forceinline__ uint32_t ring_place(int unit) const {
    return ptx::shared_address(shared.raw[warp]) + (unit & 1) * kPlaceBytes;
  }

  __device__ __forceinline__ static int units_of(int source) {
    return kSame || source == 0 ? Columns<First>::kUnits : Columns<Second>::kUnits;
  }

  // Finds out which row is the index-th, and asks for its lengths.
  __device__ __forceinline__ void look_up_row(Walk& walk, int index, int unit) {
    const Row row = row_at(p, shared, index);
    walk.next_token = row.token;
    walk.next_begin = row.begin, walk.next_end = row.end, walk.next_step = row.step;
    walk.next_asked = unit;
    if (!row.any() || lane >= 2) return;
    const DecodeKeys& keys = p.keys[lane];
    int32_t* length = &shared.lengths[warp][index % kLengths][lane];
    if (keys.lens == nullptr) {
      *length = keys.width;
    } else {
      ptx::copy_4_async(ptx::shared_address(length), keys.lens + row.token * keys.lens_stride, true);
    }
  }

  // Goes on to a tile that holds keys as far as one knows; false: no more.
  __device__ __forceinline__ bool next_tile(Walk& walk, int unit) {
    for (;;) {
      if (walk.exact == 0 && unit - walk.asked >= 2) {
        const int32_t* lengths = shared.lengths[warp][walk.row % kLengths];
        walk.window_end = tiles_of(p, 0, lengths[0]);
        walk.end = min(walk.end, p.window_tiles + tiles_of(p, 1, lengths[1]));
        walk.exact = 1;
      }
      if (walk.tile >= walk.window_end) {
        while (walk.tile < p.window_tiles) walk.tile += walk.step;
      }
      if (walk.tile < walk.end) return true;
      if (walk.next_token < 0) return false;
      ++walk.row;
      walk.token = walk.next_token;
      walk.tile = walk.next_begin, walk.end = walk.next_end, walk.step = walk.next_step;
      walk.window_end = p.window_tiles;
      walk.asked = walk.next_asked;
      walk.exact = 0;
      look_up_row(walk, walk.row + 1, unit);
      __syncwarp();
    }
  }

  // Asks for the slots of the next tile. Whoever reads them waits for the group of copies that this is a part of.
  __device__ __forceinline__ void request(Walk& walk, int place, int unit) {
    TileList& list = shared.lists[warp][place];
    if (!next_tile(walk, unit)) {
      if (lane == 0) list.source = -1;
    } else {
      const int source = walk.tile < p.window_tiles ? 0 : 1;
      const DecodeKeys& keys = p.keys[source];
      const int first = (walk.tile - (source == 0 ? 0 : p.window_tiles)) * kTileKeys;
      const int entry = first + (lane / 8 % kBatches * kProducerWarps + warp) * 8 + key;
      if (lane < 8 * kBatches) {
        ptx::copy_4_async(ptx::shared_address(&list.slots[lane]),
                          keys.slots + walk.token * keys.slots_row_stride + entry * keys.slots_column_stride,
                          entry < keys.width);
      }
      if (lane == 0) list.row = walk.row % kLengths, list.first = first, list.source = source;
      walk.tile += walk.step;
    }
  }
  __device__ __forceinline__ void request_next(int place, int unit) {
    Walk walk = shared.walks[warp];
    __syncwarp();
    request(walk, place, unit);
    if (lane == 0) shared.walks[warp] = walk;
  }

  // Finds the records of a tile's `count` keys, this lane that of the warp's key lane % 16, and copies their scales.
  __device__ __forceinline__ void locate(Front& front, uint32_t slot, int source, int count, uint32_t scales) const {
    const DecodeKeys& keys = p.keys[source];
    const int mine = lane % 16;
    const bool valid = (mine / 8 * kProducerWarps + warp) * 8 + mine % 8 < count && slot < keys.num_slots;
    const uint32_t valid_keys = __ballot_sync(~0u, valid);
    const uint32_t page =
        static_cast<uint32_t>((static_cast<uint64_t>(slot) * keys.division.multiplier) >> keys.division.shift);
    const uint32_t in_page = slot - page * keys.page_size;
    const uint8_t* begin = keys.cache + static_cast<int64_t>(page) * keys.page_stride;
    const uint8_t* scale = begin + keys.scale_begin + static_cast<int64_t>(in_page) * keys.scale_step;
    const uint8_t* data = begin + static_cast<int64_t>(in_page) * keys.data_step;
    const auto* nothing = reinterpret_cast<const uint8_t*>(no_record);
    if (!valid) scale = data = nothing;
    const uint32_t to = scales + mine / 8 * kBatchScaleBytes + mine % 8 * 16;
    if (kSame || source == 0) {
      copy_scales(First{}, to, scale, lane);
    } else {
      copy_scales(Second{}, to, scale, lane);
    }
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
      const auto at = __shfl_sync(~0u, reinterpret_cast<unsigned long long>(data), b * 8 + key);
      front.data[b] = reinterpret_cast<const uint8_t*>(at) + part * 16;
    }
    static_assert(kBatches == 2);
    if (lane == 0) shared.opened[warp][front.opened % kLists] = (valid_keys & 0xffffu) | source << 16;
    ++front.opened;
    trace(Trace::kOpened);
    front.units = units_of(source);
  }

  // Opens the next tile that is not beyond its list's length. After the last one, copies go on from nowhere.
  __device__ __forceinline__ void open(Front& front, int unit) {
    for (;;) {
      const TileList& list = shared.lists[warp][front.list % kLists];
      const int source = __shfl_sync(~0u, list.source, 0);
      if (source < 0) {
        if (lane == 0) shared.opened[warp][front.opened % kLists] = kEnd;
#pragma unroll
        for (int b = 0; b < kBatches; ++b) front.data[b] = reinterpret_cast<const uint8_t*>(no_record);
        front.units = 1;
        return;
      }
      const int length = shared.lengths[warp][list.row][source];
      const int count = __shfl_sync(~0u, min(max(length, 0), p.keys[source].width) - list.first, 0);
      const auto slot = static_cast<uint32_t>(list.slots[lane % 16]);
      request_next((front.list + 2) % kLists, unit);
      ++front.list;
      if (count > 0) {
        locate(front, slot, source, count, ring_place(unit) + kMostUnitColumns * kColumnBytes);
        return;
      }
      ptx::wait_all_copies();  // the next one's slots, too
      __syncwarp();
    }
  }

  // Column `column` of the unit that is copied, to `at`.
  __device__ __forceinline__ void copy_column(Front& front, uint32_t at, int column) const {
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
      ptx::copy_16_async(at + b * kBatchBytes, front.data[b], true);
      front.data[b] += 64;
    }
    if (Columns<First>::kExtra && column == kInUnit - 1 && front.units == 0) {  // the last unit of a tile has one more
#pragma unroll
      for (int b = 0; b < kBatches; ++b) ptx::copy_16_async(at + kColumnBytes + b * kBatchBytes, front.data[b], true);
    }
    ptx::commit_copies();
  }

  __device__ __forceinline__ void hand_over(int stage, int tile_part) const {
    if (!kReadersFence) ptx::fence_async_proxy();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&shared.barriers.keys_full[stage][tile_part]);
  }

  __device__ __forceinline__ static void load_column(uint32_t at, uint4 (&piece)[kBatches]) {
#pragma unroll
    for (int b = 0; b < kBatches; ++b) piece[b] = ptx::load_shared(at + b * kBatchBytes);
  }

  // A unit from the ring into the stage: a whole tile of fp4 codes.
  template <class Record>
  __device__ __forceinline__ void widen_unit(std::integral_constant<int, 1>, Front& front, Scales (&scales)[kBatches],
                                             const Ring& ring, uint32_t at, int) const {
    const uint32_t row = ptx::shared_address(shared.keys[ring.stage()]) + (warp * 8 + key) * kRowBytes;
    uint32_t to = first_chunk(Record{}, row, key, part);
#pragma unroll 1
    for (int column = 0; column < kInUnit; ++column) {
      uint4 piece[kBatches];
      ptx::wait_copies<2 * kInUnit - 1>();
      load_column(at, piece);
      if (column == kInUnit / 2) {
        ptx::mbarrier_wait(&shared.barriers.keys_empty[ring.stage()][1], ring.parity() ^ 1);
      }
#pragma unroll
      for (int b = 0; b < kBatches; ++b) {
        widen(Record{}, piece[b], scales[b], to + b * kProducerWarps * 8 * kRowBytes);
      }
      if ((column + 1) * 128 % kPartDims == 0) hand_over(ring.stage(), (column + 1) * 128 / kPartDims - 1);
      copy_column(front, at, column);
      at += kColumnBytes;
      to += 2 * kBlockBytes;
    }
  }

  // Half a tile of e4m3, two columns at a time.
  template <class Record>
  __device__ __forceinline__ void widen_unit(std::integral_constant<int, 2>, Front& front, Scales (&scales)[kBatches],
                                             const Ring& ring, uint32_t at, int half) const {
    const uint32_t row = ptx::shared_address(shared.keys[ring.stage()]) + (warp * 8 + key) * kRowBytes;
    uint32_t to = first_chunk(Record{}, row, key, part) + half * (kBlocks / 2) * kBlockBytes;
#pragma unroll 1
    for (int pair = 0; pair < kInUnit / 2; ++pair) {
      uint4 piece[kBatches];
      ptx::wait_copies<2 * kInUnit - 2>();
      load_column(at, piece);
#pragma unroll
      for (int b = 0; b < kBatches; ++b) {
        widen(Record{}, piece[b], scales[b], to + b * kProducerWarps * 8 * kRowBytes);
      }
      copy_column(front, at, 2 * pair);
      at += kColumnBytes;
      load_column(at, piece);
      if (Columns<Record>::kExtra && pair == 1 && half == 1) {
        uint4 last[kBatches];
        load_column(at + kColumnBytes, last);
#pragma unroll
        for (int b = 0; b < kBatches; ++b) {
          const uint32_t end = row + b * kProducerWarps * 8 * kRowBytes;
          widen_rotated(piece[b], end, key, part, 0);
          widen_rotated(last[b], end, key, part, 1);
        }
      } else {
#pragma unroll
        for (int b = 0; b < kBatches; ++b) {
          widen(Record{}, piece[b], scales[b], to + kBlockBytes + b * kProducerWarps * 8 * kRowBytes);
        }
      }
      const int dims = half * 256 + (pair + 1) * 128;
      if (dims % kPartDims == 0) hand_over(ring.stage(), dims / kPartDims - 1);
      copy_column(front, at, 2 * pair + 1);
      at += kColumnBytes;
      to += 2 * kBlockBytes;
    }
  }

  // A tile's scales, and a stage for it.
  __device__ __forceinline__ void begin_tile(uint32_t opened, Scales (&scales)[kBatches], const Ring& ring,
                                             uint32_t at) const {
    const uint32_t from = at + kMostUnitColumns * kColumnBytes;
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
      scales[b] = kSame || opened >> 16 == 0 ? take_scales(First{}, from + b * kBatchScaleBytes, key, part)
                                             : take_scales(Second{}, from + b * kBatchScaleBytes, key, part);
    }
    trace(Trace::kColumn);
    ptx::mbarrier_wait(&shared.barriers.keys_empty[ring.stage()][0], ring.parity() ^ 1);
    trace(Trace::kFree);
    if (lane < kBatches) {
      shared.valid[ring.stage()][lane * kProducerWarps + warp] = static_cast<uint8_t>(opened >> (lane * 8));
    }
  }

  // Before the block's barriers are ready.
  __device__ __forceinline__ void begin() {
    Walk walk{};
    walk.row = -1;
    walk.step = 1;
    walk.exact = 1;
    look_up_row(walk, 0, -4);
#pragma unroll 1
    for (int place = 0; place < 2; ++place) request(walk, place, -4);
    if (lane == 0) shared.walks[warp] = walk;
    ptx::commit_copies();
  }

  __device__ __forceinline__ void run() {
    Front front;
    Ring ring;
    Scales scales[kBatches];
    int source = 0;
    int units = 0;    // left of the tile that is widened
    int widened = 0;  // tiles, with this one
    ptx::wait_copies<0>();
#pragma unroll 1
    for (int unit = -2;; ++unit) {
      const uint32_t place = ring_place(unit);
      uint32_t at = place + lane * 16;
      ptx::wait_copies<2 * kInUnit - 1>();
      __syncwarp();  // scales, slots and `opened` come from other lanes
      if (unit >= 0) {
        if (units == 0) {
          const uint32_t opened = __shfl_sync(~0u, shared.opened[warp][widened % kLists], 0);
          if (opened == kEnd) break;
          source = static_cast<int>(opened >> 16);
          units = units_of(source);
          ++widened;
          begin_tile(opened, scales, ring, place);
          __syncwarp();  // the places of its scales are free for copies
        } else {
          ptx::mbarrier_wait(&shared.barriers.keys_empty[ring.stage()][1], ring.parity() ^ 1);
        }
      }
      if (front.units == 0) open(front, unit);
      --front.units;
      if (unit < 0) {
#pragma unroll 1
        for (int column = 0; column < kInUnit; ++column, at += kColumnBytes) copy_column(front, at, column);
        continue;
      }
      --units;
      const int half = units == 0 ? 1 : 0;
      if (kSame || source == 0) {
        widen_unit<First>(std::integral_constant<int, Columns<First>::kUnits>{}, front, scales, ring, at, half);
      } else {
        widen_unit<Second>(std::integral_constant<int, Columns<Second>::kUnits>{}, front, scales, ring, at, half);
      }
      if (units == 0) {
        ring.advance();
        trace(Trace::kWidened);
      }
    }
    ptx::wait_copies<0>();
  }
};

}  // namespace megamla::cuda
