// Producer warps: raw records through a ring in shared memory, widened into key tiles.
//
// A warp serves two batches of 8 keys of each tile. What it copies and widens at a time is a unit, 256 bytes of its 16
// records in pairs of columns of 64 bytes: a tile of fp4 codes, or half a tile of e4m3. The ring holds two units, and a
// pair's place is filled anew, from the unit after the next, as soon as it has been widened, whatever tile or row that
// leads into: records take some 3000 clocks to come from memory, and about 32 KB are on their way. A lane reads what it
// copied itself, so nothing is waited for but its own copies; scales and slots alone go through the warp.
//
// An instruction of these warps costs 2.5 clocks where it is one of many that do not depend on each other, and 5 to 10
// in what steers them: what can be is worked out once a tile or a row, and a column is its codes and little else.
#pragma once

#include "cuda/decode_attention/widen.cuh"

namespace megamla::cuda {

template <class First, class Second>
struct Producer {
  static constexpr bool kSame = First::kFormat == Second::kFormat;
  static constexpr int kBatchBytes = kColumnBytes / kBatches;
  static constexpr int kBatchRowBytes = kProducerWarps * 8 * kRowBytes;
  static constexpr int kPairs = 2;  // of columns in a unit, each a group of copies
  static constexpr uint32_t kEnd = ~0u;

  const DecodeParams& p;
  Shared& shared;
  uint32_t lane;
  int warp;  // of the producers

  __device__ __forceinline__ int key() const { return static_cast<int>(lane % 8); }   // of a batch
  __device__ __forceinline__ int part() const { return static_cast<int>(lane / 8); }  // 0 .. 3

  // A tile on its way, in a word: the list that it is of, the place of its row's lengths, and either how many keys it
  // has at most or, where the lengths were not known in time, which of the list's tiles it is. kEnd: no more tiles.
  static constexpr int kRowAt = 1, kExactAt = 4, kValueAt = 5;
  static_assert(kLengths == 1 << (kExactAt - kRowAt));

  int left = 0;  // of the tiles whose slots are asked for one after the other
  // The unit that is copied next.
  struct Front {
    const uint8_t* data[kBatches];  // of this lane's piece
    // False for an entry that names no key and after the last tile: zeros come, and nothing is read. (One record of
    // zeros for all of them would be a line of the L2 that all multiprocessors ask for at once: 60 us.)
    bool named[kBatches];
    int between = 0;    // from its piece of a column to that of the other column of a pair
    int units = 0;      // left of the tile
    uint32_t list = 0;  // next to be opened: its place
  };

  __device__ Producer(const DecodeParams& params, Shared& s, int thread)
      : p(params), shared(s), lane(static_cast<uint32_t>(thread) % 32), warp(__shfl_sync(~0u, thread / 32, 0)) {}

  __device__ __forceinline__ uint32_t ring_place(int unit) const {
    return ptx::shared_address(shared.raw[warp]) + (unit & 1) * kPlaceBytes;
  }

  __device__ __forceinline__ static int units_of(int source) {
    return kSame || source == 0 ? Columns<First>::kUnits : Columns<Second>::kUnits;
  }

  // Asks for the lengths of the index-th row: lanes 0 and 1.
  __device__ __forceinline__ void ask_length(int token, int index) const {
    const DecodeKeys& keys = p.keys[lane];
    int32_t* length = &shared.lengths[warp][index % kLengths][lane];
    if (keys.lens == nullptr) {
      *length = keys.width;
    } else {
      ptx::copy_4_async(ptx::shared_address(length), keys.lens + token * keys.lens_stride, true);
    }
  }

  // Finds out which row is the index-th, and asks for its lengths.
  __device__ __forceinline__ void look_up_row(Walk& walk, int index, int unit) {
    const Row row = row_at(p, shared, index);
    walk = {row.token, row.begin, row.end, index, unit, row.step, {0, 0}};
    if (row.any() && lane < 2) ask_length(row.token, index);
  }

