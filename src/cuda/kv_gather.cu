// A warp decodes kRows neighbouring rows of a request: it asks for the bytes of all of them before it decodes the
// first.
#include <algorithm>

#include "core/tensor.hpp"
#include "cuda/kv_gather.hpp"
#include "cuda/launch.hpp"
#include "cuda/ptx/grid.cuh"
#include "cuda/record_decode.cuh"
#include "cuda/vector_access.cuh"
#include "format/page.hpp"
#include "plan/gather_rows.hpp"
#include "plan/page_table.hpp"

namespace megamla::cuda {
namespace {

constexpr int kWarps = 8;  // of a block
constexpr int kLanes = 32;
constexpr unsigned kFullWarp = 0xffffffffU;

struct GatherArgs {
  megamla_kv_cache cache;
  format::PageGeometry geometry;
  const int32_t* seq_lens;
  const int32_t* gather_lens;  // null: all rows
  const int32_t* block_table;
  int64_t table_stride, table_columns;
  int64_t offset;
  uint16_t* out;
  int64_t out_request_stride, out_row_stride, out_rows;
  bool out_aligned;
  int64_t requests, blocks_per_request;
};

// Where lane i < kRows finds row `begin` + i of its request; no page: a row that is left alone.
__device__ plan::PageRow find_row(const GatherArgs& a, int64_t request, int64_t row) {
  const int64_t seq_len = __ldg(a.seq_lens + request);
  const int64_t gather_len = a.gather_lens == nullptr ? seq_len : __ldg(a.gather_lens + request);
  const plan::GatherRange range = plan::gather_range(seq_len, gather_len, a.out_rows, a.offset);
  if (row >= range.rows) return {-1, 0};
  const plan::PageTable table{a.block_table + request * a.table_stride, a.table_columns, a.cache.page_size,
                              a.cache.num_pages};
  return plan::page_row_of(table, range.first + row);
}

template <class Record, int kRows>
__global__ void __launch_bounds__(kWarps* kLanes) gather_rows(const GatherArgs a) {
  ptx::follow_previous();
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  for (int64_t block = blockIdx.x; block < a.requests * a.blocks_per_request; block += gridDim.x) {
    const int64_t request = block / a.blocks_per_request;
    const int64_t begin = (block % a.blocks_per_request * kWarps + warp) * kRows;
    plan::PageRow found{-1, 0};
    if (lane < kRows) found = find_row(a, request, begin + lane);
    const unsigned there = __ballot_sync(kFullWarp, found.page >= 0);
    const auto bytes = format::row_bytes(a.cache, a.geometry, found.page < 0 ? 0 : found.page, found.row);

    RawChunk<Record> raw[kRows][kChunks / kLanes];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const auto data = __shfl_sync(kFullWarp, reinterpret_cast<uint64_t>(bytes.data), r);
      const auto scale = __shfl_sync(kFullWarp, reinterpret_cast<uint64_t>(bytes.scale), r);
      if ((there >> r & 1U) == 0) continue;
#pragma unroll
      for (int half = 0; half < kChunks / kLanes; ++half) {
        raw[r][half].load(reinterpret_cast<const uint8_t*>(data), reinterpret_cast<const uint8_t*>(scale),
                          lane + kLanes * half);
      }
    }
    uint16_t* out = a.out + request * a.out_request_stride + (a.offset + begin) * a.out_row_stride;
#pragma unroll
    for (int r = 0; r < kRows; ++r, out += a.out_row_stride) {
      if ((there >> r & 1U) == 0) continue;
#pragma unroll
      for (int half = 0; half < kChunks / kLanes; ++half) {
        const int chunk = lane + kLanes * half;
        store_bf16x8(out + kChunkDims * chunk, a.out_aligned, raw[r][half].decode(chunk));
      }
    }
  }
}

template <class Record, int kRows>
Status launch_rows(GatherArgs a, int device, cudaStream_t stream) {
  const int64_t rows = std::max<int64_t>(a.out_rows - a.offset, 0);
  a.blocks_per_request = (rows + kWarps * kRows - 1) / (kWarps * kRows);
  const int64_t blocks = a.requests * a.blocks_per_request;
  return launch("kv_gather", overlapping({std::min<int64_t>(blocks, 64 * multiprocessors(device)), kWarps * kLanes}),
                stream, gather_rows<Record, kRows>, a);
}

}  // namespace

Status kv_gather(const megamla_kv_gather_params& p, const megamla_exec& exec) {
  GatherArgs a{};
  a.cache = p.cache;
  a.geometry = format::page_geometry(p.cache);
  a.seq_lens = data<const int32_t>(p.seq_lens);
  a.gather_lens = present(p.gather_lens) ? data<const int32_t>(p.gather_lens) : nullptr;
  a.block_table = data<const int32_t>(p.block_table);
  a.table_stride = p.block_table.stride[0];
  a.table_columns = p.block_table.shape[1];
  a.offset = p.offset;
  a.out = data<uint16_t>(p.out);
  a.out_request_stride = p.out.stride[0];
  a.out_row_stride = p.out.stride[1];
  a.out_rows = p.out.shape[1];
  a.out_aligned = rows_aligned(a.out, 2 * a.out_request_stride) && rows_aligned(a.out, 2 * a.out_row_stride);
  a.requests = p.seq_lens.shape[0];
  // Few rows: as many warps as there are rows.
  const bool many = a.requests * std::max<int64_t>(a.out_rows - a.offset, 0) > 8192;
  const int device = p.cache.cuda_device;
  return format::with_record(static_cast<megamla_kv_format>(p.cache.format), [&](auto record) {
    using Record = decltype(record);
    return many ? launch_rows<Record, 4>(a, device, exec.stream) : launch_rows<Record, 1>(a, device, exec.stream);
  });
}

}  // namespace megamla::cuda
