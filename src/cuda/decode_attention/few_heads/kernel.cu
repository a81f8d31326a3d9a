// One block, or the blocks of one cluster, for a row's 8 or 16 heads; every crew of warps attends its own keys.
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "cuda/decode_attention/few_heads/kernel.hpp"
#include "cuda/decode_attention/few_heads/loader.cuh"
#include "cuda/decode_attention/few_heads/row_end.cuh"
#include "cuda/decode_attention/few_heads/softmax_of_four.cuh"
#include "cuda/decode_attention/few_heads/softmax_of_two.cuh"
#include "cuda/launch.hpp"
#include "cuda/ptx/grid.cuh"

namespace megamla::cuda::few_heads {
namespace {

template <class First, class Second, int kEights>
struct Block {
  using A = Arena<First, Second, kEights>;
  static constexpr int kCrew = kCrewWarps<kEights>;
  const DecodeParams& p;
  Shared<kEights>& shared;
  uint32_t arenas;
  Lane me;
  int warps;

  struct Item {
    int token;
    int first_head;
    int rank;
  };
  // Asked for anew at the end rather than kept.
  __device__ __forceinline__ Item item() const { return item_of(ptx::cluster_id()); }
  __device__ __forceinline__ Item item_of(uint32_t id) const {
    return {static_cast<int>(id >> p.head_tiles_log),
            static_cast<int>(id & ((1u << p.head_tiles_log) - 1)) * Shared<kEights>::kHeads,
            static_cast<int>(ptx::cluster_rank())};
  }
  __device__ __forceinline__ uint32_t arena() const { return arenas + me.warp * A::kBytes; }

  // What a row begins with, called to the L2: slots, lengths, the position and q. None of it is looked at yet.
  __device__ __forceinline__ void call_item(uint32_t id) const {
    const Item at = item_of(id);
    const auto thread = static_cast<int>(threadIdx.x);
    constexpr int kSectorSlots = 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const DecodeKeys& keys = p.keys[i];
      if (thread * kSectorSlots < keys.width) {
        ptx::prefetch_l2(keys.slots + at.token * keys.slots_row_stride +
                         thread * kSectorSlots * keys.slots_column_stride);
      }
      if (thread == i && keys.lens != nullptr) ptx::prefetch_l2(keys.lens + at.token * keys.lens_stride);
    }
    if (thread == 2 && p.cos_sin != nullptr) {
      ptx::prefetch_l2(static_cast<const uint8_t*>(p.positions) +
                       at.token * p.positions_stride * (p.positions_64 != 0 ? 8 : 4));
    }
    constexpr int kChunks = format::kHeadDim / 16;
    for (int i = thread; i < Shared<kEights>::kHeads * kChunks; i += 32 * warps) {
      const int head = at.first_head + i / kChunks;
      if (head < p.live_heads) {
        ptx::prefetch_l2(p.q + at.token * p.q_token_stride + head * p.q_head_stride + i % kChunks * p.q_chunk_stride);
      }
    }
  }

