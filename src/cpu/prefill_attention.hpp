// Three implementations of one driver (cpu/attention/attend.hpp): they differ in what multiplies.
#pragma once

#include "core/status.hpp"
#include "megamla/prefill_attention.h"

namespace megamla::cpu {

Status prefill_attention_avx512_supports(const megamla_prefill_attention_params& params);
int64_t prefill_attention_avx512_workspace(const megamla_limits& limits);
Status prefill_attention_avx512(const megamla_prefill_attention_params& params, const megamla_exec& exec);

Status prefill_attention_bf16_supports(const megamla_prefill_attention_params& params);
int64_t prefill_attention_bf16_workspace(const megamla_limits& limits);
Status prefill_attention_bf16(const megamla_prefill_attention_params& params, const megamla_exec& exec);

int64_t prefill_attention_f32_workspace(const megamla_limits& limits);
Status prefill_attention_f32(const megamla_prefill_attention_params& params, const megamla_exec& exec);

}  // namespace megamla::cpu
