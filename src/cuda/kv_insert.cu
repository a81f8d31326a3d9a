// Two ways, by the number of rows. Few: a block writes a row, four dims a thread, so that little waits for anything.
// Many: a warp writes kRows rows. Dims without rotation: every row in turn, 16 dims a lane. The rotated 64 dims: all
// rows at once, four lanes a row, so that the rotation does not keep 28 lanes waiting; where a row goes, all at once,
// too.
#include <algorithm>
#include <type_traits>

#include "core/tensor.hpp"
#include "cuda/kv_insert.hpp"
#include "cuda/launch.hpp"
#include "cuda/ptx/grid.cuh"
#include "cuda/record_encode.cuh"
#include "cuda/vector_access.cuh"
#include "format/page.hpp"
#include "format/rope.hpp"
#include "plan/divisor.hpp"
#include "plan/insert_rows.hpp"

namespace megamla::cuda {
namespace {

constexpr int kLanes = 32;

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
  plan::Divisor page_size;
  format::PageGeometry geometry;
  plan::InsertRule rule;
  int64_t rows;
  unsigned long long* skipped;  // null: not counted
};

// --- where a row goes ---

struct Target {
  format::SlotBytes<uint8_t> bytes;  // null: nothing is written
  int64_t table_row;
  bool refused;
};

__device__ Target find_target(const InsertArgs& a, int64_t slot, int64_t position) {
  const plan::InsertTarget target = plan::insert_target(a.rule, slot, position);
  if (target.slot < 0) return {{nullptr, nullptr}, 0, target.refused};
  const auto number = static_cast<uint32_t>(target.slot);
  const uint32_t page = a.page_size.quotient(number);
  return {format::row_bytes(a.cache, a.geometry, page, number - page * a.page_size.value), target.table_row, false};
}
__device__ int64_t position_of(const InsertArgs& a, int64_t row) {
  return a.positions.data == nullptr ? 0 : a.positions[row];
}

// --- a lane's dims to their place ---

template <int kBytes>
__device__ void store_bytes(uint8_t* to, const uint32_t (&words)[(kBytes + 3) / 4]) {
  if constexpr (kBytes == 16) {
    *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
  } else if constexpr (kBytes == 8) {
    *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
  } else if constexpr (kBytes == 4) {
    *reinterpret_cast<uint32_t*>(to) = words[0];
  } else {
    static_assert(kBytes == 2);
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(words[0]);
  }
}

// Codes and scale of dims kDims * p and on. `there`: this lane stores; all lanes of the warp call.
template <int kDims, class Record, class Part>
__device__ void store_codes(Record, const Part& part, int p, format::SlotBytes<uint8_t> to, bool there) {
  constexpr int kShare = Record::kScaleGroup / kDims;  // lanes of a group
  const auto store = [&](const auto& encoded, auto bytes) {
    if (!there) return;
    store_bytes<bytes.value>(to.data + p * bytes.value, encoded.words);
    if (p % kShare == 0) to.scale[p / kShare] = encoded.scale;
  };
  if constexpr (std::is_same_v<Record, format::Nvfp4_288>) {
    store(encode_e2m1<kShare>(part), std::integral_constant<int, kDims / 2>());
  } else {
    store(encode_e4m3<kShare>(part), std::integral_constant<int, kDims>());
  }
}

// Rotated dims kDims * q and on, counted from the first of them, as fp8_584 keeps them: bf16; the padding byte behind
// the scales is 0.
template <int kDims>
__device__ void store_bf16(const Floats<kDims>& part, int q, format::SlotBytes<uint8_t> to) {
  uint32_t words[kDims / 2];
#pragma unroll
  for (int i = 0; i < kDims / 2; ++i) {
    words[i] = format::to_bf16(part.x[2 * i]).bits | (uint32_t{format::to_bf16(part.x[2 * i + 1]).bits} << 16);
  }
  uint8_t* bytes = to.data + format::kNopeDim + 2 * kDims * q;
  constexpr int kAtOnce = kDims < 8 ? kDims : 8;
#pragma unroll
  for (int i = 0; i < kDims; i += kAtOnce) {
    uint32_t run[kAtOnce / 2];
#pragma unroll
    for (int j = 0; j < kAtOnce / 2; ++j) run[j] = words[i / 2 + j];
    store_bytes<2 * kAtOnce>(bytes + 2 * i, run);
  }
  if (q == 0) to.scale[format::Fp8_584::kScaleGroups] = 0;
}

// Rotates the same dims by row `table_row` of the table.
template <int kDims>
__device__ void rotate(const InsertArgs& a, int64_t table_row, int q, Floats<kDims>& part) {
  constexpr int kPairs = kDims / 2;
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
    part.x[2 * j] = y.x0;
    part.x[2 * j + 1] = y.x1;
    if (!round) continue;
    uint32_t pair = bf16x2_round(y.x0, y.x1);
    if (unordered(y.x0, y.x1)) pair = format::to_bf16(y.x0).bits | (uint32_t{format::to_bf16(y.x1).bits} << 16);
    part.x[2 * j] = bf16x2_low(pair);
    part.x[2 * j + 1] = bf16x2_high(pair);
  }
}

