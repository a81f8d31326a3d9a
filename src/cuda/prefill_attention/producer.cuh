// Producer warps: rows of kv into a swizzled key tile and the heads of Q into theirs, 16 bytes a copy, past the
// registers.
//
// A warp fetches 16 keys of each tile, in two halves: of each key 256 dims in one copy, 16 lanes at dim 128 half, 16 at
// 256 + 128 half. The list of the next tile is read while this one waits for its place, and addresses are worked out
// before. Q of a row, with the row's cosines and sines, comes with the row's first tile.
#pragma once

#include "cuda/attention/rotation.cuh"
#include "cuda/prefill_attention/tiles.cuh"

namespace megamla::cuda::prefill {

// Of a kernel with the shared memory `Shared`.
template <class Shared>
struct Producer {
  using Ring = typename Shared::Ring;

  const PrefillParams& p;
  Shared& shared;
  int lane;
  int warp;     // of the producers
  uint64_t kv;  // of row 0, from the lane's first dim on
  uint32_t to;  // of the warp's first key, the lane's chunk of the first half in stage 0

  // Walks the tiles of all rows that have any.
  struct Walk {
    Row row;
    int length = 0;  // of the row's list
    int begin = 0;   // of the tile
    int index = 0;   // of the coming row
    int coming_length;
    ComingPosition position;  // of the row, and of the coming one
    ComingPosition coming_position;
    int first;            // entry of the lane in a tile
    const int32_t* list;  // the lane's entry (16 lanes have one)

    __device__ __forceinline__ Walk(const PrefillParams& p, int first_entry)
        : coming_length(load_length(p, row_at(p, 0))),
          coming_position(load_position(p, row_at(p, 0).token)),
          first(first_entry),
          list(p.indices) {}
    __device__ __forceinline__ void next(const PrefillParams& p) {
      begin += kTileKeys;
      list += kTileKeys * p.indices_column_stride;
      while (begin >= length) {
        row = row_at(p, index);
        if (!row.any()) break;
        length = clamped(p, coming_length);
        begin = 0;
        list = p.indices + row.token * p.indices_row_stride + first * p.indices_column_stride;
        coming_length = load_length(p, row_at(p, ++index));
        position = coming_position;
        coming_position = load_position(p, row_at(p, index).token);
      }
    }
    // The row of kv of the lane's key.
    __device__ __forceinline__ int load_index() const { return begin + first < length ? *list : -1; }
  };

  __device__ Producer(const PrefillParams& params, Shared& s, int thread)
      : p(params), shared(s), lane(thread % 32), warp(__shfl_sync(~0u, thread / 32, 0)) {
    kv = reinterpret_cast<uint64_t>(p.kv) + lane % 16 * 16 + lane / 16 * format::kHeadDim;
    asm volatile("" : "+l"(kv));  // else nvcc adds the lane's part to each product below
    const int block = lane / 16 * (kBlocks / 2) + lane / 8 % 2;
    to = ptx::shared_address(shared.keys[0]) + block * kBlockBytes + warp * kStepKeys * kRowBytes + lane % 8 * 16;
  }

  // Half `kHalf` of the keys at `from`; of those without a bit in `valid`, zeros (`kAll`: all have one).
  template <int kHalf, bool kAll>
  __device__ __forceinline__ void copy(const uint64_t (&from)[kStepKeys], uint32_t stage, uint32_t valid) const {
#pragma unroll
    for (int k = 0; k < kStepKeys; ++k) {
      const uint32_t place = (stage ^ (k % 8 << 4)) + k * kRowBytes + kHalf * kHalfBytes;
      const auto* dims = reinterpret_cast<const char*>(from[k]) + kHalf * kHalfBlocks * kRowBytes;
      if (kAll) {
        ptx::copy_16_async(place, dims);
      } else {
        ptx::copy_16_async(place, dims, (valid >> k & 1u) != 0);
      }
    }
  }
  template <int kHalf>
  __device__ __forceinline__ void fetch_half(const uint64_t (&from)[kStepKeys], uint32_t valid,
                                             const Ring& ring) const {
    const uint32_t stage = to + ring.stage * kTileBytes;
    ptx::mbarrier_wait(&shared.keys_empty[ring.stage][kHalf], ring.parity ^ 1);
    if ((valid & 0xffffu) == 0xffffu) {
      copy<kHalf, true>(from, stage, valid);
    } else {
      copy<kHalf, false>(from, stage, valid);
    }
    ptx::arrive_after_copies(&shared.keys_full[ring.stage][kHalf]);
  }

  // `row`: of the lane's key, 0 where it is not valid. `between`: called between the halves.
  template <class Between>
  __device__ __forceinline__ void fetch_keys(uint32_t row, uint32_t valid, const Ring& ring, Between&& between) const {
    uint64_t from[kStepKeys];
#pragma unroll
    for (int k = 0; k < kStepKeys; ++k) from[k] = kv + __shfl_sync(~0u, row, k) * static_cast<uint64_t>(p.kv_row_bytes);
    fetch_half<0>(from, valid, ring);
    if (lane == 0) {
      shared.valid[ring.stage][warp] = static_cast<uint16_t>(valid);
      ptx::mbarrier_arrive(&shared.keys_full[ring.stage][0]);
    }
    between();
    fetch_half<1>(from, valid, ring);
  }

