// Producer warps: rows of kv into a swizzled key tile and the heads of Q into theirs, 16 bytes a copy, past the
// registers.
//
// A warp fetches 16 keys of each tile, a row in two copies of 512 bytes. The list of the next tile is read while this
// one waits for its place. Q of a row follows the row's first tile, whose place becomes free a little earlier.
#pragma once

#include "cuda/prefill_attention/tiles.cuh"

namespace megamla::cuda::prefill {

// Of a kernel with the shared memory `Shared`.
template <class Shared>
struct Producer {
  using Ring = typename Shared::Ring;

  const PrefillParams& p;
  Shared& shared;
  int lane;
  int warp;  // of the producers

  // Key tile `begin` .. of the list of a row.
  struct Tile {
    Row row;
    int length;  // of the list
    int begin;
  };
  // Walks the tiles of all rows that have any.
  struct Walk {
    Tile tile;
    int index = 0;  // of the coming row
    int coming_length;

    __device__ __forceinline__ explicit Walk(const PrefillParams& p) : coming_length(load_length(p, row_at(p, 0))) {
      tile.length = tile.begin = 0;
    }
    __device__ __forceinline__ Tile next(const PrefillParams& p) {
      tile.begin += kTileKeys;
      while (tile.begin >= tile.length) {
        tile.row = row_at(p, index);
        if (!tile.row.any()) break;
        tile.length = clamped(p, coming_length);
        tile.begin = 0;
        coming_length = load_length(p, row_at(p, ++index));
      }
      return tile;
    }
  };

  __device__ Producer(const PrefillParams& params, Shared& s, int thread)
      : p(params), shared(s), lane(thread % 32), warp(__shfl_sync(~0u, thread / 32, 0)) {}

  // The row of kv of the lane's key (16 lanes have one).
  __device__ __forceinline__ int load_index(const Tile& tile) const {
    const int entry = tile.begin + warp * kPartKeys + lane;
    int index = -1;
    if (tile.row.any() && lane < kPartKeys && entry < tile.length) {
      index = p.indices[tile.row.token * p.indices_row_stride + entry * p.indices_column_stride];
    }
    return index;
  }

  __device__ __forceinline__ void fetch_keys(int index, const Ring& ring) const {
    const bool mine = static_cast<uint32_t>(index) < p.kv_rows;
    const uint32_t valid = __ballot_sync(~0u, mine);
    const int row = mine ? index : 0;
    const uint16_t* kv = p.kv + lane * 8;
    const uint32_t at = ptx::shared_address(shared.keys[ring.stage]) + warp * kPartKeys * kRowBytes;
    ptx::mbarrier_wait(&shared.keys_empty[ring.stage][warp], ring.parity ^ 1);
#pragma unroll 1
    for (int eight = 0; eight < kPartKeys; eight += 8) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const bool there = (valid >> (eight + i) & 1u) != 0;
        const uint16_t* from = kv + __shfl_sync(~0u, row, eight + i) * p.kv_row_stride;
        const uint32_t to = chunk_address(at + (eight + i) * kRowBytes, i, lane);
        ptx::copy_16_async(to, from, there);  // zeros for an entry that names no row
        ptx::copy_16_async(to + kBlocks / 2 * kBlockBytes, from + format::kHeadDim / 2, there);
      }
    }
    ptx::arrive_after_copies(&shared.keys_full[ring.stage]);
    if (lane == 0) {
      shared.valid[ring.stage][warp] = static_cast<uint16_t>(valid);
      ptx::mbarrier_arrive(&shared.keys_full[ring.stage]);
    }
  }

  // The 8 lanes of a shared-memory phase write one chunk of 8 heads, which the swizzle spreads over all banks; a warp
  // reads 32 bytes of 16 heads.
  __device__ __forceinline__ void fetch_query(const Row& row, uint32_t parity) const {
    const int head = warp * 16 + lane % 8 + lane / 16 * 8;
    const int half = lane / 8 % 2;
    const bool live = row.first_head + head < p.live_heads;
    const QueryStrides strides(p);
    const uint16_t* from =
        p.q + row.token * p.q_token_stride + (live ? row.first_head + head : 0) * strides.head + half * 8;
    const uint32_t at = ptx::shared_address(shared.q) + head * kRowBytes;
    ptx::mbarrier_wait(&shared.q_empty, parity ^ 1);
#pragma unroll 1
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ptx::copy_16_async(chunk_address(at, head % 8, block * 8 + i * 2 + half), from, live);
        from += strides.chunk;
      }
    }
    ptx::arrive_after_copies(&shared.q_full);
  }

  __device__ __forceinline__ void run() const {
    Walk walk(p);
    Tile tile = walk.next(p);
    int index = load_index(tile);
    Ring ring;
    [[maybe_unused]] uint32_t q_parity = 0;
    while (tile.row.any()) {
      const Tile next = walk.next(p);
      const int next_index = load_index(next);
      fetch_keys(index, ring);
      ring.advance();
      if constexpr (Shared::kProducersFetchQuery) {
        if (tile.begin == 0) {
          fetch_query(tile.row, q_parity);
          q_parity ^= 1;
        }
      }
      tile = next;
      index = next_index;
    }
  }
};

}  // namespace megamla::cuda::prefill
