// The values warpgroups: O^T += V^T P^T, each for 256 of the 512 dims, and the output of a row.
#pragma once

#include "cuda/prefill_attention/few_heads/output.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace megamla::cuda::prefill::few_heads {

struct Values {
  const PrefillParams& p;
  Shared& shared;
  Part part;
  Shared::Ring ring;

  __device__ Values(const PrefillParams& params, Shared& s, int thread)
      : p(params),
        shared(s),
        part{__shfl_sync(~0u, thread / 128, 0), __shfl_sync(~0u, thread % 128 / 32, 0), thread % 32} {}

  template <int kLater>
  __device__ __forceinline__ void release(int half) const {
    ptx::wgmma_wait<kLater>();
    if (part.lane == 0) ptx::mbarrier_arrive(&shared.keys_empty[ring.stage][half]);
  }

  __device__ __forceinline__ void tile(Accumulators& o, bool first) {
    ptx::mbarrier_wait_closely(&shared.p_full[ring.stage], ring.parity);
    ptx::fence_async_proxy();  // the producers' copies
    if (!first && shared.rescale[ring.stage] != 0) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float alpha = shared.alpha[ring.stage][head_of(accumulator_head(i), part.lane)];
#pragma unroll
        for (int b = 0; b < kMyBlocks; ++b) o[b][i] *= alpha;
      }
    }
    const ptx::Descriptor v(ptx::shared_address(shared.keys[ring.stage]) + part.warpgroup * kMyBlocks * kBlockBytes,
                            kBlockBytes, 8 * kRowBytes);
    const ptx::Descriptor probabilities(ptx::shared_address(shared.p[ring.stage]), 0, 8 * kRowBytes);
#pragma unroll
    for (int b = 0; b < kMyBlocks; ++b) ptx::pin(o[b]);
    ptx::wgmma_fence();
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int b = half * kHalfBlocks; b < (half + 1) * kHalfBlocks; ++b) {
          ptx::wgmma_m64n16k16<true>(o[b], v.at(b * kBlockBytes + step * kStepKeys * kRowBytes),
                                     probabilities.at(step * kStepKeys * 2), step > 0 || !first ? 1 : 0);
        }
      }
      ptx::wgmma_commit();
    }
    __syncwarp();  // lane 0 releases the tile, and with it what all lanes have read: rescale, alpha
    release<1>(0);
    release<0>(1);
#pragma unroll
    for (int b = 0; b < kMyBlocks; ++b) ptx::pin(o[b]);
    ring.advance();
  }

  __device__ __forceinline__ void run() {
    Row row = row_at(p, 0);
    int length = load_length(p, row);
    int table = 0;
    for (int index = 0; row.any(); ++index) {
      length = clamped(p, length);
      const Row next = row_at(p, index + 1);
      const int next_length = load_length(p, next);
      Accumulators o;
      if (length == 0) {
#pragma unroll
        for (int b = 0; b < kMyBlocks; ++b) {
#pragma unroll
          for (int i = 0; i < 8; ++i) o[b][i] = 0;
          ptx::pin(o[b]);  // a branch, not a select each
        }
      }
#pragma unroll 1
      for (int begin = 0; begin < length; begin += kTileKeys) tile(o, begin == 0);
      ptx::mbarrier_wait_closely(&shared.row_full, index & 1);
      const bool rotated = length > 0 && shared.rotated[table] != 0;
      store_row(p, shared, part, row.token, rotated ? shared.cos_sin[table] : nullptr, o);
      if (length > 0) table = table == Shared::kTables - 1 ? 0 : table + 1;
      ptx::mbarrier_arrive(&shared.row_empty);
      row = next;
      length = next_length;
    }
  }
};

}  // namespace megamla::cuda::prefill::few_heads
