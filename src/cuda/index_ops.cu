// The index transforms. A list of hundreds of columns has a block of its own, a window list a warp.
#include <algorithm>

#include "core/tensor.hpp"
#include "cuda/index_ops.hpp"
#include "cuda/launch.hpp"
#include "cuda/ptx/grid.cuh"
#include "plan/index_elements.hpp"

namespace megamla::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kLanes = 32;
constexpr int kWarps = kThreads / kLanes;
constexpr unsigned kFullWarp = 0xffffffffU;
constexpr int kUnroll = 4;  // columns of a thread that are on their way at once

// Row i of a matrix; a matrix without columns may have no memory at all, and is not read.
template <class T>
struct Matrix {
  T* data;
  int64_t stride, columns;

  __device__ T* row(int64_t i) const { return data + i * stride; }
};
template <class T>
Matrix<T> matrix(const megamla_tensor& t) {
  return {data<T>(t), t.stride[0], t.shape[1]};
}

struct Table {
  Matrix<const int32_t> entries;
  int64_t page_size, num_pages;

  __device__ plan::PageTable of(int64_t request) const {
    return {entries.row(request), entries.columns, page_size, num_pages};
  }
};
// num_pages 0 = not checked.
Table page_table(const megamla_tensor& block_table, int64_t page_size, int64_t num_pages) {
  return {matrix<const int32_t>(block_table), page_size, num_pages > 0 ? num_pages : plan::kUncheckedPages};
}

plan::RaggedBatch ragged_batch(const megamla_tensor& query_start_loc, const megamla_tensor& seq_lens) {
  return {data<const int32_t>(query_start_loc), data<const int32_t>(seq_lens), seq_lens.shape[0]};
}

// Steps of this many requests at most are searched in shared memory: a search is a chain of reads, each of which takes
// a tenth of the time there.
constexpr int kNearRequests = 1024;

// The batch, by all threads of the block; its lists lie in shared memory where they fit.
__device__ plan::RaggedBatch near_batch(plan::RaggedBatch batch) {
  __shared__ int32_t query_start_loc[kNearRequests + 1];
  __shared__ int32_t seq_lens[kNearRequests];
  if (batch.num_requests > kNearRequests) return batch;
  const auto requests = static_cast<int>(batch.num_requests);
  for (int i = static_cast<int>(threadIdx.x); i <= requests; i += kThreads) {
    query_start_loc[i] = __ldg(batch.query_start_loc + i);
    if (i < requests) seq_lens[i] = __ldg(batch.seq_lens + i);
  }
  __syncthreads();
  return {query_start_loc, seq_lens, batch.num_requests};
}

LaunchShape shape_of(int64_t blocks, int device) {
  return overlapping({std::min<int64_t>(blocks, 64 * multiprocessors(device)), kThreads});
}

// Sum over the block, for thread 0.
__device__ int block_sum(int value) {
  __shared__ int of_warp[kWarps];
  value = __reduce_add_sync(kFullWarp, value);
  if (threadIdx.x % kLanes == 0) of_warp[threadIdx.x / kLanes] = value;
  __syncthreads();
  int sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += of_warp[w];
  __syncthreads();
  return sum;
}

struct TopkToSlots {
  Matrix<const int32_t> topk;
  const int32_t* token_to_req;
  const uint8_t* is_valid_token;  // null: all valid
  Table table;
  int64_t tokens, requests;
  Matrix<int32_t> slots;
  int32_t* lens;
};