  // The keys of the tile whose slots came first.
  __device__ __forceinline__ int first_count() const {
    const uint32_t tile = shared.tiles_asked[warp][0];
    return count_of(static_cast<int>(tile & 1), static_cast<int>(tile >> kValueAt), 0);
  }
  // Of tile `number` of a list, of the row whose lengths lie at `place`.
  __device__ __forceinline__ int count_of(int source, int number, uint32_t place) const {
    const int length = shared.lengths[warp][place][source];
    return __shfl_sync(~0u, min(max(length, 0), p.keys[source].width) - number * kTileKeys, 0);
  }

  // Goes on to tiles that hold keys as far as one knows, of a list; false: no more.
  __device__ __forceinline__ bool next_run(int unit) {
    Walk walk = shared.walks[warp][0];
    Walk next = shared.walks[warp][1];
    __syncwarp();
    while (walk.token >= 0) {
      const bool exact = unit - walk.asked >= 2;
      const int32_t* lengths = shared.lengths[warp][walk.number % kLengths];
      const int window = exact ? lengths[0] : p.keys[0].width;
      const int compressed = exact ? lengths[1] : p.keys[1].width;
      if (walk.tile >= tiles_of(p, 0, window)) {
        while (walk.tile < p.window_tiles) walk.tile += walk.step;
      }
      const int source = walk.tile < p.window_tiles ? 0 : 1;
      const int before = source == 0 ? 0 : p.window_tiles;
      const int length = source == 0 ? window : compressed;
      const int end = min(walk.end, before + tiles_of(p, source, length));
      if (walk.tile < end) {
        const DecodeKeys& keys = p.keys[source];
        const int first = walk.tile - before;
        const int number = walk.number % kLengths;
        if (walk.step == 1) {
          left = end - walk.tile, walk.tile = end;
        } else {
          while (walk.tile < end) walk.tile += walk.step, ++left;
        }
        const int entry = first * kTileKeys + (lane / 8 % kBatches * kProducerWarps + warp) * 8 + key();
        const int step = walk.step * kTileKeys;
        shared.requests[warp][lane] = {
            keys.slots + walk.token * keys.slots_row_stride + entry * keys.slots_column_stride, keys.width - entry,
            exact ? min(length, keys.width) - first * kTileKeys : first};
        if (lane == 0) {
          shared.request_steps[warp] = {step * keys.slots_column_stride, exact ? -step : walk.step,
                                        static_cast<uint32_t>(source | number << kRowAt | (exact ? 1 << kExactAt : 0))};
        }
        break;
      }
      walk = next;
      if (walk.token >= 0) look_up_row(next, walk.number + 1, unit);
      __syncwarp();
    }
    if (lane == 0) shared.walks[warp][0] = walk, shared.walks[warp][1] = next;
    __syncwarp();
    return left > 0;
  }

  // Asks for the slots of the next tile. Whoever reads them waits for the group of copies that this is a part of.
  __device__ __forceinline__ void request(uint32_t place, int unit) {
    uint32_t& tile = shared.tiles_asked[warp][place];
    if (left == 0 && !next_run(unit)) {
      if (lane == 0) tile = kEnd;
      return;
    }
    const RequestStep step = shared.request_steps[warp];
    Request& mine = shared.requests[warp][lane];
    const Request now = mine;
    if (lane < 8 * kBatches) {
      ptx::copy_4_async(ptx::shared_address(&shared.slots[warp][place][lane]), now.slots, now.entries > 0);
    }
    if (lane == 0) tile = step.kind | static_cast<uint32_t>(min(now.keys, 1 << 26)) << kValueAt;
    const int tile_entries = (step.kind >> kExactAt & 1) != 0 ? step.keys : -step.keys * kTileKeys;
    mine = {now.slots + step.slots, now.entries + tile_entries, now.keys + step.keys};
    --left;
  }

