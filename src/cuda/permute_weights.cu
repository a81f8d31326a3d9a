// Permutations at load time: a thread moves an element. Neighbouring elements stay together in runs of 16 bytes or
// more, which is what memory wants.
#include <algorithm>

#include "core/tensor.hpp"
#include "cuda/launch.hpp"
#include "cuda/permute_weights.hpp"
#include "format/chunked.hpp"
#include "format/kv_record.hpp"
#include "plan/packed_scales.hpp"

namespace megamla::cuda {
namespace {

using format::kHeadDim;
constexpr const char* kOp = "permute_weights";
constexpr int kThreads = 256;
constexpr int64_t kBlock = 32;  // weights have one scale per 32 x 32 block

// Calls move(i) for i in [0, count).
template <class Move>
__global__ void __launch_bounds__(kThreads) for_each(int64_t count, Move move) {
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += threads) move(i);
}
template <class Move>
Status run_all(int64_t count, int device, cudaStream_t stream, Move move) {
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return launch(kOp, {std::min<int64_t>(blocks, 64 * multiprocessors(device)), kThreads}, stream, for_each<Move>, count,
                move);
}

// Where an element of `in` goes, for the kinds that move elements of any size.

struct QueryOrder {  // standard -> chunked
  int64_t heads;
  __device__ int64_t operator()(int64_t i) const {
    const int64_t width = heads * kHeadDim;
    return i / width * width + format::q_chunked_index(heads, i % width / kHeadDim, i % kHeadDim);
  }
};
struct PaddedQueryOrder {  // chunked -> chunked with more heads
  int64_t local, padded;
  __device__ int64_t operator()(int64_t i) const {
    const int64_t run = i / format::kQChunkDims;  // (token, chunk, head)
    return (run / local * padded + run % local) * format::kQChunkDims + i % format::kQChunkDims;
  }
};
struct OutputOrder {  // rows of kGroupWidth
  __device__ int64_t operator()(int64_t i) const {
    const int64_t in_row = i % format::kGroupWidth;
    return i - in_row + format::o_chunked_index(in_row / kHeadDim, in_row % kHeadDim);
  }
};
struct OutputChunkOrder {  // rows of kGroupChunks
  __device__ int64_t operator()(int64_t i) const {
    constexpr int64_t kPerHead = kHeadDim / format::kOChunkDims;
    const int64_t in_row = i % format::kGroupChunks;
    return i - in_row + format::o_chunk(in_row / kPerHead, in_row % kPerHead * format::kOChunkDims);
  }
};

template <class Element, class Order>
struct Scatter {
  const Element* in;
  Element* out;
  Order order;
  __device__ void operator()(int64_t i) const { out[order(i)] = in[i]; }
};

int64_t count_of(const megamla_tensor& t) {
  int64_t count = 1;
  for (int d = 0; d < t.ndim; ++d) count *= t.shape[d];
  return count;
}

template <class Element, class Order>
Status scatter(const megamla_tensor& in, const megamla_tensor& out, cudaStream_t stream, Order order) {
  return run_all(count_of(in), in.cuda_device, stream,
                 Scatter<Element, Order>{data<const Element>(in), data<Element>(out), order});
}

template <class Order>
Status scatter_any(const megamla_permute_weights_params& p, cudaStream_t stream, Order order) {
  switch (megamla_dtype_size(static_cast<megamla_dtype>(p.in.dtype))) {
    case 1:
      return scatter<uint8_t>(p.in, p.out, stream, order);
    case 2:
      return scatter<uint16_t>(p.in, p.out, stream, order);
    case 4:
      return scatter<uint32_t>(p.in, p.out, stream, order);
    default:
      return scatter<uint64_t>(p.in, p.out, stream, order);
  }
}

Status pad_q(const megamla_permute_weights_params& p, cudaStream_t stream) {
  const int64_t bytes = count_of(p.out) * megamla_dtype_size(static_cast<megamla_dtype>(p.out.dtype));
  if (bytes > 0) MEGAMLA_CUDA_CALL(kOp, cudaMemsetAsync(p.out.data, 0, static_cast<size_t>(bytes), stream));
  return scatter_any(p, stream, PaddedQueryOrder{p.in.shape[1], p.out.shape[1]});
}

// Words of `rows` rows of `columns` scale bytes each, matrix after matrix: word w of row i at w * rows + i.
struct PackScales {
  const uint8_t* scales;
  int64_t rows, columns, words;
  int32_t* packed;
  __device__ void operator()(int64_t i) const {
    const int64_t matrix = i / (rows * words);
    const int64_t word = i / rows % words;
    const int64_t row = i % rows;
    packed[i] = plan::packed_word(scales + (matrix * rows + row) * columns, columns, word);
  }
};

// Weights whose rows move as a whole, with a block scale expanded to one for each row.
struct QueryRows {
  int64_t heads, columns;
  __device__ int64_t row(int64_t from) const {
    return format::q_chunked_index(heads, from / kHeadDim, from % kHeadDim);
  }
  __device__ int64_t operator()(int64_t i) const { return row(i / columns) * columns + i % columns; }
};
struct QueryScales {
  QueryRows rows;  // of scale columns
  const uint8_t* in;
  uint8_t* out;
  __device__ void operator()(int64_t i) const {
    out[rows(i)] = in[i / rows.columns / kBlock * rows.columns + i % rows.columns];
  }
};

Status permute_wq_b(const megamla_permute_weights_params& p, cudaStream_t stream) {
  const int64_t rows = p.in.shape[0];
  const int64_t columns = p.in.shape[1];
  const int64_t heads = rows / kHeadDim;
  const int64_t scales = columns / kBlock;
  const int device = p.in.cuda_device;
  MEGAMLA_RETURN_IF_ERROR(scatter<uint8_t>(p.in, p.out, stream, QueryRows{heads, columns}));
  MEGAMLA_RETURN_IF_ERROR(
      run_all(rows * scales, device, stream,
              QueryScales{{heads, scales}, data<const uint8_t>(p.in_scale), data<uint8_t>(p.out_scale)}));
  if (!present(p.out_scale_packed)) return {};
  const int64_t words = p.out_scale_packed.shape[0];
  return run_all(rows * words, device, stream,
                 PackScales{data<const uint8_t>(p.out_scale), rows, scales, words, data<int32_t>(p.out_scale_packed)});
}

struct OutputScales {
  const uint8_t* in;
  uint8_t* out;
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / format::kGroupChunks;
    out[OutputChunkOrder{}(i)] = in[row / kBlock * format::kGroupChunks + i % format::kGroupChunks];
  }
};

