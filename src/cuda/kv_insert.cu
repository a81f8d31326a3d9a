// Two ways, by the number of rows. Few: a block writes a row, four dims a thread, so that little waits for anything.
// Many: as many warps as run at once share the rows. A warp writes eight at a time, while the next eight come to shared
// memory: of the rotated 64 dims all rows at once, four lanes a row, so that the rotation does not keep 28 lanes
// waiting, of the others every row in turn, 16 dims a lane.
#include <algorithm>
#include <type_traits>

#include "core/tensor.hpp"
#include "cuda/kv_insert.hpp"
#include "cuda/launch.hpp"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/sync.cuh"
#include "cuda/record_encode.cuh"
#include "cuda/vector_access.cuh"
#include "format/page.hpp"
#include "format/rope.hpp"
#include "plan/divisor.hpp"
#include "plan/insert_rows.hpp"

namespace megamla::cuda {
namespace {

constexpr int kLanes = 32;
constexpr int kRowBytes = 2 * format::kHeadDim;

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

constexpr int kWarps = 4;  // of a block
constexpr int kBlocksPerSm = 6;
constexpr int kRows = 8;  // of a warp at once
constexpr int kHalf = kRows / 2;
static_assert(kRows * kRopeParts == kLanes);

struct WarpShared {
  uint4 latent[kRows][kRowBytes / 16];
  format::SlotBytes<uint8_t> to[kRows];
  uint64_t arrived;  // a phase for every kRows rows
};

// Asks for rows begin .. end - 1 of eight, at most kHalf, by all lanes; `latent`: lane r's row r. Rows that begin
// anywhere are there afterwards, others when the barrier says so.
__device__ void request_rows(const InsertArgs& a, const uint16_t* latent, int begin, int end, WarpShared& shared) {
  const auto lane = static_cast<int>(threadIdx.x) % kLanes;
  if (a.latent_aligned) {
    if (lane >= begin && lane < end) ptx::copy_bulk_async(shared.latent[lane], latent, kRowBytes, &shared.arrived);
    return;
  }
#pragma unroll 1
  for (int r = begin; r < end; ++r) {
    const auto from = reinterpret_cast<const uint16_t*>(__shfl_sync(kFullWarp, reinterpret_cast<uint64_t>(latent), r));
#pragma unroll 1
    for (int c = lane; c < kRowBytes / 16; c += kLanes) {
      uint32_t words[4];
      load_run<16>(from + 8 * c, false, words);
      shared.latent[r][c] = {words[0], words[1], words[2], words[3]};
    }
  }
}

__device__ BitsPart part_of(const uint4 (&row)[kRowBytes / 16], int p) {
  const uint4 low = row[2 * p];
  const uint4 high = row[2 * p + 1];
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

// What a lane knows of a row before the row's turn comes.
struct Place {
  int64_t slot = -1;
  int64_t position = 0;
};

// A warp writes rows_each neighbouring rows, kRows at a time. The next ones are on their way meanwhile: each takes the
// place of one that has been written.
template <class Record>
__global__ void __launch_bounds__(kWarps* kLanes, kBlocksPerSm)
    insert_rows_by_warp(const InsertArgs a, const int64_t rows_each) {
  __shared__ WarpShared of_warp[kWarps];
  const auto lane = static_cast<int>(threadIdx.x) % kLanes;
  const int rope_row = lane / kRopeParts;
  const int rope_part = lane % kRopeParts;
  WarpShared& shared = of_warp[threadIdx.x / kLanes];
  int64_t first = (int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes) * rows_each;
  const int64_t end = min(first + rows_each, a.rows);
  const auto rows_from = [&](int64_t row) { return static_cast<int>(max(min(end - row, int64_t{kRows}), int64_t{0})); };
  const auto place_of = [&](int64_t row) {
    return lane < rows_from(row) ? Place{a.slots[row + lane], position_of(a, row + lane)} : Place{};
  };
  const auto latent_of = [&](int64_t row) { return a.latent + (row + lane % kRows) * a.latent_stride; };
  const auto expect = [&](int rows) {
    if (a.latent_aligned && lane == 0 && rows > 0) ptx::mbarrier_arrive_and_expect(&shared.arrived, rows * kRowBytes);
  };
  if (lane == 0) {
    ptx::mbarrier_init(&shared.arrived, 1);
    ptx::fence_async_proxy();
  }
  __syncwarp();
  ptx::follow_previous();

  int rows = rows_from(first);
  expect(rows);
  request_rows(a, latent_of(first), 0, rows, shared);
  Place place = place_of(first);
  for (uint32_t turn = 0; rows > 0; turn ^= 1U) {
    const Target target = find_target(a, place.slot, place.position);
    const unsigned refused = __ballot_sync(kFullWarp, target.refused);
    if (refused != 0 && a.skipped != nullptr && lane == 0) atomicAdd(a.skipped, __popc(refused));
    if (lane < kRows) shared.to[lane] = target.bytes;
    const unsigned written = __ballot_sync(kFullWarp, target.bytes.data != nullptr);
    const int64_t table_row = __shfl_sync(kFullWarp, target.table_row, rope_row);
    const int64_t next = first + kRows;
    const int next_rows = rows_from(next);
    place = place_of(next);
    if (a.latent_aligned) ptx::mbarrier_wait(&shared.arrived, turn);
    __syncwarp();
    expect(next_rows);

    const format::SlotBytes<uint8_t> rope_to = shared.to[rope_row];
    FloatPart rope = widen(part_of(shared.latent[rope_row], kNopeParts + rope_part));
    if (rope_to.data != nullptr && a.cos_sin != nullptr) rotate(a, table_row, rope_part, rope);
    __syncwarp();
    if constexpr (std::is_same_v<Record, format::Fp8_584>) {
      if (rope_to.data != nullptr) store_bf16(rope, rope_part, rope_to);
    } else {
      store_codes<kPartDims>(Record{}, rope, kNopeParts + rope_part, rope_to, rope_to.data != nullptr);
    }

    const uint16_t* next_latent = latent_of(next);
#pragma unroll 1
    for (int half = 0; half < rows; half += kHalf) {
#pragma unroll 2
      for (int r = half; r < min(half + kHalf, rows); ++r) {
        const format::SlotBytes<uint8_t> to = shared.to[r];
        store_codes<kPartDims>(Record{}, part_of(shared.latent[r], lane), lane, to,
                               (written >> r & 1U) != 0 && lane < kNopeParts);
      }
      __syncwarp();
      request_rows(a, next_latent, half, min(half + kHalf, next_rows), shared);
    }
    __syncwarp();
    first = next;
    rows = next_rows;
  }
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
    // As many warps as run at once, with as many rows each.
    const int64_t warps = int64_t{kWarps} * kBlocksPerSm * multiprocessors(p.cache.cuda_device);
    const int64_t rows_each = (a.rows + warps - 1) / warps;
    const int64_t blocks = (a.rows + rows_each * kWarps - 1) / (rows_each * kWarps);
    return launch("kv_insert", overlapping({blocks, kWarps * kLanes}), exec.stream, insert_rows_by_warp<Record>, a,
                  rows_each);
  });
}

}  // namespace megamla::cuda