  // Q's place becomes free with the last product of the row before. Of two stages the one for the first keys is free by
  // half then; of three it has been free for long.
  static constexpr bool kQueryBetweenHalves = Shared::kStages == 2;
  // Q: of 64 heads a warp fetches 16, of 16 heads every fourth chunk of 16 dims. In one copy 8 lanes read 32 bytes of
  // every other of 8 heads, whole sectors of the L2, which the swizzle spreads over all banks.
  static constexpr bool kHeadsByWarps = Shared::kHeads > 16;
  __device__ __forceinline__ int query_head() const {
    return (kHeadsByWarps ? warp * 16 : 0) + lane / 16 * 8 + lane % 8 / 2 * 2 + lane / 8 % 2;
  }
  // Half of the dims.
  __device__ __forceinline__ void fetch_query_half(const uint16_t* from, int64_t chunk_stride, uint32_t place,
                                                   bool live, int half) const {
    constexpr int kChunks = kHeadsByWarps ? 4 : 1;  // of a block
    const int first = kHeadsByWarps ? 0 : warp;
#pragma unroll
    for (int i = 0; i < kBlocks / kHalves; ++i) {
      const int block = i / kHalfBlocks * kBlocks / 2 + i % kHalfBlocks;
      const uint16_t* dims = from + (block * 4 + first) * chunk_stride;
#pragma unroll
      for (int k = 0; k < kChunks; ++k) {
        const int chunk = (first + k) * 2 + lane % 2;
        ptx::copy_16_async(place + block * Shared::kQueryBlockBytes + ((chunk ^ query_head() % 8) << 4), dims, live);
        dims += chunk_stride;
      }
    }
    ptx::arrive_after_copies(&shared.q_full[half]);
  }
  __device__ __forceinline__ void fetch_query(const Row& row, const ComingPosition& position, int table,
                                              uint32_t parity) const {
    const int head = query_head();
    const bool live = row.first_head + head < p.live_heads;
    const QueryStrides strides(p);
    const uint16_t* from =
        p.q + row.token * p.q_token_stride + (live ? row.first_head + head : 0) * strides.head + lane % 2 * 8;
    uint32_t place = ptx::shared_address(shared.q) + head * kRowBytes;
    ptx::mbarrier_wait(&shared.q_empty, parity ^ 1);
#pragma unroll 1
    for (int half = 0; half < kHalves; ++half) {
      fetch_query_half(from, strides.chunk, place, live, half);
      from += kHalfBlocks * 4 * strides.chunk;
      place += kHalfBlocks * Shared::kQueryBlockBytes;
      if (half == 0) fetch_rotation(position, table);
    }
  }
  // The row's cosines and sines.
  __device__ __forceinline__ void fetch_rotation(const ComingPosition& position, int table) const {
    if (warp != 0) return;
    const Rotation rotation = rotation_of(p, position);
    if (rotation.cos_sin != nullptr && lane < format::kRopeDim / 4) {
      ptx::copy_16_async(ptx::shared_address(shared.cos_sin[table]) + lane * 16, rotation.cos_sin + lane * 4);
    }
    if (lane != 0) return;
    shared.rotated[table] = rotation.cos_sin != nullptr ? 1 : 0;
    shared.outside[table] = rotation.outside ? 1 : 0;
    ptx::mbarrier_arrive(&shared.q_full[1]);
  }
  // Calls the warp's part of a row's Q to the L2: a chunk of 16 dims a lane, 4 heads in 128 bytes.
  __device__ __forceinline__ void call_query(const Row& row) const {
    if (!row.any() || p.q_chunked == 0) return;
    const int first = row.first_head + (kHeadsByWarps ? warp * 16 : warp * 4);
    const uint16_t* from = p.q + row.token * p.q_token_stride + first * format::kQChunkDims +
                           lane * static_cast<int64_t>(p.heads) * format::kQChunkDims;
#pragma unroll
    for (int i = 0; i < (kHeadsByWarps ? 4 : 1); ++i) {
      if (first + i * 4 < p.live_heads) ptx::prefetch_l2(from + i * 64);
    }
  }

  // Fetches the tile that `walk` is at, with the rows `index`, and moves on to the next one; false: there was none.
  __device__ __forceinline__ bool step(Walk& walk, int index, int& next_index, Ring& ring, uint32_t& q_parity,
                                       int& table) const {
    const Row row = walk.row;
    if (!row.any()) return false;
    const bool first = walk.begin == 0;
    // These rows are looked at before the next ones are asked for: ptxas waits for both loads.
    const bool mine = static_cast<uint32_t>(index) < p.kv_rows;
    const uint32_t valid = __ballot_sync(~0u, mine);  // of 16 keys, twice
    const uint32_t key_row = mine ? index : 0;
    const ComingPosition position = walk.position;
    walk.next(p);
    next_index = walk.load_index();
    const auto query = [&] {
      fetch_query(row, position, table, q_parity);
      q_parity ^= 1;
      table = table == Shared::kTables - 1 ? 0 : table + 1;
      call_query(row_at(p, walk.index));
    };
    fetch_keys(key_row, valid, ring, [&] {
      if (first && kQueryBetweenHalves) query();
    });
    if (first && !kQueryBetweenHalves) query();
    ring.advance();
    return true;
  }

  __device__ __forceinline__ void run() const {
    Walk walk(p, warp * kStepKeys + lane % kStepKeys);
    walk.next(p);
    // Two variables in turn: what is on its way is not to be moved.
    int even = walk.load_index();
    int odd = -1;
    Ring ring;
    uint32_t q_parity = 0;
    int table = 0;
    while (step(walk, even, odd, ring, q_parity, table) && step(walk, odd, even, ring, q_parity, table)) {
    }
  }
};

}  // namespace megamla::cuda::prefill
