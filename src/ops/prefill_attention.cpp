#include "megamla/prefill_attention.h"

#include "cpu/prefill_attention.hpp"
#include "cuda/prefill_attention/prefill_attention.hpp"
#include "ops/attention_validate.hpp"
#include "ops/op.hpp"
#include "reference/prefill_attention.hpp"

namespace megamla::ops {
namespace {

void validate_keys(Validator& v, const megamla_prefill_attention_params& p) {
  const int64_t tokens = p.q.shape[0];
  v.tensor("kv", p.kv, {MEGAMLA_BF16}, {Validator::kAny, 512}, 1);
  if (v.ok() && p.kv.shape[0] > 0) {
    v.aligned("kv", p.kv.data, 16);
    if (p.kv.shape[0] > 1) v.multiple_of("kv row stride", p.kv.stride[0], 8);
  }
  v.tensor("indices", p.indices, {MEGAMLA_I32}, {tokens, Validator::kAny}, 1);
  v.optional_tensor("topk_length", p.topk_length, {MEGAMLA_I32}, {tokens}, 1);
  if (v.ok()) v.range("indices width", p.indices.shape[1], 0, kMaxListWidth);
}

void apart_from_inputs(Validator& v, const megamla_prefill_attention_params& p, const char* name,
                       const megamla_tensor& output) {
  apart_from_query(v, p, name, output);
  v.no_overlap(name, output, "kv", p.kv).no_overlap(name, output, "indices", p.indices);
  v.no_overlap(name, output, "topk_length", p.topk_length);
}

Status validate(const megamla_prefill_attention_params& p, int32_t cuda_device) {
  Validator v("prefill_attention", cuda_device);
  if (!validate_query(v, p)) return v.status();
  validate_keys(v, p);
  validate_outputs(v, p);
  v.optional_tensor("max_logits", p.max_logits, {MEGAMLA_F32}, {p.q.shape[0], p.q.shape[1]}, 2,
                    Validator::Access::kWrite);
  v.range("reserved", p.reserved, 0, 0);
  apart_from_inputs(v, p, "out", p.out);
  apart_from_inputs(v, p, "out_scale", p.out_scale);
  apart_from_inputs(v, p, "lse", p.lse);
  apart_from_inputs(v, p, "max_logits", p.max_logits);
  v.no_overlap("out_scale", p.out_scale, "out", p.out);
  v.no_overlap("lse", p.lse, "out", p.out).no_overlap("lse", p.lse, "out_scale", p.out_scale);
  v.no_overlap("max_logits", p.max_logits, "out", p.out);
  v.no_overlap("max_logits", p.max_logits, "out_scale", p.out_scale);
  v.no_overlap("max_logits", p.max_logits, "lse", p.lse);
  return v.status();
}

megamla_limits limits_of(const megamla_prefill_attention_params& p) {
  megamla_limits limits = MEGAMLA_LIMITS_INIT;
  limits.tokens = p.q.shape[0];
  limits.heads = p.q.shape[1];
  limits.compressed_width = p.indices.shape[1];
  return limits;
}
int32_t memory_of(const megamla_prefill_attention_params& p) { return p.q.cuda_device; }

constexpr Implementation<megamla_prefill_attention_params> kImplementations[] = {
    {"cpu.avx512_bf16", MEGAMLA_DEVICE_CPU, cpu::prefill_attention_avx512_supports,
     cpu::prefill_attention_avx512_workspace, cpu::prefill_attention_avx512},
    {"cpu.onednn_bf16", MEGAMLA_DEVICE_CPU, cpu::prefill_attention_bf16_supports, cpu::prefill_attention_bf16_workspace,
     cpu::prefill_attention_bf16},
    {"cpu.onednn_f32", MEGAMLA_DEVICE_CPU, supports_all, cpu::prefill_attention_f32_workspace,
     cpu::prefill_attention_f32},
    {"reference.prefill_attention", MEGAMLA_DEVICE_REFERENCE, supports_all, no_workspace, reference::prefill_attention},
#if MEGAMLA_HAVE_CUDA
    {"cuda.prefill_attention_sm90", MEGAMLA_DEVICE_CUDA, cuda::prefill_attention_supports, no_workspace,
     cuda::prefill_attention},
#endif
};
constexpr Op<megamla_prefill_attention_params> kOp{"prefill_attention", validate, limits_of, memory_of,
                                                   kImplementations};

}  // namespace
}  // namespace megamla::ops

extern "C" void megamla_prefill_attention_init(megamla_prefill_attention_params* params) {
  if (params == nullptr) return;
  *params = {};
  params->struct_size = sizeof(*params);
  params->softmax_scale = 0.04419417382415922F;  // 512^-0.5
}
MEGAMLA_DEFINE_OP(prefill_attention, megamla::ops::kOp)
