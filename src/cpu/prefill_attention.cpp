#include "cpu/prefill_attention.hpp"

#include "cpu/attention/attend.hpp"

namespace megamla::cpu {

using attention::Multiplier;

Status prefill_attention_avx512_supports(const megamla_prefill_attention_params&) {
  return attention::supports(Multiplier::kAvx512Bf16);
}
int64_t prefill_attention_avx512_workspace(const megamla_limits& limits) {
  return attention::workspace_size(Multiplier::kAvx512Bf16, limits);
}
Status prefill_attention_avx512(const megamla_prefill_attention_params& p, const megamla_exec& exec) {
  return attention::attend(Multiplier::kAvx512Bf16, view_of(p), exec);
}

Status prefill_attention_bf16_supports(const megamla_prefill_attention_params&) {
  return attention::supports(Multiplier::kGemmBf16);
}
int64_t prefill_attention_bf16_workspace(const megamla_limits& limits) {
  return attention::workspace_size(Multiplier::kGemmBf16, limits);
}
Status prefill_attention_bf16(const megamla_prefill_attention_params& p, const megamla_exec& exec) {
  return attention::attend(Multiplier::kGemmBf16, view_of(p), exec);
}

int64_t prefill_attention_f32_workspace(const megamla_limits& limits) {
  return attention::workspace_size(Multiplier::kGemmF32, limits);
}
Status prefill_attention_f32(const megamla_prefill_attention_params& p, const megamla_exec& exec) {
  return attention::attend(Multiplier::kGemmF32, view_of(p), exec);
}

}  // namespace megamla::cpu
