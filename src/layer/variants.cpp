#include "layer/variants.hpp"

#include <array>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/tensor.hpp"
#include "format/chunked.hpp"
#include "format/kv_record.hpp"
#include "layer/call.hpp"
#include "layer/config.hpp"
#include "megamla/decode_attention.h"
#include "ops/op.hpp"

namespace megamla::layer {
namespace {

struct Registry {
  std::mutex mutex;
  std::set<std::string> variants;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

// One token with no valid key over empty caches of the config's formats: enough to select, load and run the variant.
struct PaddedToken {
  explicit PaddedToken(const megamla_layer_config& c)
      : heads(c.num_heads / c.tp_size),
        q(static_cast<size_t>(heads * c.head_dim)),
        out(static_cast<size_t>(heads * c.head_dim)),
        scale(static_cast<size_t>(heads / 8 * format::kGroupScaleWords * 4)) {
    megamla_decode_attention_init(&params);
    params.q = host_tensor(q.data(), MEGAMLA_BF16, {1, heads, c.head_dim});
    params.q_layout = MEGAMLA_Q_CHUNKED;
    params.softmax_scale = c.softmax_scale;
    params.window.format = c.window_format;
    params.window.page_size = 1;
    params.window.cuda_device = -1;
    params.window_slots = host_tensor(&slot, MEGAMLA_I32, {1, 1});
    if (c.compress_ratio > 0) {
      params.compressed = params.window;
      params.compressed.format = c.compressed_format;
      params.compressed_slots = params.window_slots;
    }
    params.out = host_tensor(out.data(), MEGAMLA_F8_E4M3, {1, heads / 8, format::kGroupWidth});
    params.out_scale = host_tensor(scale.data(), MEGAMLA_I32, {1, heads / 8, format::kGroupScaleWords});
    params.out_scale.stride[0] = 1;
    params.out_scale.stride[1] = format::kGroupScaleWords * 4;
    params.out_scale.stride[2] = 4;
  }

  int64_t heads;
  int32_t slot = -1;
  std::vector<uint16_t> q;
  std::vector<uint8_t> out;
  std::vector<int32_t> scale;
  megamla_decode_attention_params params{};
};

}  // namespace

Status register_variants(const megamla_layer_config& config, const megamla_exec& exec) {
  PaddedToken token(config);
  const char* implementation = nullptr;
  MEGAMLA_RETURN_IF_ERROR(call(megamla_decode_attention_implementation(
      &token.params, static_cast<megamla_device>(exec.device), &implementation)));
  const std::string key = fmt::format("{} heads {} window {} compressed {}", implementation, token.heads,
                                      format::name(static_cast<megamla_kv_format>(config.window_format)),
                                      format::name(static_cast<megamla_kv_format>(config.compressed_format)));
  const std::lock_guard<std::mutex> lock(registry().mutex);
  if (registry().variants.contains(key)) return {};
  MEGAMLA_RETURN_IF_ERROR(call(megamla_decode_attention(&token.params, &exec)));
  registry().variants.insert(key);
  return {};
}

int64_t variant_count() {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  return static_cast<int64_t>(registry().variants.size());
}

// On a CPU decode_attention itself divides the heads of few rows over the cores, so every supported config has its
// small-step form.
Status small_step_support(const megamla_layer_config& config, megamla_device device) {
  return is_supported(config, device);
}

}  // namespace megamla::layer