  // Finds the records of a tile's `count` keys, this lane that of the warp's key lane % 16, and copies their scales.
  __device__ __forceinline__ void locate(Front& front, uint32_t slot, int source, int count, int unit) const {
    const DecodeKeys& keys = p.keys[source];
    const int mine = static_cast<int>(lane % 16);
    const int in_tile = (mine / 8 * kProducerWarps + warp) * 8 + mine % 8;
    const bool valid = static_cast<int>(in_tile < count) & static_cast<int>(slot < keys.num_slots);
    const uint32_t valid_keys = __ballot_sync(~0u, valid);
    if (!valid) slot = 0;
    const uint32_t page =
        static_cast<uint32_t>((static_cast<uint64_t>(slot) * keys.division.multiplier) >> keys.division.shift);
    const uint32_t in_page = slot - page * keys.page_size;
    const uint8_t* begin = keys.cache + static_cast<int64_t>(page) * keys.page_stride;
    const uint8_t* scale = begin + keys.scale_begin + static_cast<int64_t>(in_page) * keys.scale_step;
    const uint8_t* data = begin + static_cast<int64_t>(in_page) * keys.data_step;
    const uint32_t to =
        ring_place(unit) + kMostUnitColumns * kColumnBytes + mine / 8 * kBatchScaleBytes + mine % 8 * 16;
    if (kSame || source == 0) {
      copy_scales(First{}, to, scale, static_cast<int>(lane), valid);
    } else {
      copy_scales(Second{}, to, scale, static_cast<int>(lane), valid);
    }
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
      const auto at = __shfl_sync(~0u, reinterpret_cast<unsigned long long>(data), b * 8 + key());
      front.data[b] = reinterpret_cast<const uint8_t*>(at) + part() * (units_of(source) == 1 ? 16 : 32);
      front.named[b] = (valid_keys >> (b * 8 + key()) & 1) != 0;
    }
    static_assert(kBatches == 2);
    trace(Trace::kOpened);
    front.units = units_of(source);
    front.between = front.units == 1 ? 64 : 16;
    if (lane == 0) shared.opened[warp][unit & 1] = (valid_keys & 0xffffu) | static_cast<uint32_t>(source) << 16;
  }

  // Opens the next tile that is not beyond its list's length. After the last one, copies go on from nowhere.
  __device__ __forceinline__ void open(Front& front, int unit) {
    for (;;) {
      const uint32_t tile = __shfl_sync(~0u, shared.tiles_asked[warp][front.list], 0);
      if (tile == kEnd) {
#pragma unroll
        for (int b = 0; b < kBatches; ++b) front.named[b] = false, front.data[b] = p.keys[0].cache;
        front.units = 1;
        if (lane == 0) shared.opened[warp][unit & 1] = kEnd;
        return;
      }
      const int source = static_cast<int>(tile & 1);
      int count = static_cast<int>(tile >> kValueAt);
      if ((tile >> kExactAt & 1) == 0) count = count_of(source, count, tile >> kRowAt & (kLengths - 1));
      const auto slot = static_cast<uint32_t>(shared.slots[warp][front.list][lane % 16]);
      request((front.list + 2) % kLists, unit);
      front.list = (front.list + 1) % kLists;
      if (count > 0) return locate(front, slot, source, count, unit);
      ptx::wait_all_copies();  // the next one's slots, too
      __syncwarp();
    }
  }