  // One step: the crew's next 16 keys, whose records are there.
  template <class Record>
  __device__ __forceinline__ void attend(uint32_t raw, int stage, uint32_t valid, int turn, Running& running,
                                         Sums<kEights>& o, int& unit) const {
    constexpr bool kE2m1 = Record::kFormat == MEGAMLA_KV_NVFP4_288;
    // What is worked out from the lane takes no registers from step to step, where there are none.
    int lane = me.lane;
    if (kEights == 2 && A::kSame) ptx::forget(lane);
    const Lane fresh{me.warp, me.part, lane, lane >> 2, lane & 3};
    const Values<First, Second, kEights> values{fresh, o, unit};
    if (kE2m1 && unit != kNibbleShift) {
      if (unit != kNoUnit) values.turn_to_fragments(arena());
      values.change_unit(kNibbleShift);
    }
    float logits[kEights][4] = {};
    const Scores<First, Second, kEights> scores{fresh, ptx::shared_address(&shared.query)};
    KeptFragments<kEights> kept;
    scores.run(Record{}, raw, arena(), logits, kept);
    if (kE2m1) __syncwarp();  // what was widened is there, and the record has been read
    const uint32_t parts = arena() + A::kParts + stage * A::kPartsStep;
    ptx::forget(lane);
    float2 factor = *reinterpret_cast<const float2*>(&shared.logit_factor[Softmax<kEights>::head(me.part, lane)]);
    if (kE2m1) factor.x *= 1 << kNibbleShift, factor.y *= 1 << kNibbleShift;
    const Softmax<kEights> softmax = softmax_of(lane, parts);
    uint2 b[kEights];
    // Rotated dims of fp8_584 take bf16 probabilities, which hold 1 exactly and have half the rounding error below it:
    // the first maxima are followed exactly, as a few keys decide a row that has no more.
    softmax.run(logits, factor, valid, A::kRopeBf16 && turn < 2 ? 0 : kMaximumSlack, turn == 0, running, o, b);
    values.run(Record{}, raw, arena(), kept, b);
    softmax.finish(turn);
  }
  __device__ __forceinline__ Softmax<kEights> softmax_of(int lane, uint32_t parts) const {
    if constexpr (kEights == 1) {
      const int other = me.part == 0 ? 1 : -1;
      return {me, parts, parts + other * A::kBytes, shared.read + me.warp, shared.read + me.warp + other};
    } else {
      const int crew = me.warp / kCrew;
      return {me.warp,
              me.part,
              lane,
              parts - me.part * A::kBytes,
              A::kBytes,
              arenas + crew * (kCrew * A::kBytes) + A::kProbabilities,
              shared.shrink[crew]};
    }
  }

  __device__ __forceinline__ void run() const {
    constexpr int kStages = A::kStages;
    if (p.cluster > 1) ptx::cluster_arrive_plain();
    const Item at = item();
    const int crews = warps / kCrew * p.cluster;
    const int crew = at.rank * (warps / kCrew) + me.warp / kCrew;
    Loader<First, Second, kEights> loader{p, me, arena(), at.token, shared.lengths[me.warp]};
    loader.pieces = first_piece<First, kEights>(me) | first_piece<Second, kEights>(me) << 16;
    if (!A::kSame || kEights == 2) ptx::forget(loader.pieces);
    loader.deal_widths(crew);
#pragma unroll
    for (int k = 0; k < kStages; ++k) loader.copy_slots(loader.begin + k, k);
    const ComingPosition position = load_position(p, at.token);
    int lengths[2] = {load_length(p.keys[0], at.token), load_length(p.keys[1], at.token)};
    ComingQuery<kEights> q;
    fetch_query<kEights>(p, me, warps, at.token, at.first_head, q);
    const Rotation rotation = rotation_of(p, position);
    const QueryAngles angles = fetch_angles(me, rotation);
#pragma unroll
    for (int i = 0; i < 2; ++i) lengths[i] = __shfl_sync(~0u, min(max(lengths[i], 0), p.keys[i].width), 0);
    ptx::wait_all_copies();
    if (loader.deal_lengths(crew, crews, lengths[0], lengths[1])) {
#pragma unroll
      for (int k = 0; k < kStages; ++k) loader.copy_slots(loader.begin + k, k);
      ptx::wait_all_copies();
    }
    __syncwarp();
#pragma unroll 1
    for (int k = 0; k < kStages; ++k) loader.fill(loader.begin + k, k);
    // For the block that comes after this one.
    if (p.cluster == 1 && ptx::cluster_id() + p.items_at_once < p.items) call_item(ptx::cluster_id() + p.items_at_once);
    if (threadIdx.x == 0) shared.rotation = rotation;
    if (me.lane == 0) ptx::mbarrier_init(shared.read + me.warp, 1);
    arrange_query<First, Second, kEights>(p, shared, me, warps, rotation, angles, q);
    __syncthreads();

    Running running{{kNoMaximum, kNoMaximum}, {0, 0}};
    Sums<kEights> o;
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int t = 0; t < kTiles<kEights>; ++t) o[e][t][0] = o[e][t][1] = o[e][t][2] = o[e][t][3] = 0;
    }
    int unit = kNoUnit;
    int stage = 0;
#pragma unroll 1
    for (int s = loader.begin; s < loader.end; ++s) {
      ptx::wait_copies<kStages - 1>();
      __syncwarp();
      const uint32_t valid = loader.valid >> (2 * stage) & 3;
      const int turn = s - loader.begin;
      if (A::kSame || s < loader.window_steps) {
        attend<First>(loader.first_stage(stage), stage, valid, turn, running, o, unit);
      } else {
        attend<Second>(loader.second_stage(stage), stage, valid, turn, running, o, unit);
      }
      __syncwarp();
      loader.fill(s + kStages, stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }

    const RowEnd<First, Second, kEights> end{p, shared, me, warps, arenas};
    end.leave(running, o, unit);
    __syncthreads();
    const Item done = item();
    end.run(done.token, done.first_head, done.rank, p.cluster);
  }
};