// --- few rows ---

constexpr int64_t kFewRows = 2048;
constexpr int kQuadDims = 4;
constexpr int kRowThreads = format::kHeadDim / kQuadDims;

template <class Record>
__global__ void __launch_bounds__(kRowThreads) insert_row_by_block(const InsertArgs a) {
  const auto p = static_cast<int>(threadIdx.x);
  const int q = p - format::kNopeDim / kQuadDims;  // of the rotated dims; negative: another dim
  const int64_t row = blockIdx.x;
  const uint16_t* latent = a.latent + row * a.latent_stride + p * kQuadDims;
  const int64_t* slot = a.slots + row;
  ptx::wait_for_previous();
  uint32_t pairs[kQuadDims / 2];
  load_run<2 * kQuadDims>(latent, a.latent_aligned, pairs);
  Floats<kQuadDims> part{{bf16x2_low(pairs[0]), bf16x2_high(pairs[0]), bf16x2_low(pairs[1]), bf16x2_high(pairs[1])}};
  const Target to = find_target(a, *slot, position_of(a, row));
  if (to.refused && a.skipped != nullptr && p == 0) atomicAdd(a.skipped, 1ULL);
  if (to.bytes.data == nullptr) return;  // the whole block
  if (q >= 0 && a.cos_sin != nullptr) rotate(a, to.table_row, q, part);
  __syncwarp();
  constexpr bool kKeepsRotated = std::is_same_v<Record, format::Fp8_584>;
  store_codes<kQuadDims>(Record{}, part, p, to.bytes, !kKeepsRotated || q < 0);
  if (kKeepsRotated && q >= 0) store_bf16(part, q, to.bytes);
  ptx::let_next_begin();  // earlier, blocks of many kernels to come would wait beside these
}

// --- many rows ---

constexpr int kWarps = 8;  // of a block
constexpr int kBlocksPerSm = 3;

// `row`: of the latent; part p of it.
__device__ BitsPart load_part(const InsertArgs& a, const uint16_t* row, int p) {
  BitsPart part;
  load_run<2 * kPartDims>(row + p * kPartDims, a.latent_aligned, part.pairs);
  return part;
}

// Of lane r < kRows: the target of row first + r. Counts the refused ones.
template <int kRows>
__device__ Target find_targets(const InsertArgs& a, int64_t first) {
  const auto lane = static_cast<int>(threadIdx.x) % kLanes;
  Target target{{nullptr, nullptr}, 0, false};
  if (lane < kRows && first + lane < a.rows)
    target = find_target(a, a.slots[first + lane], position_of(a, first + lane));
  const unsigned refused = __ballot_sync(kFullWarp, target.refused);
  if (refused != 0 && a.skipped != nullptr && lane == 0) atomicAdd(a.skipped, __popc(refused));
  return target;
}