  // A pair of columns of the unit that is copied, to `at`.
  __device__ __forceinline__ void copy_pair(Front& front, uint32_t at, int pair) const {
    const bool last = Columns<First>::kExtra && pair == kPairs - 1 && front.units == 0;
    if (last) {  // of a tile: three columns of 64 bytes
#pragma unroll
      for (int b = 0; b < kBatches; ++b) {
        front.data[b] -= part() * 16;
        ptx::copy_16_async(at + 2 * kColumnBytes + b * kBatchBytes, front.data[b] + 128, front.named[b]);
      }
    }
    const int between = last ? 64 : front.between;
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
      ptx::copy_16_async(at + b * kBatchBytes, front.data[b], front.named[b]);
      ptx::copy_16_async(at + kColumnBytes + b * kBatchBytes, front.data[b] + between, front.named[b]);
      front.data[b] += 128;
    }
    ptx::commit_copies();
  }

  // Until 128 dims of the stage may be written.
  __device__ __forceinline__ void wait_for_stage(const Ring& ring, int dims) const {
    ptx::mbarrier_wait(&shared.barriers.keys_empty[ring.stage()][dims], ring.parity() ^ 1);
  }

  __device__ __forceinline__ void hand_over(int stage, int tile_part) const {
    if (!kReadersFence) ptx::fence_async_proxy();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&shared.barriers.keys_full[stage][tile_part]);
  }

  // Pair `pair` of a unit from the ring into the stage. Codes of fp4, whose first chunk goes to `to`: 256 dims.
  template <class Record>
  __device__ __forceinline__ void widen_pair(std::integral_constant<int, 1>, Scales (&scales)[kBatches],
                                             const Ring& ring, uint32_t at, uint32_t to, int pair) const {
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      uint4 piece[kBatches];
#pragma unroll
      for (int b = 0; b < kBatches; ++b) piece[b] = ptx::load_shared(at + column * kColumnBytes + b * kBatchBytes);
      wait_for_stage(ring, pair * 2 + column);
#pragma unroll
      for (int b = 0; b < kBatches; ++b) {
        widen(Record{}, piece[b], scales[b], to + column * 2 * kBlockBytes + b * kBatchRowBytes);
      }
      if ((pair * 2 + column + 1) * 128 % kPartDims == 0) {
        hand_over(ring.stage(), (pair * 2 + column + 1) * 128 / kPartDims - 1);
      }
    }
  }
  // Of e4m3: 128 dims. The last ones of fp8_584 are 64 of e4m3, then 64 of bf16.
  template <class Record>
  __device__ __forceinline__ void widen_pair(std::integral_constant<int, 2>, Scales (&scales)[kBatches],
                                             const Ring& ring, uint32_t at, uint32_t to, int pair) const {
    wait_for_stage(ring, pair);
    if (Columns<Record>::kExtra && pair == 2 * kPairs - 1) {
      uint32_t row = ptx::shared_address(shared.keys[ring.stage()]) + (warp * 8 + key()) * kRowBytes;
#pragma unroll 1
      for (int b = 0; b < kBatches; ++b, at += kBatchBytes, row += kBatchRowBytes) {
        widen_half_groups(ptx::load_shared(at), b == 0 ? scales[0].low : scales[1].low, row, key(), part());
        widen_rotated(ptx::load_shared(at + kColumnBytes), row, key(), part(), 0);
        widen_rotated(ptx::load_shared(at + 2 * kColumnBytes), row, key(), part(), 1);
      }
    } else {
      uint4 piece[kBatches][2];
#pragma unroll
      for (int b = 0; b < kBatches; ++b) {
#pragma unroll
        for (int i = 0; i < 2; ++i) piece[b][i] = ptx::load_shared(at + i * kColumnBytes + b * kBatchBytes);
      }
#pragma unroll
      for (int b = 0; b < kBatches; ++b) widen(Record{}, piece[b], scales[b], to + b * kBatchRowBytes);
    }
    if ((pair + 1) * 128 % kPartDims == 0) hand_over(ring.stage(), (pair + 1) * 128 / kPartDims - 1);
  }

  // A unit from the ring into the stage: a tile of fp4 codes, or half a tile of e4m3.
  template <class Record>
  __device__ __forceinline__ void widen_unit(Front& front, Scales (&scales)[kBatches], const Ring& ring, uint32_t at,
                                             int half) const {
    constexpr int kUnits = Columns<Record>::kUnits;
    constexpr int kPairDims = format::kHeadDim / kUnits / kPairs;
    const int first = kUnits == 1 ? 0 : half * kPairs;
    const uint32_t row = ptx::shared_address(shared.keys[ring.stage()]) + (warp * 8 + key()) * kRowBytes;
    uint32_t to = first_chunk(row, key(), part()) + first * (kPairDims / 64) * kBlockBytes;
#pragma unroll 1
    for (int pair = 0; pair < kPairs; ++pair) {
      ptx::wait_copies<2 * kPairs - 1>();
      widen_pair<Record>(std::integral_constant<int, kUnits>{}, scales, ring, at, to, first + pair);
      copy_pair(front, at, pair);
      at += 2 * kColumnBytes;
      to += kPairDims / 64 * kBlockBytes;
    }
  }

  // A tile's scales, and a stage for it.
  __device__ __forceinline__ void begin_tile(uint32_t opened, Scales (&scales)[kBatches], const Ring& ring,
                                             uint32_t at) const {
    const uint32_t from = at + kMostUnitColumns * kColumnBytes;
    if (kSame || opened >> 16 == 0) {
#pragma unroll
      for (int b = 0; b < kBatches; ++b) scales[b] = take_scales(First{}, from + b * kBatchScaleBytes, key(), part());
    } else {
#pragma unroll
      for (int b = 0; b < kBatches; ++b) scales[b] = take_scales(Second{}, from + b * kBatchScaleBytes, key(), part());
    }
    trace(Trace::kColumn);
    wait_for_stage(ring, 0);
    trace(Trace::kFree);
    if (lane == 0) {  // who hands over
#pragma unroll
      for (int b = 0; b < kBatches; ++b) {
        shared.valid[ring.stage()][b * kProducerWarps + warp] = static_cast<uint8_t>(opened >> (b * 8));
      }
    }
  }

  // The first three tiles of the block's first row are asked for before anything else is looked after: by lanes 0 ..
  // 15, 16 .. 31 and 0 .. 15. Where, while the kernel before may still run; their slots are called to the L2.
  static constexpr int kFirst = 3;
  struct FirstTiles {
    int token;
    int count;                // of those that there are at full widths
    const int32_t* slots[2];  // null: none
  };
  __device__ __forceinline__ FirstTiles first_tiles() const {
    const Row row = row_at(p, shared, 0);
    FirstTiles first{row.token, 0, {nullptr, nullptr}};
    if (!row.any()) return first;
    first.count = min(max(row.end - row.begin + row.step - 1, 0) / row.step, kFirst);
    const int key_of_tile = (static_cast<int>(lane) / 8 % kBatches * kProducerWarps + warp) * 8 + key();
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int place = static_cast<int>(lane) / 16 + 2 * k;
      const int tile = row.begin + place * row.step;
      if (place >= first.count) continue;
      const int source = tile < p.window_tiles ? 0 : 1;
      const int number = source == 0 ? tile : tile - p.window_tiles;
      const DecodeKeys& keys = p.keys[source];
      const int entry = number * kTileKeys + key_of_tile;
      if (lane % 16 == 0) {
        shared.tiles_asked[warp][place] = static_cast<uint32_t>(source) | static_cast<uint32_t>(number) << kValueAt;
      }
      if (entry >= keys.width) continue;
      first.slots[k] = keys.slots + row.token * keys.slots_row_stride + entry * keys.slots_column_stride;
      ptx::prefetch_l2(first.slots[k]);
    }
    return first;
  }
  // Before the block's barriers are ready.
  __device__ __forceinline__ void ask(const FirstTiles& first) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t place = lane / 16 + 2 * k;
      if (place < kFirst) {
        ptx::copy_4_async(ptx::shared_address(&shared.slots[warp][place][lane % 16]),
                          first.slots[k] != nullptr ? first.slots[k] : p.keys[0].slots, first.slots[k] != nullptr);
      }
    }
    if (first.token >= 0 && lane < 2) ask_length(first.token, 0);
    ptx::commit_copies();
  }

  // Goes on behind the first row's first `asked` tiles. Whoever opens a tile asks for the one after the next: that of
  // the first tile is left to this where it has been opened before.
  __device__ __forceinline__ void begin_walk(int asked, int unit) {
    {
      const Row row = row_at(p, shared, 0);
      if (lane == 0) {
        shared.walks[warp][0] = {0, 0, 0, 0, -4, 1, {0, 0}};
        shared.walks[warp][1] = {row.token, row.begin + asked * row.step, row.end, 0, -4, row.step, {0, 0}};
      }
    }
    __syncwarp();
#pragma unroll 1
    for (uint32_t place = asked; place < (asked == 0 ? 2 : kFirst); ++place) request(place, unit);
    if (asked == kFirst) return;
    ptx::commit_copies();
    ptx::wait_all_copies();  // the slots of the next tile
    __syncwarp();
  }

  // The first two units. Records of the first tile, if it has keys, are asked for before the walk begins.
  __device__ __forceinline__ void begin_ring(const FirstTiles& first, Front& front) {
    ptx::wait_copies<0>();
    __syncwarp();
    const int count = first.count > 0 ? first_count() : 0;
    const int asked = count > 0 ? first.count : 0;
#pragma unroll 1
    for (int unit = -2; unit < 0; ++unit) {
      if (unit == -2 && asked > 0) {
        const auto source = static_cast<int>(__shfl_sync(~0u, shared.tiles_asked[warp][0], 0) & 1);
        front.list = 1;
        locate(front, static_cast<uint32_t>(shared.slots[warp][0][lane % 16]), source, count, unit);
      } else {
        if (unit == -2 || asked > 0) begin_walk(asked, unit);
        if (front.units == 0) open(front, unit);
      }
      --front.units;
      uint32_t at = ring_place(unit) + lane * 16;
#pragma unroll 1
      for (int pair = 0; pair < kPairs; ++pair, at += 2 * kColumnBytes) copy_pair(front, at, pair);
    }
  }

  __device__ __forceinline__ void run(const FirstTiles& first) {
    Front front;
    begin_ring(first, front);
    Ring ring;
    Scales scales[kBatches];
    int units = 0;  // left of the tile that is widened; and its list << 4, in the same register
#pragma unroll 1
    for (int unit = 0;; ++unit) {
      ptx::forget(lane), ptx::forget(warp);  // what follows from them needs no registers in between
      const uint32_t place = ring_place(unit);
      ptx::wait_copies<2 * kPairs - 1>();
      __syncwarp();  // scales and slots come from other lanes
      if ((units & 15) == 0) {
        const uint32_t opened = __shfl_sync(~0u, shared.opened[warp][unit & 1], 0);
        if (opened == kEnd) break;
        const auto source = static_cast<int>(opened >> 16);
        units = units_of(source) | source << 4;
        begin_tile(opened, scales, ring, place);
        __syncwarp();  // the places of its scales are free for copies
      }
      if (front.units == 0) open(front, unit);
      --front.units;
      ptx::forget(lane);
      const uint32_t at = place + lane * 16;
      --units;
      const int half = (units & 15) == 0 ? 1 : 0;
      if (kSame || units >> 4 == 0) {
        widen_unit<First>(front, scales, ring, at, half);
      } else {
        widen_unit<Second>(front, scales, ring, at, half);
      }
      if (half == 1) {
        ring.advance();
        trace(Trace::kWidened);
      }
    }
    ptx::wait_copies<0>();
    if (shares_a_row(p)) offer_places(ring);
  }

  // Tells the blocks of the cluster where this one takes their units of a shared row: raw records and keys have done
  // their part. Units of bf16 are half as long: a stage is enough, and the last tile's is still in use.
  __device__ __forceinline__ void offer_places(const Ring& ring) const {
    ptx::named_barrier<3, 32 * kProducerWarps>();
    if (warp != 0) return;
    const bool packed = packs_units(p);
    const Ring last{ring.tiles - 1};
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      wait_for_stage(ring, i);
      if (!packed && ring.tiles > 0) ptx::mbarrier_wait(&shared.barriers.keys_empty[last.stage()][i], last.parity());
    }
    const auto rank = static_cast<int>(ptx::cluster_rank());
    const uint32_t item = p.whole_items + ptx::cluster_id();
    const int units = Units(p, static_cast<int>(item & ((1u << p.head_tiles_log) - 1)) * kTileHeads).count();
    if (lane == 0) {
      const int mine = in_turns(p, units - rank + p.cluster - 1);
      ptx::mbarrier_expect(&shared.barriers.places_full, p.cluster * sizeof(uint32_t));
      ptx::mbarrier_expect(&shared.barriers.sums_full, p.cluster * kTileHeads * sizeof(float2));
      ptx::mbarrier_expect(&shared.barriers.units_full,
                           mine * p.cluster * (packed ? kMostUnitBytes / 2 : kMostUnitBytes));
    }
    __syncwarp();
    ptx::cluster_wait();  // all blocks' barriers are ready
    if (lane < static_cast<uint32_t>(p.cluster)) {
      ptx::store_cluster_async(ptx::cluster_address(ptx::shared_address(&shared.unit_places[rank]), lane),
                               ptx::shared_address(shared.keys[packed ? ring.stage() : 0]),
                               ptx::cluster_address(ptx::shared_address(&shared.barriers.places_full), lane));
    }
    trace(Trace::kOffered);
  }
};

}  // namespace megamla::cuda
