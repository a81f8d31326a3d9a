// One block, or the blocks of one cluster, for a row's 8 or 16 heads; 4 warps, several blocks an SM.
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "cuda/decode_attention/few_heads/kernel.hpp"
#include "cuda/decode_attention/few_heads/loader.cuh"
#include "cuda/decode_attention/few_heads/row_end.cuh"
#include "cuda/launch.hpp"
#include "cuda/ptx/grid.cuh"

namespace megamla::cuda::few_heads {
namespace {

// Registers allow so many.
template <int kEights>
constexpr int kBlocksPerSm = kEights == 1 ? 4 : 3;

template <class First, class Second, int kEights>
struct Block {
  using K = Kinds<First, Second>;
  using SharedT = Shared<kEights, K::kTileKeys>;

  const DecodeParams& p;
  SharedT& shared;
  Lane me;
  uint32_t ring;
  Query<kEights> q;
  Running<kEights> running;
  Sums<kEights> o;

  struct Item {
    int token;
    int first_head;
    uint32_t rank;
  };
  // Asked for anew at the end rather than kept.
  __device__ __forceinline__ Item item() const {
    const uint32_t id = ptx::cluster_id();
    return {static_cast<int>(id >> p.head_tiles_log),
            static_cast<int>(id & ((1u << p.head_tiles_log) - 1)) * SharedT::kHeads, ptx::cluster_rank()};
  }

  __device__ __forceinline__ int last_stage_begin() const { return (p.stages - 1) * K::kStageBytes; }

  // Lengths, slots and q are asked for at the same time, slots as if every list were full, and again if one is not.
  __device__ __forceinline__ void begin(const Loader<First, Second>& loader, const Item& at) const {
    const int lengths[2] = {load_length(p.keys[0], at.token), load_length(p.keys[1], at.token)};
    const ComingPosition position = load_position(p, at.token);
    int guess[2] = {p.keys[0].width, p.keys[1].width};
    Share share;
#pragma unroll 1
    for (bool again = false;; again = true) {
      share = share_of<First, Second>(p, guess[0], guess[1], at.rank);
      loader.fetch_first_slots(share);
      if (!again) fetch_query<kEights>(p, me, at.token, at.first_head, ring + last_stage_begin());
      const int known[2] = {min(max(lengths[0], 0), p.keys[0].width), min(max(lengths[1], 0), p.keys[1].width)};
      if (guess[0] == known[0] && guess[1] == known[1]) break;
      guess[0] = known[0], guess[1] = known[1];
      ptx::wait_all_copies();
    }
    if (threadIdx.x == 0) {
      shared.share = share;
      shared.rotation = rotation_of(p, position);
      shared.row_unit = !K::kSame && share.tiles > share.window_tiles ? 1 / kRatio : 1;
    }
    ptx::wait_all_copies();
    __syncthreads();  // slots, barriers and these are there
  }

  __device__ __forceinline__ void arrange_query() {
    const uint32_t staging = ring + last_stage_begin();
    rotate_query<kEights>(p, shared, me, shared.rotation, staging);
    __syncthreads();
    if (threadIdx.x < SharedT::kHeads) scale_head(p, shared, threadIdx.x);
    __syncthreads();
    take_query<First, Second, kEights>(shared, me, staging, q);
  }

  // Sums of e4m3 keys are in units of 2^-60, sums of e2m1 keys of 2^-6.
  static constexpr float kRatio = kKeyUnshift / kNibbleUnshift;
  __device__ __forceinline__ void change_unit() {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int t = 0; t < 8; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[e][t][i] *= kRatio;
      }
    }
  }

  __device__ __forceinline__ void score(bool first, uint32_t tile, int steps) const {
    const Scores<kEights> scores{me, q, tile, shared.partial[me.warp]};
    if constexpr (K::kRopeBf16) {
      scores.run(First{}, steps);
    } else if constexpr (K::kSame) {
      scores.template run_528<false>(steps);
    } else if (first) {
      scores.template run_528<true>(steps);
    } else {
      scores.run(Second{}, steps);
    }
  }

  template <class Record>
  __device__ __forceinline__ void soften(uint32_t biases, int steps, int index) {
    Softmax<Record, kEights, SharedT>(shared, me, running, o).run(biases, steps, index);
  }

