#include "layer/variants.hpp"

#include <mutex>
#include <set>
#include <string>

#include "core/tensor.hpp"
#include "format/kv_record.hpp"
#include "layer/call.hpp"
#include "layer/config.hpp"
#include "megamla/decode_attention.h"
#include "ops/memory.hpp"

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

// One token over empty caches of the config's formats, where no slot is a valid key: enough to select, load and run the
// variant.
megamla_decode_attention_params padded_token(const megamla_layer_config& c, const StepViews& views) {
  megamla_decode_attention_params p;
  megamla_decode_attention_init(&p);
  p.q = slice(views.q, 0, 1);
  p.q_layout = MEGAMLA_Q_CHUNKED;
  p.softmax_scale = c.softmax_scale;
  p.window.format = c.window_format;
  p.window.page_size = 1;
  p.window.cuda_device = views.q.cuda_device;
  p.window_slots = slice(views.window_slots, 0, 1);
  if (c.compress_ratio > 0) {
    p.compressed = p.window;
    p.compressed.format = c.compressed_format;
    p.compressed_slots = slice(views.compressed_slots, 0, 1);
  }
  p.out = slice(views.pair, 0, 1);
  p.out_scale = slice(views.pair_scale, 0, 1);
  return p;
}

}  // namespace

Status register_variants(const megamla_layer_config& config, const StepViews& views, const megamla_exec& exec) {
  const megamla_decode_attention_params token = padded_token(config, views);
  const char* implementation = nullptr;
  MEGAMLA_RETURN_IF_ERROR(
      call(megamla_decode_attention_implementation(&token, static_cast<megamla_device>(exec.device), &implementation)));
  const std::string key =
      fmt::format("{} on {} heads {} window {} compressed {}", implementation, token.q.cuda_device, token.q.shape[1],
                  format::name(static_cast<megamla_kv_format>(config.window_format)),
                  format::name(static_cast<megamla_kv_format>(config.compressed_format)));
  const std::lock_guard<std::mutex> lock(registry().mutex);
  if (registry().variants.contains(key)) return {};
  // Slots beyond an empty cache are no keys, but they are read.
  MEGAMLA_RETURN_IF_ERROR(ops::clear_rows(token.q, exec));
  MEGAMLA_RETURN_IF_ERROR(ops::clear_rows(token.window_slots, exec));
  if (present(token.compressed_slots)) MEGAMLA_RETURN_IF_ERROR(ops::clear_rows(token.compressed_slots, exec));
  MEGAMLA_RETURN_IF_ERROR(call(megamla_decode_attention(&token, &exec)));
  registry().variants.insert(key);
  return {};
}

int64_t variant_count() {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  return static_cast<int64_t>(registry().variants.size());
}

// decode_attention itself divides few rows over the machine, on a CPU by heads and on a GPU by keys, so every supported
// config has its small-step form.
Status small_step_support(const megamla_layer_config& config, megamla_device device) {
  return is_supported(config, device);
}

}  // namespace megamla::layer