__device__ format::SlotBytes<uint8_t> bytes_of_lane(const Target& target, int lane) {
  const auto data = __shfl_sync(kFullWarp, reinterpret_cast<uint64_t>(target.bytes.data), lane);
  const auto scale = __shfl_sync(kFullWarp, reinterpret_cast<uint64_t>(target.bytes.scale), lane);
  return {reinterpret_cast<uint8_t*>(data), reinterpret_cast<uint8_t*>(scale)};
}

template <class Record, int kRows>
__global__ void __launch_bounds__(kWarps* kLanes, kBlocksPerSm) insert_rows_by_warp(const InsertArgs a) {
  static_assert(kRows * kRopeParts <= kLanes);
  constexpr int kAhead = kRows < 2 ? kRows : 2;  // rows of a warp that are on their way
  ptx::follow_previous();
  const auto lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t step = int64_t{gridDim.x} * kWarps * kRows;
  for (int64_t first = (int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes) * kRows; first < a.rows; first += step) {
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

    const Target target = find_targets<kRows>(a, first);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const format::SlotBytes<uint8_t> to = bytes_of_lane(target, r);
      store_codes<kPartDims>(Record{}, nope[r % kAhead], lane, to, to.data != nullptr && lane < kNopeParts);
      if (r + kAhead < kRows) nope[r % kAhead] = load(r + kAhead, lane);
    }
    const format::SlotBytes<uint8_t> to = bytes_of_lane(target, rope_row);
    const int64_t table_row = __shfl_sync(kFullWarp, target.table_row, rope_row);
    const bool there = to.data != nullptr && lane < kRows * kRopeParts;
    if (there && a.cos_sin != nullptr) rotate(a, table_row, rope_part, rope);
    __syncwarp();
    if constexpr (std::is_same_v<Record, format::Fp8_584>) {
      if (there) store_bf16(rope, rope_part, to);
    } else {
      store_codes<kPartDims>(Record{}, rope, kNopeParts + rope_part, to, there);
    }
  }
}

template <class Record, int kRows>
Status launch_by_warp(const InsertArgs& a, int device, cudaStream_t stream) {
  const int64_t blocks = (a.rows + kWarps * kRows - 1) / (kWarps * kRows);
  return launch("kv_insert", overlapping({std::min<int64_t>(blocks, 64 * multiprocessors(device)), kWarps * kLanes}),
                stream, insert_rows_by_warp<Record, kRows>, a);
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
  a.page_size = plan::Divisor(p.cache.page_size);
  a.geometry = format::page_geometry(p.cache);
  a.rule = {static_cast<megamla_kv_writer>(p.writer), p.compress_ratio, format::num_slots(p.cache),
            present(p.cos_sin) ? p.cos_sin.shape[0] : -1};
  a.rows = std::min(p.latent.shape[0], p.slot_mapping.shape[0]);
  if (present(p.skipped_rows)) {
    a.skipped = data<unsigned long long>(p.skipped_rows);
    MEGAMLA_CUDA_CALL("kv_insert", cudaMemsetAsync(a.skipped, 0, sizeof(int64_t), exec.stream));
  }
  return format::with_record(static_cast<megamla_kv_format>(p.cache.format), [&](auto record) {
    using Record = decltype(record);
    if (a.rows <= kFewRows)
      return launch("kv_insert", overlapping({a.rows, kRowThreads}), exec.stream, insert_row_by_block<Record>, a);
    const int device = p.cache.cuda_device;
    const bool many = a.rows > 8192;  // else as many warps as there are rows
    return many ? launch_by_warp<Record, 8>(a, device, exec.stream) : launch_by_warp<Record, 1>(a, device, exec.stream);
  });
}

}  // namespace megamla::cuda
