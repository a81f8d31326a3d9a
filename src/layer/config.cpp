#include "layer/config.hpp"

#include <string_view>

#include "core/validate.hpp"
#include "format/chunked.hpp"
#include "format/kv_record.hpp"
#include "layer/step.hpp"
#include "ops/op.hpp"

namespace megamla::layer {
namespace {

constexpr int64_t kMaxHeads = 128;
constexpr int64_t kMaxExtent = int64_t{1} << 24;  // of features, lists and ids: products stay within 64 bits

int format_bit(megamla_kv_format kind) { return 1 << kind; }

Status check_formats(const megamla_layer_config& c) {
  const auto window = static_cast<megamla_kv_format>(c.window_format);
  const auto compressed = static_cast<megamla_kv_format>(c.compressed_format);
  const std::string pair = fmt::format("({}, {})", format::name(window), format::name(compressed));
  if (c.compress_ratio == 0 && compressed != MEGAMLA_KV_NONE) {
    return invalid_argument("layer: compressed_format: expected none for compress_ratio 0, got {}",
                            format::name(compressed));
  }
  if (c.compress_ratio > 0 && compressed == MEGAMLA_KV_NONE) {
    return invalid_argument("layer: compressed_format: expected a format for compress_ratio {}, got none",
                            c.compress_ratio);
  }
  const bool allowed =
      (window == MEGAMLA_KV_FP8_528 && compressed != MEGAMLA_KV_FP8_584) ||
      (window == MEGAMLA_KV_FP8_584 && (compressed == MEGAMLA_KV_NONE || compressed == MEGAMLA_KV_FP8_584));
  if (!allowed) {
    return invalid_argument(
        "layer: (window_format, compressed_format): expected (fp8_528, none | fp8_528 | nvfp4_288) or (fp8_584, none | "
        "fp8_584), "
        "got {}",
        pair);
  }
  return {};
}

#if MEGAMLA_HAVE_CUDA
constexpr bool kHaveKernels = true;
#else
constexpr bool kHaveKernels = false;
#endif

// OK if the layer runs on that GPU.
Status has_gpu(int32_t cuda_device) {
  if (kHaveKernels) return ops::check_gpu("layer", cuda_device);
  return unsupported("layer: device: expected reference or cpu (this build has no GPU kernels), got cuda");
}

}  // namespace

megamla_layer_role role_of(const megamla_layer_config& config) {
  if (config.compress_ratio == 0) return MEGAMLA_ROLE_WINDOW_ONLY;
  return config.kv_source_layer == config.layer_id ? MEGAMLA_ROLE_KV_SOURCE : MEGAMLA_ROLE_KV_CONSUMER;
}

Status check_tensor_parallel(int64_t num_heads, int64_t o_groups, int64_t o_lora_rank, int64_t tp_size,
                             int64_t tp_rank) {
  Validator v("layer", -1);
  v.range("num_heads", num_heads, 1, int64_t{1} << 20).range("o_groups", o_groups, 1, int64_t{1} << 20);
  v.range("tp_size", tp_size, 1, int64_t{1} << 20);
  v.range("tp_rank", tp_rank, 0, tp_size - 1);
  if (!v.ok()) return v.status();
  v.require(num_heads % tp_size == 0, "tp_size", fmt::format("a divisor of num_heads = {}", num_heads), tp_size);
  v.require(o_groups % tp_size == 0, "tp_size", fmt::format("a divisor of o_groups = {}", o_groups), tp_size);
  if (!v.ok()) return v.status();
  v.require((num_heads / tp_size) % 8 == 0, "num_heads / tp_size", "a multiple of 8",
            fmt::format("{} / {} = {}", num_heads, tp_size, num_heads / tp_size));
  v.require(num_heads == 8 * o_groups, "num_heads / o_groups", "8 heads per group",
            fmt::format("{} / {}", num_heads, o_groups));
  v.require(num_heads / tp_size <= kMaxHeads, "num_heads / tp_size",
            fmt::format("at most {} heads on a rank", kMaxHeads), fmt::format("{}", num_heads / tp_size));
  v.require(o_lora_rank >= 32 && o_lora_rank % 32 == 0, "o_lora_rank", "a positive multiple of 32", o_lora_rank);
  v.range("o_lora_rank", o_lora_rank, 32, kMaxExtent);
  return v.status();
}

Status check_config(const megamla_layer_config& c) {
  Validator v("layer", -1);
  v.range("layer_id", c.layer_id, 0, kMaxExtent);
  v.range("head_dim", c.head_dim, format::kHeadDim, format::kHeadDim);
  v.range("rope_dim", c.rope_dim, format::kRopeDim, format::kRopeDim);
  v.range("hidden_size", c.hidden_size, 32, kMaxExtent).multiple_of("hidden_size", c.hidden_size, 32);
  v.range("q_lora_rank", c.q_lora_rank, 32, kMaxExtent).multiple_of("q_lora_rank", c.q_lora_rank, 32);
  MEGAMLA_RETURN_IF_ERROR(v.status());
  MEGAMLA_RETURN_IF_ERROR(check_tensor_parallel(c.num_heads, c.o_groups, c.o_lora_rank, c.tp_size, c.tp_rank));
  v.require(c.compress_ratio >= 0 && c.compress_ratio <= 2, "compress_ratio", "0, 1 or 2", c.compress_ratio);
  if (c.compress_ratio > 0) {
    v.range("index_topk", c.index_topk, 1, kMaxExtent);
    v.range("kv_source_layer", c.kv_source_layer, 0, c.layer_id);
  }
  v.range("window", c.window, 1, kMaxExtent);
  v.finite("rms_norm_eps", c.rms_norm_eps);
  v.require(c.rms_norm_eps >= 0, "rms_norm_eps", "a value of at least 0", c.rms_norm_eps);
  v.finite("softmax_scale", c.softmax_scale);
  v.range("num_speculative_tokens", c.num_speculative_tokens, 0, 4096);
  v.range("max_model_len", c.max_model_len, 1, (int64_t{1} << 31) - 1);
  v.range("max_num_batched_tokens", c.max_num_batched_tokens, 1, (int64_t{1} << 31) - 1);
  v.range("max_num_requests", c.max_num_requests, 1, (int64_t{1} << 31) - 1);
  v.range("prefill_chunk_size", c.prefill_chunk_size, 1, 4096);
  v.range("cuda_device", c.cuda_device, 0, 1 << 16);
  v.range("window_format", c.window_format, MEGAMLA_KV_FP8_528, MEGAMLA_KV_FP8_584);
  v.range("compressed_format", c.compressed_format, MEGAMLA_KV_NONE, MEGAMLA_KV_FP8_584);
  v.range("prefill_path", c.prefill_path, MEGAMLA_PREFILL_AUTO, MEGAMLA_PREFILL_PAGED);
  v.require(c.batch_invariant == 0 || c.prefill_path != MEGAMLA_PREFILL_GATHERED, "prefill_path",
            "auto or paged for batch-invariant results", "gathered");
  MEGAMLA_RETURN_IF_ERROR(v.status());
  MEGAMLA_RETURN_IF_ERROR(check_formats(c));
  return c.quantize_z != 0 ? can_quantize_z(c) : Status{};
}

Status is_supported(const megamla_layer_config& config, megamla_device device) {
  MEGAMLA_RETURN_IF_ERROR(check_config(config));
  megamla_device resolved{};
  MEGAMLA_RETURN_IF_ERROR(ops::resolve_device(device, -1, &resolved));
  if (resolved == MEGAMLA_DEVICE_CUDA) MEGAMLA_RETURN_IF_ERROR(has_gpu(config.cuda_device));
  return config.prefill_path == MEGAMLA_PREFILL_GATHERED ? has_gathered_prefill(resolved) : Status();
}

Status backend_traits(megamla_device device, megamla_backend_traits* traits) {
  megamla_device resolved{};
  MEGAMLA_RETURN_IF_ERROR(ops::resolve_device(device, -1, &resolved));
  *traits = {};
  traits->struct_size = sizeof(*traits);
  traits->available = 1;
  if (resolved == MEGAMLA_DEVICE_CUDA) {
    traits->min_compute_capability = 90;
    traits->available = has_gpu(0).ok() ? 1 : 0;
    if (!kHaveKernels) return {};
  }
  traits->accepts_raw_query = 1;
  traits->window_formats = format_bit(MEGAMLA_KV_FP8_528) | format_bit(MEGAMLA_KV_FP8_584);
  traits->compressed_formats = traits->window_formats | format_bit(MEGAMLA_KV_NVFP4_288);
  traits->page_size_multiple = 1;
  traits->max_heads = kMaxHeads;
  return {};
}

Status resolve_kv_dtype(const char* kv_dtype, megamla_device device, megamla_kv_format* window,
                        megamla_kv_format* compressed) {
  if (kv_dtype == nullptr || window == nullptr || compressed == nullptr) {
    return invalid_argument("resolve_kv_dtype: kv_dtype, window, compressed: expected pointers, got NULL");
  }
  const std::string_view name = kv_dtype;
  megamla_kv_format w = MEGAMLA_KV_FP8_528;
  megamla_kv_format c = MEGAMLA_KV_NVFP4_288;
  if (name == "fp8_528") {
    c = MEGAMLA_KV_FP8_528;
  } else if (name == "fp8_584") {
    w = c = MEGAMLA_KV_FP8_584;
  } else if (name != "auto" && name != "fp8" && name != "nvfp4_288") {
    return invalid_argument("kv_dtype: expected auto, fp8, fp8_528, nvfp4_288 or fp8_584, got '{}'", name);
  }
  megamla_backend_traits traits{};
  MEGAMLA_RETURN_IF_ERROR(backend_traits(device, &traits));
  if ((traits.window_formats & format_bit(w)) == 0 || (traits.compressed_formats & format_bit(c)) == 0) {
    return unsupported("kv_dtype: '{}' = ({}, {}): device {} cannot read it in this build", name, format::name(w),
                       format::name(c), ops::device_name(device));
  }
  *window = w;
  *compressed = c;
  return {};
}

Status can_quantize_z(const megamla_layer_config& c) {
  MEGAMLA_RETURN_IF_ERROR(check_tensor_parallel(c.num_heads, c.o_groups, c.o_lora_rank, c.tp_size, c.tp_rank));
  const int64_t columns = c.o_groups / c.tp_size * c.o_lora_rank;
  if (columns % 128 != 0) {
    return unsupported("quantize_z: expected (groups on this rank * o_lora_rank) to be a multiple of 128, got {}",
                       columns);
  }
  return {};
}

}  // namespace megamla::layer
