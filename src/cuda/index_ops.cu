// The index transforms. A thread makes four neighbouring columns at a time. Of few rows each has a block, and
// everything that does not wait for something else is read at once: these ops are then as fast as their chain of reads
// and instructions. Of many rows each has a warp, so that what concerns a whole row is worked out but once.
#include <algorithm>

#include "core/tensor.hpp"
#include "cuda/index_ops.hpp"
#include "cuda/launch.hpp"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/sync.cuh"
#include "cuda/quads.cuh"
#include "cuda/step_requests.cuh"
#include "plan/index_elements.hpp"

namespace megamla::cuda {
namespace {

constexpr int kMaxThreads = 256;  // of a block that makes a row
constexpr int kWarps = 4;         // of a block whose warps make a row each
constexpr int kThreads = kWarps * kLanes;

// The rows of a thread's block or warp, and its place among the threads of a row.
template <bool kWarpEach>
struct Share {
  int64_t first, step;
  int thread, threads;

  __device__ Share()
      : first(blockIdx.x),
        step(gridDim.x),
        thread(static_cast<int>(threadIdx.x)),
        threads(static_cast<int>(blockDim.x)) {
    if constexpr (kWarpEach) {
      first = first * kWarps + thread / kLanes;
      step *= kWarps;
      thread %= kLanes;
      threads = kLanes;
    }
  }
};

LaunchShape shape_of(int64_t blocks, int threads, int device) {
  return overlapping({std::min<int64_t>(blocks, 64 * multiprocessors(device)), threads});
}
// `by_block` makes a row by a block, `by_warp` by a warp.
template <class Args>
Status launch_rows(const char* op, int64_t rows, int columns, int device, cudaStream_t stream, void (*by_block)(Args),
                   void (*by_warp)(Args), const Args& args) {
  constexpr int64_t kFewRows = 1024;
  if (rows > kFewRows)
    return launch(op, shape_of((rows + kWarps - 1) / kWarps, kThreads, device), stream, by_warp, args);
  const int warps = (columns + kQuad * kLanes - 1) / (kQuad * kLanes);
  return launch(op, shape_of(rows, std::clamp(warps * kLanes, kLanes, kMaxThreads), device), stream, by_block, args);
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

template <bool kWarpEach>
__global__ void __launch_bounds__(kMaxThreads) topk_to_slots_rows(const TopkToSlots a) {
  __shared__ int of_warp[2][kMaxThreads / kLanes];  // in turn, so that a row waits for no reader of the one before
  const Share<kWarpEach> share;
  const int lane = share.thread % kLanes;
  int turn = 0;
  for (int64_t token = share.first; token < a.tokens; token += share.step, turn ^= 1) {
    const int32_t* topk = a.topk.row(token);
    int32_t* to = a.slots.row(token);
    const int32_t* request_of = a.token_to_req + token;
    const uint8_t* mark_of = a.is_valid_token == nullptr ? nullptr : a.is_valid_token + token;
    int first = kQuad * share.thread;
    ptx::wait_for_previous();
    const int request = ptx::load_here(request_of);
    Quad local = load_quad(topk, first, a.topk.columns, a.topk.aligned);
    const bool marked = mark_of == nullptr || *mark_of != 0;
    const bool valid = marked && request >= 0 && request < a.requests;
    const uint32_t rows = valid ? a.table.rows : 0;
    const int32_t* entries = a.table.entries + (valid ? request : 0) * a.table.stride;
    ptx::settle(entries);
    int count = 0;
    while (first < a.topk.columns) {
      const Quad slots = slots_of(a.table, entries, local, rows);
      store_quad(to, first, a.slots.columns, a.slots.aligned, slots);
#pragma unroll
      for (int i = 0; i < kQuad; ++i) count += slots.x[i] >= 0 ? 1 : 0;  // none behind the last column: -1
      first += kQuad * share.threads;
      local = load_quad(topk, first, a.topk.columns, a.topk.aligned);
    }
    count = __reduce_add_sync(kFullWarp, count);
    if constexpr (!kWarpEach) {
      if (lane == 0) of_warp[turn][share.thread / kLanes] = count;
      __syncthreads();
      if (share.thread >= kLanes) continue;
      count = __reduce_add_sync(kFullWarp, kLanes * lane < share.threads ? of_warp[turn][lane] : 0);
    }
    if (lane == 0) a.lens[token] = count;
  }
  ptx::wait_for_previous();  // a warp without a row
  ptx::let_next_begin();
}

struct CombineTopkSwa {
  Matrix<const int32_t> topk;
  Batch batch;
  const int32_t* gather_lens;
  int64_t rows, window, compress_ratio;
  plan::WorkspaceLayout layout;
  Matrix<int32_t> indices;
  int32_t* lens;
};

// plan::combined_index for every column of a row: the first `compressed` are `request_base` + the top-k row if that is
// below `compressed_rows`, those from window_begin to window_end - 1 are `window_base` + the column, the others -1.
// Indices fit an int32: m * requests does.
struct CombinedColumns {
  int compressed, window_begin, window_end;
  uint32_t compressed_rows, request_base, window_base;

  __device__ CombinedColumns(const plan::CombinedRow& row, plan::WorkspaceLayout layout, int columns)
      : compressed(static_cast<int>(row.compressed)),
        compressed_rows(static_cast<uint32_t>(layout.n)),
        request_base(static_cast<uint32_t>(layout.m * row.request)) {
    // Column c is workspace row c + shift, which must lie in [n, m).
    const int64_t shift = row.window_row - row.compressed;
    window_begin = static_cast<int>(min(max(row.compressed, layout.n - shift), int64_t{columns}));
    window_end = static_cast<int>(max(min(min(row.length(), layout.m - shift), int64_t{columns}), int64_t{0}));
    window_base = request_base + static_cast<uint32_t>(shift);
  }
  __device__ int32_t at(int column, int32_t topk) const {
    if (column < compressed) {
      return static_cast<uint32_t>(topk) < compressed_rows ? static_cast<int32_t>(request_base + topk) : -1;
    }
    return column >= window_begin && column < window_end ? static_cast<int32_t>(window_base + column) : -1;
  }
};

template <bool kWarpEach>
__global__ void __launch_bounds__(kMaxThreads) combine_topk_swa_rows(const CombineTopkSwa a) {
  const Share<kWarpEach> share;
  for (int64_t row = share.first; row < a.rows; row += share.step) {
    const Places likely = guess(a.batch, a.gather_lens, row);
    const int32_t* from = a.topk.row(row);
    int32_t* to = a.indices.row(row);
    int first = kQuad * share.thread;
    ptx::wait_for_previous();
    Quad topk = load_quad(from, first, a.topk.columns, a.topk.aligned);
    int64_t token = 0;
    const Found found = find_request(a.batch, a.gather_lens, likely, row, true, token);
    plan::CombinedRow combined{-1, 0, 0, 0};
    if (found.request >= 0) {
      combined = plan::combined_row(found.request, found.query, found.extra, token, a.window, a.compress_ratio,
                                    a.topk.columns, a.layout);
    }
    const CombinedColumns columns(combined, a.layout, a.indices.columns);
    while (first < a.indices.columns) {
      Quad indices;
#pragma unroll
      for (int i = 0; i < kQuad; ++i) indices.x[i] = columns.at(first + i, topk.x[i]);
      store_quad(to, first, a.indices.columns, a.indices.aligned, indices);
      first += kQuad * share.threads;
      topk = load_quad(from, first, a.topk.columns, a.topk.aligned);
    }
    if (share.thread == 0) a.lens[row] = static_cast<int32_t>(combined.length());
  }
  ptx::wait_for_previous();  // a warp without a row
  ptx::let_next_begin();
}

struct SwaMetadata {
  Batch batch;
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

// A decode token's window, as its list names it.
struct ListedWindow {
  int start, length;
  int request;

  __device__ ListedWindow(const SwaMetadata& a, int64_t token, const Found& found, bool listed)
      : start(0), length(0), request(0) {
    if (!listed || found.request < 0 || found.request >= a.num_decodes) return;
    const plan::PositionRange window = plan::decode_window(found.query, token, a.rule, found.extra);
    length = static_cast<int>(min(window.length, int64_t{a.indices.columns}));
    start = static_cast<int>(window.start);  // a window that is not empty lies below seq_len
    request = static_cast<int>(found.request);
  }
};

// Its list, by all lanes.
__device__ void list_window(const SwaMetadata& a, int64_t token, const ListedWindow& window) {
  const auto lane = static_cast<int>(threadIdx.x) % kLanes;
  const int32_t* entries = a.table.entries + window.request * a.table.stride;
  ptx::settle(entries);
  int32_t* row = a.indices.row(token);
  for (int first = kQuad * lane; first < a.indices.columns; first += kQuad * kLanes) {
    Quad local;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) local.x[i] = first + i < window.length ? window.start + first + i : -1;
    store_quad(row, first, a.indices.columns, a.indices.aligned, slots_of(a.table, entries, local, a.table.rows));
  }
}

// kTokens tokens from `first` on, by a warp: what concerns a whole token is worked out by lane l for token l % kTokens.
template <int kTokens>
__device__ void describe_tokens(const SwaMetadata& a, const Places& likely, int64_t first) {
  const auto lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t index = first + lane % kTokens;
  const bool valid = index < a.tokens && a.slot_mapping[index] >= 0;
  const Found found = find_requests<kTokens>(a.batch, a.replay_start, likely, index);
  const ListedWindow own(a, index, found, valid && index < a.decode_tokens);
  if (lane < kTokens) {
    if (index < a.listed_tokens) a.token_to_req[index] = static_cast<int32_t>(found.request);
    if (index < a.tokens) {
      a.is_valid_token[index] = valid ? 1 : 0;
      a.lens[index] = own.length;
    }
  }
  const auto rows = static_cast<int>(min(min(a.tokens, a.decode_tokens) - first, int64_t{kTokens}));
#pragma unroll 2
  for (int i = 0; i < rows; ++i) {
    ListedWindow window = own;
    if constexpr (kTokens > 1) {
      window.start = __shfl_sync(kFullWarp, own.start, i);
      window.length = __shfl_sync(kFullWarp, own.length, i);
      window.request = __shfl_sync(kFullWarp, own.request, i);
    }
    list_window(a, first + i, window);
  }
}

// First the tokens, kTokens a warp, then the prefill requests, a thread each.
template <int kTokens>
__global__ void __launch_bounds__(kThreads) swa_metadata_items(const SwaMetadata a) {
  constexpr int kBlockTokens = kWarps * kTokens;
  const int64_t tokens = max(a.tokens, a.listed_tokens);
  const int64_t token_blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
  const int64_t prefill_blocks = (a.prefills + kThreads - 1) / kThreads;
  for (int64_t block = blockIdx.x; block < token_blocks + prefill_blocks; block += gridDim.x) {
    const int64_t first = block * kBlockTokens + threadIdx.x / kLanes * kTokens;
    const Places likely = guess(a.batch, a.replay_start, first + threadIdx.x % kTokens);
    ptx::wait_for_previous();
    if (block < token_blocks) {
      if (first < tokens) describe_tokens<kTokens>(a, likely, first);
    } else {
      const int64_t i = (block - token_blocks) * kThreads + threadIdx.x;
      if (i < a.prefills)
        a.prefill_gather_lens[i] = plan::prefill_gather_len(a.batch.lists.query(a.num_decodes + i), a.rule.window);
    }
  }
  ptx::let_next_begin();
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
  return launch_rows("topk_to_slots", a.tokens, a.topk.columns, p.topk.cuda_device, exec.stream,
                     topk_to_slots_rows<false>, topk_to_slots_rows<true>, a);
}

Status combine_topk_swa(const megamla_combine_topk_swa_params& p, const megamla_exec& exec) {
  CombineTopkSwa a{};
  a.topk = matrix<const int32_t>(p.topk);
  a.batch = ragged_batch(p.query_start_loc, p.seq_lens, p.indices.shape[0]);
  a.gather_lens = data<const int32_t>(p.gather_lens);
  a.rows = p.indices.shape[0];
  a.window = p.window;
  a.compress_ratio = p.compress_ratio;
  a.layout = {p.m, p.n};
  a.indices = matrix<int32_t>(p.indices);
  a.lens = data<int32_t>(p.lens);
  return launch_rows("combine_topk_swa", a.rows, a.indices.columns, p.topk.cuda_device, exec.stream,
                     combine_topk_swa_rows<false>, combine_topk_swa_rows<true>, a);
}

Status swa_metadata(const megamla_swa_metadata_params& p, const megamla_exec& exec) {
  SwaMetadata a{};
  a.batch = ragged_batch(p.query_start_loc, p.seq_lens, p.slot_mapping.shape[0]);
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
  const auto run = [&](void (*kernel)(SwaMetadata), int64_t tokens_of_block) {
    const int64_t tokens = std::max(a.tokens, a.listed_tokens);
    const int64_t blocks = (tokens + tokens_of_block - 1) / tokens_of_block + (a.prefills + kThreads - 1) / kThreads;
    return launch("swa_metadata", shape_of(blocks, kThreads, p.seq_lens.cuda_device), exec.stream, kernel, a);
  };
  constexpr int64_t kFewTokens = 8192;
  constexpr int kTogether = 8;
  if (a.tokens <= kFewTokens) return run(swa_metadata_items<1>, kWarps);
  return run(swa_metadata_items<kTogether>, kWarps * kTogether);
}

}  // namespace megamla::cuda