  // Turn `index` asks for the records of tile index + stages - 1; turns below 0 do no more. When a tile is scored, all
  // warps are done with the one before, whose stage is filled again then.
  __device__ __forceinline__ void attend(const Loader<First, Second>& loader) {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      running.maximum[e] = {kNoMaximum, kNoMaximum};
      running.sum[e] = {0, 0};
#pragma unroll
      for (int t = 0; t < 8; ++t) o[e][t][0] = o[e][t][1] = o[e][t][2] = o[e][t][3] = 0;
    }
    const Share& share = shared.share;
    Cursor coming;
#pragma unroll 1
    for (int index = 1 - p.stages; index < share.tiles; ++index, coming.advance(p.stages)) {
      if (index == 0) arrange_query();
      const Cursor at = coming.a_ring_ago(p.stages);
      const Tile t = tile_of<First, Second>(share, index);
      const bool first = K::kSame || t.source == 0;
      const int steps = (t.count + 15) / 16;
      const uint32_t tile = ring + at.stage * K::kStageBytes;
      if (index >= 0) {
        ptx::mbarrier_wait(&shared.full[at.stage], at.round & 1);
        score(first, tile, steps);
        __syncthreads();
        if (!K::kSame && index == share.window_tiles) change_unit();
        if (first) {
          soften<First>(loader.slots_address(at), steps, index);
        } else {
          soften<Second>(loader.slots_address(at), steps, index);
        }
        loader.fetch_slots(share, index + 2 * p.stages - 2, coming.ahead(p.stages - 1, p.stages));
      }
      loader.fetch_records(share, index + p.stages - 1, coming);
      if (index >= 0) {
        const Values<kEights> values{me, o, tile, shared.probabilities};
        if (first) {
          values.run(First{}, steps);
        } else {
          values.run(Second{}, steps);
        }
      }
    }
  }

  __device__ __forceinline__ void end() {
    leave_stats<kEights>(shared, me, running);
    __syncthreads();  // and the stages have been read
    leave_sums<K::kRopeBf16, kEights>(shared, me, o, ring);
    ptx::cluster_barrier();
    const Item at = item();
    const int rank = static_cast<int>(at.rank);
    weigh(p, shared, at.token, at.first_head, rank, p.cluster);
    __syncthreads();
    store_row<kEights>(p, shared, me, at.token, at.first_head, rank, p.cluster, ring);
    ptx::cluster_leave();
  }

  __device__ __forceinline__ void run() {
    const Item at = item();
    if (threadIdx.x < kMostStages) ptx::mbarrier_init(&shared.full[threadIdx.x], kThreads);
    const Loader<First, Second> loader{p, ring, shared.full, p.stages, at.token, me};
    begin(loader, at);
    attend(loader);
    end();
  }
};

template <class First, class Second, int kEights>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm<kEights>)
    decode_attention_few_heads(const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(128) uint8_t memory[];
  ptx::follow_previous();
  using B = Block<First, Second, kEights>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  B block{p,
          *reinterpret_cast<typename B::SharedT*>(memory),
          {warp, lane, lane / 4, lane % 4},
          ptx::shared_address(memory) + kFixedBytes<First, Second, kEights>};
  block.run();
}

using Kernel = void (*)(DecodeParams);

struct Variant {
  Kernel kernel;
  int fixed_bytes;
  int stage_bytes;
  int blocks_per_sm;
};
template <class First, class Second, int kEights>
constexpr Variant kVariant{decode_attention_few_heads<First, Second, kEights>, kFixedBytes<First, Second, kEights>,
                           Kinds<First, Second>::kStageBytes, kBlocksPerSm<kEights>};
template <int kEights>
Variant variant_of(megamla_kv_format window, megamla_kv_format compressed) {
  if (window == MEGAMLA_KV_FP8_584) return kVariant<format::Fp8_584, format::Fp8_584, kEights>;
  if (compressed == MEGAMLA_KV_NVFP4_288) return kVariant<format::Fp8_528, format::Nvfp4_288, kEights>;
  return kVariant<format::Fp8_528, format::Fp8_528, kEights>;
}

// Asked for once for each device and kernel: the answers do not change.
cudaError_t shared_resources(const Variant& variant, plan::ShareDevice* device) {
  static std::mutex mutex;
  static std::map<std::pair<int, Kernel>, plan::ShareDevice> known;
  int current = 0;
  cudaError_t error = cudaGetDevice(&current);
  if (error != cudaSuccess) return error;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find({current, variant.kernel}); found != known.end()) {
    *device = found->second;
    return cudaSuccess;
  }
  *device = {0, 0, 0, variant.blocks_per_sm, variant.fixed_bytes, variant.stage_bytes, kMostStages};
  error = cudaDeviceGetAttribute(&device->sms, cudaDevAttrMultiProcessorCount, current);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&device->shared_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, current);
  }
  if (error == cudaSuccess) {
    int most = 0;
    error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, current);
    device->reserved_bytes = device->shared_bytes - most;
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 variant.fixed_bytes + kMostStages * variant.stage_bytes);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(variant.kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
  }
  if (error == cudaSuccess) known[{current, variant.kernel}] = *device;
  return error;
}

}  // namespace

cudaError_t launch(DecodeParams params, megamla_kv_format window, megamla_kv_format compressed, bool batch_invariant,
                   cudaStream_t stream) {
  const int head_tile = (params.live_heads + (1 << params.head_tiles_log) - 1) >> params.head_tiles_log;
  const Variant variant = head_tile <= 8 ? variant_of<1>(window, compressed) : variant_of<2>(window, compressed);
  plan::ShareDevice device{};
  const cudaError_t error = shared_resources(variant, &device);
  if (error != cudaSuccess) return error;
  const int64_t keys = int64_t{params.keys[0].width} + params.keys[1].width;
  plan::DecodeShares shares = plan::decode_shares({params.items, keys, batch_invariant}, device);
#if defined(MEGAMLA_TUNE)  // for sweeps on a device
  if (const char* blocks = std::getenv("MEGAMLA_FEW_HEADS_BLOCKS")) shares.blocks = std::atoi(blocks);
  if (const char* stages = std::getenv("MEGAMLA_FEW_HEADS_STAGES")) shares.stages = std::atoi(stages);
#endif
  params.cluster = shares.blocks;
  params.cluster_reciprocal = static_cast<uint32_t>(((int64_t{1} << 32) + shares.blocks - 1) / shares.blocks);
  params.stages = shares.stages;

  cudaLaunchAttribute attributes[2] = {{}, overlap_attribute()};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(shares.blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(params.items) * static_cast<unsigned>(shares.blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(device.fixed_bytes + shares.stages * device.stage_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, variant.kernel, params);
}

}  // namespace megamla::cuda::few_heads
