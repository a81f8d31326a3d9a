#include "megamla/decode_attention.h"

#include "cpu/decode_attention.hpp"
#include "cuda/decode_attention/decode_attention.hpp"
#include "ops/attention_validate.hpp"
#include "ops/op.hpp"
#include "reference/decode_attention.hpp"

namespace megamla::ops {
namespace {

void validate_keys(Validator& v, const megamla_decode_attention_params& p) {
  const int64_t tokens = p.q.shape[0];
  v.cache("window", p.window, {MEGAMLA_KV_FP8_528, MEGAMLA_KV_FP8_584});
  v.tensor("window_slots", p.window_slots, {MEGAMLA_I32}, {tokens, Validator::kAny}, 1);
  v.optional_tensor("window_lens", p.window_lens, {MEGAMLA_I32}, {tokens}, 1);
  if (!v.ok()) return;
  v.range("window_slots width", p.window_slots.shape[1], 0, kMaxListWidth);
  if (!present(p.compressed)) {
    v.absent("compressed_slots", p.compressed_slots, "there is no compressed cache");
    v.absent("compressed_lens", p.compressed_lens, "there is no compressed cache");
    return;
  }
  if (p.window.format == MEGAMLA_KV_FP8_528) {
    v.cache("compressed", p.compressed, {MEGAMLA_KV_FP8_528, MEGAMLA_KV_NVFP4_288});
  } else {
    v.cache("compressed", p.compressed, {MEGAMLA_KV_FP8_584});
  }
  v.tensor("compressed_slots", p.compressed_slots, {MEGAMLA_I32}, {tokens, Validator::kAny}, 1);
  v.optional_tensor("compressed_lens", p.compressed_lens, {MEGAMLA_I32}, {tokens}, 1);
  if (v.ok()) v.range("compressed_slots width", p.compressed_slots.shape[1], 0, kMaxListWidth);
}

void apart_from_inputs(Validator& v, const megamla_decode_attention_params& p, const char* name,
                       const megamla_tensor& output) {
  apart_from_query(v, p, name, output);
  v.no_overlap(name, output, "window", p.window).no_overlap(name, output, "compressed", p.compressed);
  v.no_overlap(name, output, "window_slots", p.window_slots).no_overlap(name, output, "window_lens", p.window_lens);
  v.no_overlap(name, output, "compressed_slots", p.compressed_slots);
  v.no_overlap(name, output, "compressed_lens", p.compressed_lens);
}

Status validate(const megamla_decode_attention_params& p, int32_t cuda_device) {
  Validator v("decode_attention", cuda_device);
  if (!validate_query(v, p)) return v.status();
  validate_keys(v, p);
  validate_outputs(v, p);
  apart_from_inputs(v, p, "out", p.out);
  apart_from_inputs(v, p, "out_scale", p.out_scale);
  apart_from_inputs(v, p, "lse", p.lse);
  v.no_overlap("out_scale", p.out_scale, "out", p.out);
  v.no_overlap("lse", p.lse, "out", p.out).no_overlap("lse", p.lse, "out_scale", p.out_scale);
  return v.status();
}

megamla_limits limits_of(const megamla_decode_attention_params& p) {
  megamla_limits limits = MEGAMLA_LIMITS_INIT;
  limits.tokens = p.q.shape[0];
  limits.heads = p.q.shape[1];
  limits.window_width = p.window_slots.shape[1];
  limits.compressed_width = present(p.compressed) ? p.compressed_slots.shape[1] : 0;
  return limits;
}
int32_t memory_of(const megamla_decode_attention_params& p) { return p.q.cuda_device; }

constexpr Implementation<megamla_decode_attention_params> kImplementations[] = {
    {"cpu.avx512_bf16", MEGAMLA_DEVICE_CPU, cpu::decode_attention_avx512_supports,
     cpu::decode_attention_avx512_workspace, cpu::decode_attention_avx512},
    {"cpu.onednn_bf16", MEGAMLA_DEVICE_CPU, cpu::decode_attention_bf16_supports, cpu::decode_attention_bf16_workspace,
     cpu::decode_attention_bf16},
    {"cpu.onednn_f32", MEGAMLA_DEVICE_CPU, supports_all, cpu::decode_attention_f32_workspace,
     cpu::decode_attention_f32},
    {"reference.decode_attention", MEGAMLA_DEVICE_REFERENCE, supports_all, no_workspace, reference::decode_attention},
#if MEGAMLA_HAVE_CUDA
    {"cuda.decode_attention_sm90", MEGAMLA_DEVICE_CUDA, cuda::decode_attention_supports,
     cuda::decode_attention_workspace, cuda::decode_attention},
#endif
};
constexpr Op<megamla_decode_attention_params> kOp{"decode_attention", validate, limits_of, memory_of, kImplementations};

}  // namespace
}  // namespace megamla::ops

extern "C" void megamla_decode_attention_init(megamla_decode_attention_params* params) {
  if (params == nullptr) return;
  *params = {};
  params->struct_size = sizeof(*params);
  params->softmax_scale = 0.04419417382415922F;  // 512^-0.5
}
MEGAMLA_DEFINE_OP(decode_attention, megamla::ops::kOp)
