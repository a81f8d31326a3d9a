#include "cpu/attention/products.hpp"

#include "core/simd.hpp"
#include "cpu/attention/products_avx512.hpp"
#include "cpu/gemm.hpp"
#include "format/kv_record.hpp"

namespace megamla::cpu::attention {
namespace {

constexpr int64_t kDims = format::kHeadDim;

GemmType gemm_type(Multiplier multiplier) {
  return multiplier == Multiplier::kGemmF32 ? GemmType::kF32 : GemmType::kBf16;
}

MEGAMLA_SIMD_CLONES void add(const float* x, int64_t count, float* sum) {
  for (int64_t i = 0; i < count; ++i) sum[i] += x[i];
}

}  // namespace

Status multiply_scores(Multiplier multiplier, const void* q, int64_t heads, const void* keys, int64_t count,
                       float* scores, int64_t score_stride) {
  if (multiplier == Multiplier::kAvx512Bf16) {
    scores_avx512(static_cast<const uint16_t*>(q), heads, static_cast<const uint16_t*>(keys), kKeyStride, count, scores,
                  score_stride);
    return {};
  }
  Gemm shape;
  shape.type = gemm_type(multiplier);
  shape.m = heads;
  shape.n = count;
  shape.k = kDims;
  shape.lda = kDims;
  shape.ldb = kKeyStride;
  shape.ldc = score_stride;
  return run_gemm(shape, q, keys, scores);
}

Status multiply_weights(Multiplier multiplier, const void* weights, int64_t weight_stride, int64_t heads,
                        const void* keys, int64_t count, bool accumulate, float* product, float* out) {
  if (multiplier == Multiplier::kAvx512Bf16) {
    weigh_avx512(static_cast<const uint16_t*>(weights), weight_stride, heads, static_cast<const uint16_t*>(keys),
                 kKeyStride, count, accumulate, out);
    return {};
  }
  Gemm shape;
  shape.type = gemm_type(multiplier);
  shape.m = heads;
  shape.n = kDims;
  shape.k = count;
  shape.lda = weight_stride;
  shape.ldb = kKeyStride;
  shape.ldc = kDims;
  shape.b_transposed = false;
  MEGAMLA_RETURN_IF_ERROR(run_gemm(shape, weights, keys, accumulate ? product : out));
  if (accumulate) add(product, heads * kDims, out);
  return {};
}

}  // namespace megamla::cpu::attention
