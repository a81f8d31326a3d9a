// A warp writes kRows rows. Dims without rotation: every row in turn, 16 dims a lane. The rotated 64 dims: all rows at
// once, four lanes a row, so that the rotation does not keep 28 lanes waiting; where a row goes, all at once, too.
#include <algorithm>

#include "core/tensor.hpp"
#include "cuda/kv_insert.hpp"
#include "cuda/launch.hpp"
#include "cuda/ptx/grid.cuh"
#include "cuda/record_encode.cuh"
#include "cuda/vector_access.cuh"
#include "format/page.hpp"
#include "format/rope.hpp"
#include "plan/insert_rows.hpp"

namespace megamla::cuda {
namespace {

constexpr int kWarps = 8;  // of a block
constexpr int kBlocksPerSm = 3;
constexpr int kLanes = 32;
constexpr int kPartBytes = 2 * kPartDims;

struct InsertArgs {
  const uint16_t* latent;
  int64_t latent_stride;
  bool latent_aligned;
  IndexList positions;
  const float* cos_sin;  // null: no rotation
  int64_t cos_sin_stride;
  bool cos_sin_aligned;
  const int64_t* slots;
  megamla_kv_cache cache;
  format::PageGeometry geometry;
  plan::InsertRule rule;
  int64_t rows;
  unsigned long long* skipped;  // null: not counted
};

// A part's codes and scale to their places. `there`: this lane stores; all lanes of the warp call.
template <class Part>
__device__ void store_part(format::Fp8_528, const Part& part, int p, format::SlotBytes<uint8_t> to, bool there) {
  constexpr int kShare = format::Fp8_528::kScaleGroup / kPartDims;
  const E4m3Part encoded = encode_e4m3<kShare>(part);
  if (!there) return;
  reinterpret_cast<uint4*>(to.data)[p] = encoded.codes;
  if (p % kShare == 0) to.scale[p / kShare] = encoded.scale;
}

template <class Part>
__device__ void store_part(format::Nvfp4_288, const Part& part, int p, format::SlotBytes<uint8_t> to, bool there) {
  const E2m1Part encoded = encode_e2m1(part);
  if (!there) return;
  reinterpret_cast<uint2*>(to.data)[p] = encoded.codes;
  to.scale[p] = encoded.scale;
}

__device__ void store_part(format::Fp8_584, const BitsPart& part, int p, format::SlotBytes<uint8_t> to, bool there) {
  constexpr int kShare = format::Fp8_584::kScaleGroup / kPartDims;
  const E4m3Part encoded = encode_e4m3<kShare>(part);
  if (!there) return;
  reinterpret_cast<uint4*>(to.data)[p] = encoded.codes;
  if (p % kShare == 0) to.scale[p / kShare] = encoded.scale;
}

// The rotated dims stay bf16; the padding byte behind the scales is 0.
__device__ void store_part(format::Fp8_584, const FloatPart& part, int p, format::SlotBytes<uint8_t> to, bool there) {
  if (!there) return;
  uint32_t words[kPartDims / 2];
#pragma unroll
  for (int i = 0; i < kPartDims / 2; ++i) {
    words[i] = format::to_bf16(part.x[2 * i]).bits | (uint32_t{format::to_bf16(part.x[2 * i + 1]).bits} << 16);
  }
  auto* bf16 = reinterpret_cast<uint4*>(to.data + format::kNopeDim) + 2 * (p - kNopeParts);
  bf16[0] = {words[0], words[1], words[2], words[3]};
  bf16[1] = {words[4], words[5], words[6], words[7]};
  if (p == kNopeParts) to.scale[format::Fp8_584::kScaleGroups] = 0;
}

// `row`: of the latent; part p of it.
__device__ BitsPart load_part(const InsertArgs& a, const uint16_t* row, int p) {
  BitsPart part;
  load_run<kPartBytes>(row + p * kPartDims, a.latent_aligned, part.pairs);
  return part;
}

// Rotation of part q of the rotated dims.
__device__ void rotate_part(const InsertArgs& a, int64_t table_row, int q, FloatPart& part) {
  constexpr int kPairs = kPartDims / 2;
  const float* cosines = a.cos_sin + table_row * a.cos_sin_stride + q * kPairs;
  uint32_t c[kPairs];
  uint32_t s[kPairs];
  load_run<4 * kPairs>(cosines, a.cos_sin_aligned, c);
  load_run<4 * kPairs>(cosines + format::kRopeDim / 2, a.cos_sin_aligned, s);
  const bool round = a.rule.writer == MEGAMLA_WRITER_WINDOW;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const format::Pair y =
        format::rotate({part.x[2 * j], part.x[2 * j + 1]}, __uint_as_float(c[j]), __uint_as_float(s[j]));
    part.x[2 * j] = round ? format::round_to_bf16(y.x0) : y.x0;
    part.x[2 * j + 1] = round ? format::round_to_bf16(y.x1) : y.x1;
  }
}

struct Target {
  format::SlotBytes<uint8_t> bytes;  // null: nothing is written
  int64_t table_row;
};

// Where row `row` goes. Counts the refused rows of the warp.
__device__ Target find_target(const InsertArgs& a, int64_t row, bool exists) {
  plan::InsertTarget target{-1, 0, false};
  if (exists) {
    const int64_t position = a.positions.data == nullptr ? 0 : a.positions[row];
    target = plan::insert_target(a.rule, __ldg(reinterpret_cast<const long long*>(a.slots) + row), position);
  }
  const unsigned refused = __ballot_sync(kFullWarp, target.refused);
  if (refused != 0 && a.skipped != nullptr && threadIdx.x % kLanes == 0) atomicAdd(a.skipped, __popc(refused));
  if (target.slot < 0) return {{nullptr, nullptr}, 0};
  return {format::row_bytes(a.cache, a.geometry, target.slot / a.cache.page_size, target.slot % a.cache.page_size),
          target.table_row};
}

__device__ Target of_lane(const Target& target, int lane) {
  const auto data = __shfl_sync(kFullWarp, reinterpret_cast<uint64_t>(target.bytes.data), lane);
  const auto scale = __shfl_sync(kFullWarp, reinterpret_cast<uint64_t>(target.bytes.scale), lane);
  return {{reinterpret_cast<uint8_t*>(data), reinterpret_cast<uint8_t*>(scale)},
          __shfl_sync(kFullWarp, target.table_row, lane)};
}

template <class Record, int kRows>
__global__ void __launch_bounds__(kWarps* kLanes, kBlocksPerSm) insert_rows(const InsertArgs a) {
  ptx::follow_previous();
  static_assert(kRows * kRopeParts <= kLanes);
  constexpr int kAhead = kRows < 2 ? kRows : 2;  // rows of a warp that are on their way
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t w = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes; w * kRows < a.rows; w += warps) {
    const int64_t first = w * kRows;
    // Everything that does not wait for the slots is asked for first.
    const int last = static_cast<int>(min(a.rows - first, int64_t{kRows})) - 1;  // rows behind it are this one
    const auto load = [&](int r, int p) {
      return load_part(a, a.latent + (first + min(r, last)) * a.latent_stride, p);
    };
    BitsPart nope[kAhead];
#pragma unroll
    for (int r = 0; r < kAhead; ++r) nope[r] = load(r, lane);
    const int rope_row = lane / kRopeParts % kRows;
    const int rope_part = lane % kRopeParts;
    FloatPart rope = widen(load(rope_row, kNopeParts + rope_part));

    const Target target = find_target(a, first + lane, lane < kRows && first + lane < a.rows);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Target to = of_lane(target, r);
      store_part(Record{}, nope[r % kAhead], lane, to.bytes, to.bytes.data != nullptr && lane < kNopeParts);
      if (r + kAhead < kRows) nope[r % kAhead] = load(r + kAhead, lane);
    }
    const Target to = of_lane(target, rope_row);
    const bool there = to.bytes.data != nullptr && lane < kRows * kRopeParts;
    if (there && a.cos_sin != nullptr) rotate_part(a, to.table_row, rope_part, rope);
    __syncwarp();
    store_part(Record{}, rope, kNopeParts + rope_part, to.bytes, there);
  }
}