Status permute_wo_a(const megamla_permute_weights_params& p, cudaStream_t stream) {
  const int device = p.in.cuda_device;
  MEGAMLA_RETURN_IF_ERROR(scatter<uint8_t>(p.in, p.out, stream, OutputOrder{}));
  MEGAMLA_RETURN_IF_ERROR(run_all(p.in.shape[0] * format::kGroupChunks, device, stream,
                                  OutputScales{data<const uint8_t>(p.in_scale), data<uint8_t>(p.out_scale)}));
  if (!present(p.out_scale_packed)) return {};
  const PackScales pack{data<const uint8_t>(p.out_scale), p.out.shape[1], format::kGroupChunks,
                        format::kGroupScaleWords, data<int32_t>(p.out_scale_packed)};
  return run_all(p.out.shape[0] * pack.rows * pack.words, device, stream, pack);
}

}  // namespace

Status permute_weights(const megamla_permute_weights_params& p, const megamla_exec& exec) {
  switch (static_cast<megamla_permute_kind>(p.kind)) {
    case MEGAMLA_PERMUTE_Q:
      return scatter_any(p, exec.stream, QueryOrder{p.in.shape[1]});
    case MEGAMLA_PERMUTE_PAD_Q:
      return pad_q(p, exec.stream);
    case MEGAMLA_PERMUTE_O:
      return scatter_any(p, exec.stream, OutputOrder{});
    case MEGAMLA_PERMUTE_O_CHUNKS:
      return scatter_any(p, exec.stream, OutputChunkOrder{});
    case MEGAMLA_PERMUTE_WQ_B:
      return permute_wq_b(p, exec.stream);
    case MEGAMLA_PERMUTE_WO_A:
      return permute_wo_a(p, exec.stream);
  }
  return {};
}

}  // namespace megamla::cuda
