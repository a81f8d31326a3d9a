#include "cpu/permute_weights.hpp"

#include <cstring>

#include "core/tensor.hpp"
#include "core/threads.hpp"
#include "format/chunked.hpp"
#include "format/kv_record.hpp"
#include "plan/packed_scales.hpp"

// Elements that stay together move together: 16 dims of a head in Q, 32 in O, a whole row of wq_b.
namespace megamla::cpu {
namespace {

using format::kGroupChunks;
using format::kGroupHeads;
using format::kGroupWidth;
using format::kHeadDim;
using format::kOChunkDims;
using format::kQChunkDims;

constexpr int64_t kBlock = 32;  // weights have one scale per 32 x 32 block
constexpr int64_t kHeadChunks = kHeadDim / kOChunkDims;

template <class Row>
void for_each_row(int64_t rows, const megamla_exec& exec, Row&& row) {
  parallel_ranges(rows, resolve_threads(exec.num_threads), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) row(i);
  });
}

// Contiguous tensors as runs of elements.
struct Mover {
  const char* in;
  char* out;
  int64_t size;  // bytes of an element

  explicit Mover(const megamla_permute_weights_params& p)
      : in(data<const char>(p.in)),
        out(data<char>(p.out)),
        size(megamla_dtype_size(static_cast<megamla_dtype>(p.in.dtype))) {}
  void move(int64_t to, int64_t from, int64_t count) const {
    std::memcpy(out + to * size, in + from * size, static_cast<size_t>(count * size));
  }
  void clear(int64_t to, int64_t count) const { std::memset(out + to * size, 0, static_cast<size_t>(count * size)); }
};

void permute_q(const megamla_permute_weights_params& p, const megamla_exec& exec) {
  const Mover mover(p);
  const int64_t heads = p.in.shape[1];
  const int64_t width = heads * kHeadDim;
  for_each_row(p.in.shape[0] * heads, exec, [&](int64_t row) {
    const int64_t t = row / heads;
    for (int64_t d = 0; d < kHeadDim; d += kQChunkDims) {
      mover.move(t * width + format::q_chunked_index(heads, row % heads, d), row * kHeadDim + d, kQChunkDims);
    }
  });
}

void pad_q(const megamla_permute_weights_params& p, const megamla_exec& exec) {
  const Mover mover(p);
  const int64_t local = p.in.shape[1];
  const int64_t padded = p.out.shape[1];
  for_each_row(p.in.shape[0], exec, [&](int64_t t) {
    for (int64_t d = 0; d < kHeadDim; d += kQChunkDims) {
      const int64_t to = t * padded * kHeadDim + format::q_chunked_index(padded, 0, d);
      const int64_t live = local * kQChunkDims;
      if (live > 0) mover.move(to, t * local * kHeadDim + format::q_chunked_index(local, 0, d), live);
      mover.clear(to + live, (padded - local) * kQChunkDims);
    }
  });
}

// Row `row` of 4096 columns.
void permute_o_row(const Mover& mover, int64_t row) {
  for (int64_t h = 0; h < kGroupHeads; ++h) {
    for (int64_t d = 0; d < kHeadDim; d += kOChunkDims) {
      mover.move(row * kGroupWidth + format::o_chunked_index(h, d), row * kGroupWidth + h * kHeadDim + d, kOChunkDims);
    }
  }
}

void permute_o(const megamla_permute_weights_params& p, const megamla_exec& exec) {
  const Mover mover(p);
  for_each_row(p.in.shape[0] * p.in.shape[1], exec, [&](int64_t row) { permute_o_row(mover, row); });
}

void permute_o_chunks(const megamla_permute_weights_params& p, const megamla_exec& exec) {
  const Mover mover(p);
  for_each_row(p.in.shape[0] * p.in.shape[1], exec, [&](int64_t row) {
    for (int64_t h = 0; h < kGroupHeads; ++h) {
      for (int64_t c = 0; c < kHeadChunks; ++c) {
        mover.move(row * kGroupChunks + format::o_chunk(h, c * kOChunkDims), row * kGroupChunks + h * kHeadChunks + c,
                   1);
      }
    }
  });
}

void permute_wq_b(const megamla_permute_weights_params& p, const megamla_exec& exec) {
  const Mover mover(p);
  const int64_t rows = p.in.shape[0];
  const int64_t heads = rows / kHeadDim;
  const int64_t columns = p.in.shape[1];
  const int64_t scale_columns = columns / kBlock;
  for_each_row(rows, exec, [&](int64_t row) {
    const int64_t to = format::q_chunked_index(heads, row / kHeadDim, row % kHeadDim);
    mover.move(to * columns, row * columns, columns);
    const uint8_t* scales = data<const uint8_t>(p.in_scale) + row / kBlock * scale_columns;
    std::memcpy(data<uint8_t>(p.out_scale) + to * scale_columns, scales, static_cast<size_t>(scale_columns));
    if (!present(p.out_scale_packed)) return;
    for (int64_t w = 0; w < p.out_scale_packed.shape[0]; ++w) {
      at<int32_t>(p.out_scale_packed, w, to) = plan::packed_word(scales, scale_columns, w);
    }
  });
}

void permute_wo_a(const megamla_permute_weights_params& p, const megamla_exec& exec) {
  const Mover mover(p);
  const int64_t d = p.out.shape[1];
  for_each_row(p.in.shape[0], exec, [&](int64_t row) {
    permute_o_row(mover, row);
    const uint8_t* in = data<const uint8_t>(p.in_scale) + row / kBlock * kGroupChunks;
    uint8_t* scales = data<uint8_t>(p.out_scale) + row * kGroupChunks;
    for (int64_t h = 0; h < kGroupHeads; ++h) {
      for (int64_t c = 0; c < kHeadChunks; ++c) scales[format::o_chunk(h, c * kOChunkDims)] = in[h * kHeadChunks + c];
    }
    if (!present(p.out_scale_packed)) return;
    for (int64_t w = 0; w < format::kGroupScaleWords; ++w) {
      at<int32_t>(p.out_scale_packed, row / d, w, row % d) = plan::packed_word(scales, kGroupChunks, w);
    }
  });
}

}  // namespace

Status permute_weights(const megamla_permute_weights_params& p, const megamla_exec& exec) {
  if (is_empty(p.out)) return {};
  switch (static_cast<megamla_permute_kind>(p.kind)) {
    case MEGAMLA_PERMUTE_Q:
      permute_q(p, exec);
      break;
    case MEGAMLA_PERMUTE_PAD_Q:
      pad_q(p, exec);
      break;
    case MEGAMLA_PERMUTE_O:
      permute_o(p, exec);
      break;
    case MEGAMLA_PERMUTE_O_CHUNKS:
      permute_o_chunks(p, exec);
      break;
    case MEGAMLA_PERMUTE_WQ_B:
      permute_wq_b(p, exec);
      break;
    case MEGAMLA_PERMUTE_WO_A:
      permute_wo_a(p, exec);
      break;
  }
  return {};
}

}  // namespace megamla::cpu