__global__ void __launch_bounds__(kThreads) topk_to_slots_rows(const TopkToSlots a) {
  ptx::follow_previous();
  for (int64_t token = blockIdx.x; token < a.tokens; token += gridDim.x) {
    const int64_t request = __ldg(a.token_to_req + token);
    const bool valid =
        (a.is_valid_token == nullptr || __ldg(a.is_valid_token + token) != 0) && request >= 0 && request < a.requests;
    const plan::PageTable table = a.table.of(valid ? request : 0);
    const int32_t* topk = a.topk.row(token);
    int32_t* slots = a.slots.row(token);
    int count = 0;
    for (int64_t first = threadIdx.x; first < a.topk.columns; first += kUnroll * kThreads) {
      int32_t local[kUnroll];  // read before anything depends on the request
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        local[i] = first + i * kThreads < a.topk.columns ? __ldg(topk + first + i * kThreads) : -1;
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        if (first + i * kThreads >= a.topk.columns) break;
        const int32_t slot = valid ? plan::slot_id_of(table, local[i]) : -1;
        slots[first + i * kThreads] = slot;
        count += slot >= 0 ? 1 : 0;
      }
    }
    count = block_sum(count);
    if (threadIdx.x == 0) a.lens[token] = count;
  }
}

struct CombineTopkSwa {
  Matrix<const int32_t> topk;
  plan::RaggedBatch batch;
  const int32_t* gather_lens;
  int64_t rows, window, compress_ratio;
  plan::WorkspaceLayout layout;
  Matrix<int32_t> indices;
  int32_t* lens;
};

__global__ void __launch_bounds__(kThreads) combine_topk_swa_rows(const CombineTopkSwa a) {
  ptx::follow_previous();
  const plan::RaggedBatch batch = near_batch(a.batch);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const plan::CombinedRow combined = plan::combined_row(batch, a.gather_lens, batch.query_start(0) + row, a.window,
                                                          a.compress_ratio, a.topk.columns, a.layout);
    const int32_t* topk = a.topk.row(row);
    int32_t* indices = a.indices.row(row);
#pragma unroll 4
    for (int64_t column = threadIdx.x; column < a.indices.columns; column += kThreads) {
      indices[column] = plan::combined_index(combined, topk, column, a.layout);
    }
    if (threadIdx.x == 0) a.lens[row] = static_cast<int32_t>(combined.length());
  }
}

struct SwaMetadata {
  plan::RaggedBatch batch;
  const int64_t* slot_mapping;
  int64_t tokens;
  Table table;
  const int32_t* replay_start;  // null: none
  plan::WindowRule rule;
  int64_t num_decodes;
  uint8_t* is_valid_token;
  int32_t* token_to_req;
  int64_t listed_tokens;  // of token_to_req
  Matrix<int32_t> indices;
  int64_t decode_tokens;  // rows of indices
  int32_t* lens;
  int32_t* prefill_gather_lens;
  int64_t prefills;
};

// A decode token's list, by all lanes; its length.
__device__ int list_window(const SwaMetadata& a, const plan::RaggedBatch& batch, int64_t token, int64_t request,
                           bool valid) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  int32_t* slots = a.indices.row(token);
  plan::PositionRange window{0, 0};
  plan::PageTable table;
  if (valid && request >= 0 && request < a.num_decodes) {
    const int64_t replay_start = a.replay_start == nullptr ? 0 : __ldg(a.replay_start + request);
    window = plan::decode_window(batch, request, token, a.rule, replay_start);
    table = a.table.of(request);
  }
  const int64_t length = min(window.length, a.indices.columns);
#pragma unroll 4
  for (int64_t i = lane; i < a.indices.columns; i += kLanes) {
    slots[i] = i < length ? plan::slot_id_of(table, window.start + i) : -1;
  }
  return static_cast<int>(length);
}

__device__ void describe_token(const SwaMetadata& a, const plan::RaggedBatch& batch, int64_t token) {
  const bool first_lane = threadIdx.x % kLanes == 0;
  const bool valid = token < a.tokens && __ldg(reinterpret_cast<const long long*>(a.slot_mapping) + token) >= 0;
  const int64_t request = batch.request_of(token);
  if (token < a.listed_tokens && first_lane) a.token_to_req[token] = static_cast<int32_t>(request);
  if (token >= a.tokens) return;
  const int length = token < a.decode_tokens ? list_window(a, batch, token, request, valid) : 0;
  if (first_lane) {
    a.is_valid_token[token] = valid ? 1 : 0;
    a.lens[token] = length;
  }
}