template <class First, class Second, int kEights>
__global__ void __launch_bounds__(32 * kMostWarps, 1)
    decode_attention_few_heads(const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(256) uint8_t memory[];
  ptx::let_next_begin();
  const uint32_t lane = threadIdx.x % 32;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int warps = static_cast<int>(blockDim.x) / 32;
  // Arenas first: their rows are aligned to 256 bytes.
  const Block<First, Second, kEights> block{
      p,
      *reinterpret_cast<Shared<kEights>*>(memory + warps * Arena<First, Second, kEights>::kBytes),
      ptx::shared_address(memory),
      {warp, warp % kCrewWarps<kEights>, static_cast<int>(lane), static_cast<int>(lane / 4),
       static_cast<int>(lane % 4)},
      warps};
  // While the kernel before this one may still run. A block before a later one has called it already.
  if (p.calls_ahead != 0 && ptx::cluster_id() < p.items_at_once) block.call_item(ptx::cluster_id());
  ptx::wait_for_previous();
  block.run();
}

using Kernel = void (*)(DecodeParams);

struct Variant {
  Kernel kernel;
  int crew_warps;
  int first_cost;
  int second_cost;
  int arena_bytes;  // of a warp
  int shared_bytes;

  LaunchShape shape(int64_t rows, const plan::DecodeShares& shares) const {
    return overlapping({rows * shares.blocks, 32 * shares.warps,
                        static_cast<size_t>(shares.warps * arena_bytes + shared_bytes), shares.blocks});
  }
};
// Two blocks of half as many warps share an SM: 228 KB, of which a block takes 1 KB.
template <class First, class Second, int kEights>
constexpr bool kHalvesAnSm = kMostWarps / 2 * Arena<First, Second, kEights>::kBytes + kSharedBytes<kEights> <=
                             (228 / 2 - 1) * 1024;
static_assert(kHalvesAnSm<format::Fp8_528, format::Nvfp4_288, 1> && kHalvesAnSm<format::Fp8_528, format::Fp8_528, 1> &&
              kHalvesAnSm<format::Fp8_584, format::Fp8_584, 1> && kHalvesAnSm<format::Fp8_528, format::Nvfp4_288, 2> &&
              kHalvesAnSm<format::Fp8_528, format::Fp8_528, 2> && kHalvesAnSm<format::Fp8_584, format::Fp8_584, 2>);

template <class First, class Second, int kEights>
constexpr Variant kVariant{decode_attention_few_heads<First, Second, kEights>,
                           kCrewWarps<kEights>,
                           kStepCost<First, Second>,
                           kStepCost<Second, Second>,
                           Arena<First, Second, kEights>::kBytes,
                           kSharedBytes<kEights>};
template <int kEights>
Variant variant_of(megamla_kv_format window, megamla_kv_format compressed) {
  if (window == MEGAMLA_KV_FP8_584) return kVariant<format::Fp8_584, format::Fp8_584, kEights>;
  if (compressed == MEGAMLA_KV_NVFP4_288) return kVariant<format::Fp8_528, format::Nvfp4_288, kEights>;
  return kVariant<format::Fp8_528, format::Fp8_528, kEights>;
}

