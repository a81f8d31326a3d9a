// The values warpgroups: O += P V, each for 256 of the 512 dims, and the output of a row.
#pragma once

#include "cuda/prefill_attention/output.cuh"
#include "cuda/prefill_attention/shared.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace megamla::cuda::prefill {

constexpr int kAccumulators = 128;  // 64 heads x 256 dims over 128 threads

struct Values {
  const PrefillParams& p;
  Shared& shared;
  int warpgroup;  // 0, 1
  int warp;       // of the warpgroup
  Shared::Ring ring;
  uint32_t issued_parity = 0;

  __device__ Values(const PrefillParams& params, Shared& s, int thread)
      : p(params),
        shared(s),
        warpgroup(__shfl_sync(~0u, thread / 128, 0)),
        warp(__shfl_sync(~0u, thread % 128 / 32, 0)) {}

  // The first of the thread's two heads of the tile; the other is 8 on.
  __device__ __forceinline__ int head() const { return warp * 16 + ptx::lane_id() / 4; }

  template <int kLater>
  __device__ __forceinline__ void release(int half) const {
    ptx::wgmma_wait<kLater>();
    if (ptx::lane_id() == 0) ptx::mbarrier_arrive(&shared.keys_empty[ring.stage][half]);
  }

  // One half of the dims. A row's first tile overwrites what the accumulators have.
  template <int kHalf>
  __device__ __forceinline__ void half(float (&o)[kAccumulators], const ptx::Descriptor& probabilities,
                                       const ptx::Descriptor& v, bool first) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::wgmma_m64n128k16_mn<kHalf * 64>(o, probabilities.at(step * kStepKeys * 2),
                                           v.at(step * kStepKeys * kRowBytes + kHalf * kHalfBytes),
                                           step > 0 || !first ? 1 : 0);
    }
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void tile(float (&o)[kAccumulators], bool first, bool last, bool nothing_to_do) {
    ptx::mbarrier_wait_closely(&shared.p_full[ring.stage], ring.parity);
    ptx::fence_async_proxy();  // the producers' copies
    if (!first && !nothing_to_do && __any_sync(~0u, shared.rescale[ring.stage][warp] != 0)) {
      const float2 alpha = shared.alpha[ring.stage][warp * 8 + ptx::lane_id() / 4];
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) o[i] *= i / 2 % 2 == 0 ? alpha.x : alpha.y;
    }
    const ptx::Descriptor probabilities(ptx::shared_address(shared.p[ring.stage]), 0, 8 * kRowBytes);
    const ptx::Descriptor v(ptx::shared_address(shared.keys[ring.stage]) + warpgroup * (kBlocks / 2) * kBlockBytes,
                            kBlockBytes, 8 * kRowBytes);
    ptx::pin(o);
    ptx::wgmma_fence();
    half<0>(o, probabilities, v, first);
    // The second half waits until the next tile's Q K^T is under way, and so fills the time of its softmax.
    __syncwarp();  // lane 0 releases the tile, and with it what all lanes have read: rescale, alpha
    release<0>(0);
    if (!last) {
      ptx::mbarrier_wait_closely(&shared.product_issued, issued_parity);
      issued_parity ^= 1;
    }
    ptx::wgmma_fence();
    half<1>(o, probabilities, v, first);
    release<0>(1);
    ptx::pin(o);
    ring.advance();
  }

  __device__ __forceinline__ void finish(const Row& row, bool any_keys, int slot, uint32_t parity,
                                         float (&o)[kAccumulators]) const {
    ptx::mbarrier_wait_closely(&shared.row_full, parity);
    if (!idle(p, row, warp)) {
      const int c = ptx::lane_id() % 4;
      if (warpgroup == 1 && any_keys && shared.rotated[slot] != 0) rotate_back(o, shared.cos_sin[slot], c);
      const int first = head();
      const float factor[2] = {shared.factor[first], shared.factor[first + 8]};
      store_row(p, row.token, row.first_head + first, warpgroup * kGroups, o, factor, c,
                ptx::shared_address(shared.codes[warpgroup * 4 + warp]));
    }
    ptx::mbarrier_arrive(&shared.row_empty);
  }

  __device__ __forceinline__ void run() {
    Row row = row_at(p, 0);
    int length = load_length(p, row);
    int table = 0;
    for (int index = 0; row.any(); ++index) {
      length = clamped(p, length);
      const Row next = row_at(p, index + 1);
      const int next_length = load_length(p, next);
      float o[kAccumulators];
      if (length == 0) {
#pragma unroll
        for (int i = 0; i < kAccumulators; ++i) o[i] = 0;
        ptx::pin(o);  // a branch, not a select each
      }
      const bool nothing_to_do = idle(p, row, warp);
#pragma unroll 1
      for (int begin = 0; begin < length; begin += kTileKeys) {
        tile(o, begin == 0, begin + kTileKeys >= length, nothing_to_do);
      }
      finish(row, length > 0, table, index & 1, o);
      if (length > 0) table = table == Shared::kTables - 1 ? 0 : table + 1;
      row = next;
      length = next_length;
    }
  }
};

}  // namespace megamla::cuda::prefill
