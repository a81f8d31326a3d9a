#include "reference/permute_weights.hpp"

#include <cstring>

#include "core/tensor.hpp"
#include "format/chunked.hpp"
#include "format/kv_record.hpp"
#include "plan/packed_scales.hpp"

namespace megamla::reference {
namespace {

using format::kHeadDim;
constexpr int64_t kBlock = 32;  // weights have one scale per 32 x 32 block

// Element `to` of contiguous `out` = element `from` of contiguous `in`.
void copy_element(const megamla_tensor& out, int64_t to, const megamla_tensor& in, int64_t from) {
  const int64_t size = megamla_dtype_size(static_cast<megamla_dtype>(in.dtype));
  std::memcpy(data<char>(out) + to * size, data<const char>(in) + from * size, static_cast<size_t>(size));
}

void permute_q(const megamla_permute_weights_params& p) {
  const int64_t heads = p.in.shape[1];
  const int64_t width = heads * kHeadDim;
  for (int64_t t = 0; t < p.in.shape[0]; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t d = 0; d < kHeadDim; ++d) {
        copy_element(p.out, t * width + format::q_chunked_index(heads, h, d), p.in, t * width + h * kHeadDim + d);
      }
    }
  }
}

void pad_q(const megamla_permute_weights_params& p) {
  const int64_t local = p.in.shape[1];
  const int64_t padded = p.out.shape[1];
  const int64_t size = megamla_dtype_size(static_cast<megamla_dtype>(p.out.dtype));
  std::memset(p.out.data, 0, static_cast<size_t>(p.out.shape[0] * padded * kHeadDim * size));
  for (int64_t t = 0; t < p.in.shape[0]; ++t) {
    for (int64_t h = 0; h < local; ++h) {
      for (int64_t d = 0; d < kHeadDim; ++d) {
        copy_element(p.out, t * padded * kHeadDim + format::q_chunked_index(padded, h, d), p.in,
                     t * local * kHeadDim + format::q_chunked_index(local, h, d));
      }
    }
  }
}

// Rows of G * 4096 elements, or of G * 128 chunks.
void permute_o(const megamla_permute_weights_params& p, bool chunks) {
  const int64_t per_head = chunks ? kHeadDim / format::kOChunkDims : kHeadDim;
  const int64_t width = format::kGroupHeads * per_head;
  for (int64_t row = 0; row < p.in.shape[0] * p.in.shape[1]; ++row) {
    for (int64_t h = 0; h < format::kGroupHeads; ++h) {
      for (int64_t i = 0; i < per_head; ++i) {
        const int64_t to = chunks ? format::o_chunk(h, i * format::kOChunkDims) : format::o_chunked_index(h, i);
        copy_element(p.out, row * width + to, p.in, row * width + h * per_head + i);
      }
    }
  }
}

// Words of `rows` rows of out_scale: word w of row i at w * rows + i.
void pack(const uint8_t* scales, int64_t rows, int64_t columns, int64_t words, int32_t* packed) {
  for (int64_t w = 0; w < words; ++w) {
    for (int64_t i = 0; i < rows; ++i) packed[w * rows + i] = plan::packed_word(scales + i * columns, columns, w);
  }
}

void permute_wq_b(const megamla_permute_weights_params& p) {
  const int64_t rows = p.in.shape[0];
  const int64_t heads = rows / kHeadDim;
  const int64_t columns = p.in.shape[1];
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t to = format::q_chunked_index(heads, row / kHeadDim, row % kHeadDim);
    for (int64_t k = 0; k < columns; ++k) copy_element(p.out, to * columns + k, p.in, row * columns + k);
    for (int64_t k = 0; k < columns / kBlock; ++k) {
      copy_element(p.out_scale, to * (columns / kBlock) + k, p.in_scale, row / kBlock * (columns / kBlock) + k);
    }
  }
  if (present(p.out_scale_packed)) {
    pack(data<const uint8_t>(p.out_scale), rows, columns / kBlock, p.out_scale_packed.shape[0],
         data<int32_t>(p.out_scale_packed));
  }
}

void permute_wo_a(const megamla_permute_weights_params& p) {
  using format::kGroupChunks;
  using format::kGroupWidth;
  const int64_t rows = p.in.shape[0];
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t h = 0; h < format::kGroupHeads; ++h) {
      for (int64_t d = 0; d < kHeadDim; ++d) {
        copy_element(p.out, row * kGroupWidth + format::o_chunked_index(h, d), p.in,
                     row * kGroupWidth + h * kHeadDim + d);
      }
      for (int64_t c = 0; c < kHeadDim / kBlock; ++c) {
        copy_element(p.out_scale, row * kGroupChunks + format::o_chunk(h, c * kBlock), p.in_scale,
                     row / kBlock * kGroupChunks + h * (kHeadDim / kBlock) + c);
      }
    }
  }
  if (!present(p.out_scale_packed)) return;
  const int64_t d = p.out.shape[1];
  for (int64_t g = 0; g < p.out.shape[0]; ++g) {
    pack(data<const uint8_t>(p.out_scale) + g * d * kGroupChunks, d, kGroupChunks, format::kGroupScaleWords,
         data<int32_t>(p.out_scale_packed) + g * format::kGroupScaleWords * d);
  }
}

}  // namespace

Status permute_weights(const megamla_permute_weights_params& p, const megamla_exec&) {
  if (is_empty(p.out)) return {};
  switch (static_cast<megamla_permute_kind>(p.kind)) {
    case MEGAMLA_PERMUTE_Q:
      permute_q(p);
      break;
    case MEGAMLA_PERMUTE_PAD_Q:
      pad_q(p);
      break;
    case MEGAMLA_PERMUTE_O:
      permute_o(p, false);
      break;
    case MEGAMLA_PERMUTE_O_CHUNKS:
      permute_o(p, true);
      break;
    case MEGAMLA_PERMUTE_WQ_B:
      permute_wq_b(p);
      break;
    case MEGAMLA_PERMUTE_WO_A:
      permute_wo_a(p);
      break;
  }
  return {};
}

}  // namespace megamla::reference