cudaError_t ask_device(const Variant& variant, int device, plan::ShareDevice* shares) {
  *shares = {0, variant.crew_warps, {}};
  cudaError_t error = cudaDeviceGetAttribute(&shares->sms, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(variant.shape(1, {1, kMostWarps}).shared_bytes));
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(variant.kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared);
  for (int n = 2; error == cudaSuccess && n <= plan::kMostShares; ++n) {
    error = most_clusters(variant.shape(1, {n, kMostWarps}), variant.kernel, &shares->clusters[static_cast<size_t>(n)]);
  }
  return error;
}

// Asked for once for each device and kernel: the answers do not change.
cudaError_t share_device(const Variant& variant, plan::ShareDevice* device) {
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
  error = ask_device(variant, current, device);
  if (error == cudaSuccess) known[{current, variant.kernel}] = *device;
  return error;
}

int steps_of(const DecodeKeys& keys) { return (keys.width + kStepKeys - 1) / kStepKeys; }
int row_steps(const DecodeParams& params) { return steps_of(params.keys[0]) + steps_of(params.keys[1]); }

}  // namespace

void cut_into_eights(DecodeParams& params) {
  const uint32_t tokens = params.items >> params.head_tiles_log;
  while (params.live_heads > 8 << params.head_tiles_log) ++params.head_tiles_log;
  params.items = tokens << params.head_tiles_log;
}

cudaError_t attends_eights(const DecodeParams& params, megamla_kv_format window, megamla_kv_format compressed,
                           bool batch_invariant, bool* yes) {
  DecodeParams cut = params;
  cut_into_eights(cut);
  plan::ShareDevice device{};
  const cudaError_t error = share_device(variant_of<1>(window, compressed), &device);
  *yes = error == cudaSuccess && plan::fully_shared({cut.items, row_steps(params), batch_invariant}, device);
#if defined(MEGAMLA_TUNE)  // for sweeps on a device
  if (const char* eights = std::getenv("MEGAMLA_FEW_HEADS_EIGHTS")) *yes = std::atoi(eights) != 0;
#endif
  return error;
}

cudaError_t launch(DecodeParams params, megamla_kv_format window, megamla_kv_format compressed, bool batch_invariant,
                   cudaStream_t stream) {
  const int heads = (params.live_heads + (1 << params.head_tiles_log) - 1) >> params.head_tiles_log;
  const Variant variant = heads > 8 ? variant_of<2>(window, compressed) : variant_of<1>(window, compressed);
  plan::ShareDevice device{};
  const cudaError_t error = share_device(variant, &device);
  if (error != cudaSuccess) return error;
  plan::DecodeShares shares = plan::decode_shares({params.items, row_steps(params), batch_invariant}, device);
#if defined(MEGAMLA_TUNE)  // for sweeps on a device
  if (const char* blocks = std::getenv("MEGAMLA_FEW_HEADS_BLOCKS")) shares.blocks = std::atoi(blocks);
  if (const char* warps = std::getenv("MEGAMLA_FEW_HEADS_WARPS")) shares.warps = std::atoi(warps);
#endif
  params.cluster = shares.blocks;
  // A kernel like this one before it leaves no room for that if its blocks have all SMs to themselves.
  params.calls_ahead = shares.warps < kMostWarps || 2 * int64_t{params.items} * shares.blocks <= device.sms ? 1 : 0;
#if defined(MEGAMLA_TUNE)
  if (const char* calls = std::getenv("MEGAMLA_FEW_HEADS_CALLS")) params.calls_ahead = std::atoi(calls);
#endif
  const int crews = shares.blocks * (shares.warps / variant.crew_warps);
  const int row_cost = variant.first_cost * steps_of(params.keys[0]) + variant.second_cost * steps_of(params.keys[1]);
  params.crew_cost = row_cost / crews;
  params.dearer_crews = row_cost % crews;
  params.items_at_once = static_cast<uint32_t>(device.sms * (kMostWarps / shares.warps));
  const LaunchConfig config(variant.shape(params.items, shares), stream);
  return cudaLaunchKernelEx(config.get(), variant.kernel, params);
}

}  // namespace megamla::cuda::few_heads