// First the tokens, a warp each, then the prefill requests, a thread each.
__global__ void __launch_bounds__(kThreads) swa_metadata_items(const SwaMetadata a) {
  ptx::follow_previous();
  const int64_t tokens = max(a.tokens, a.listed_tokens);
  const int64_t token_blocks = (tokens + kWarps - 1) / kWarps;
  const int64_t prefill_blocks = (a.prefills + kThreads - 1) / kThreads;
  const plan::RaggedBatch batch = near_batch(a.batch);
  for (int64_t block = blockIdx.x; block < token_blocks + prefill_blocks; block += gridDim.x) {
    if (block < token_blocks) {
      const int64_t token = block * kWarps + threadIdx.x / kLanes;
      if (token < tokens) describe_token(a, batch, token);
    } else {
      const int64_t i = (block - token_blocks) * kThreads + threadIdx.x;
      if (i < a.prefills) a.prefill_gather_lens[i] = plan::prefill_gather_len(batch, a.num_decodes + i, a.rule.window);
    }
  }
}

}  // namespace

Status topk_to_slots(const megamla_topk_to_slots_params& p, const megamla_exec& exec) {
  TopkToSlots a{};
  a.topk = matrix<const int32_t>(p.topk);
  a.token_to_req = data<const int32_t>(p.token_to_req);
  a.is_valid_token = present(p.is_valid_token) ? data<const uint8_t>(p.is_valid_token) : nullptr;
  a.table = page_table(p.block_table, p.slots_per_page, p.num_pages);
  a.tokens = p.topk.shape[0];
  a.requests = p.block_table.shape[0];
  a.slots = matrix<int32_t>(p.slots);
  a.lens = data<int32_t>(p.lens);
  return launch("topk_to_slots", shape_of(a.tokens, p.topk.cuda_device), exec.stream, topk_to_slots_rows, a);
}

Status combine_topk_swa(const megamla_combine_topk_swa_params& p, const megamla_exec& exec) {
  CombineTopkSwa a{};
  a.topk = matrix<const int32_t>(p.topk);
  a.batch = ragged_batch(p.query_start_loc, p.seq_lens);
  a.gather_lens = data<const int32_t>(p.gather_lens);
  a.rows = p.indices.shape[0];
  a.window = p.window;
  a.compress_ratio = p.compress_ratio;
  a.layout = {p.m, p.n};
  a.indices = matrix<int32_t>(p.indices);
  a.lens = data<int32_t>(p.lens);
  return launch("combine_topk_swa", shape_of(a.rows, p.topk.cuda_device), exec.stream, combine_topk_swa_rows, a);
}

Status swa_metadata(const megamla_swa_metadata_params& p, const megamla_exec& exec) {
  SwaMetadata a{};
  a.batch = ragged_batch(p.query_start_loc, p.seq_lens);
  a.slot_mapping = data<const int64_t>(p.slot_mapping);
  a.tokens = p.slot_mapping.shape[0];
  a.table = page_table(p.block_table, p.page_size, p.num_pages);
  a.replay_start = present(p.replay_start) ? data<const int32_t>(p.replay_start) : nullptr;
  a.rule = {p.window, p.causal != 0};
  a.num_decodes = p.num_decodes;
  a.is_valid_token = data<uint8_t>(p.is_valid_token);
  a.token_to_req = data<int32_t>(p.token_to_req);
  a.listed_tokens = p.token_to_req.shape[0];
  a.indices = matrix<int32_t>(p.decode_swa_indices);
  a.decode_tokens = p.decode_swa_indices.shape[0];
  a.lens = data<int32_t>(p.decode_swa_lens);
  a.prefill_gather_lens = data<int32_t>(p.prefill_gather_lens);
  a.prefills = p.prefill_gather_lens.shape[0];
  const int64_t tokens = std::max(a.tokens, a.listed_tokens);
  const int64_t blocks = (tokens + kWarps - 1) / kWarps + (a.prefills + kThreads - 1) / kThreads;
  return launch("swa_metadata", shape_of(blocks, p.seq_lens.cuda_device), exec.stream, swa_metadata_items, a);
}

}  // namespace megamla::cuda