template <class Record, int kRows>
Status launch_rows(const InsertArgs& a, int device, cudaStream_t stream) {
  const int64_t blocks = (a.rows + kWarps * kRows - 1) / (kWarps * kRows);
  return launch("kv_insert", overlapping({std::min<int64_t>(blocks, 64 * multiprocessors(device)), kWarps * kLanes}),
                stream, insert_rows<Record, kRows>, a);
}

}  // namespace

Status kv_insert(const megamla_kv_insert_params& p, const megamla_exec& exec) {
  InsertArgs a{};
  a.latent = data<const uint16_t>(p.latent);
  a.latent_stride = p.latent.stride[0];
  a.latent_aligned = rows_aligned(a.latent, 2 * a.latent_stride);
  a.positions = {present(p.positions) ? p.positions.data : nullptr, p.positions.dtype == MEGAMLA_I64};
  a.cos_sin = present(p.cos_sin) ? data<const float>(p.cos_sin) : nullptr;
  a.cos_sin_stride = p.cos_sin.stride[0];
  a.cos_sin_aligned = rows_aligned(a.cos_sin, 4 * a.cos_sin_stride);
  a.slots = data<const int64_t>(p.slot_mapping);
  a.cache = p.cache;
  a.geometry = format::page_geometry(p.cache);
  a.rule = {static_cast<megamla_kv_writer>(p.writer), p.compress_ratio, format::num_slots(p.cache),
            present(p.cos_sin) ? p.cos_sin.shape[0] : -1};
  a.rows = std::min(p.latent.shape[0], p.slot_mapping.shape[0]);
  if (present(p.skipped_rows)) {
    a.skipped = data<unsigned long long>(p.skipped_rows);
    MEGAMLA_CUDA_CALL("kv_insert", cudaMemsetAsync(a.skipped, 0, sizeof(int64_t), exec.stream));
  }
  const bool many = a.rows > 8192;  // else as many warps as there are rows
  const int device = p.cache.cuda_device;
  return format::with_record(static_cast<megamla_kv_format>(p.cache.format), [&](auto record) {
    using Record = decltype(record);
    return many ? launch_rows<Record, 8>(a, device, exec.stream) : launch_rows<Record, 1>(a, device, exec.stream);
  });
}

}  // namespace megamla::cuda
