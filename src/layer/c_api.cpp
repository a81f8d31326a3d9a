// C entry points of the layer and the workspace.
#include <memory>

#include "core/c_boundary.hpp"
#include "core/read_struct.hpp"
#include "layer/layer.hpp"
#include "layer/variants.hpp"
#include "ops/op.hpp"

using namespace megamla;  // NOLINT(google-build-using-namespace)

namespace {

template <class T>
void init_struct(T* target) {
  if (target == nullptr) return;
  *target = T{};
  target->struct_size = sizeof(T);
}

Status expect_pointer(const char* what, const void* pointer) {
  return pointer != nullptr ? Status{} : invalid_argument("{}: expected a pointer, got NULL", what);
}

}  // namespace

extern "C" {

void megamla_layer_config_init(megamla_layer_config* config) {
  if (config == nullptr) return;
  init_struct(config);
  config->hidden_size = 5120;
  config->num_heads = 64;
  config->head_dim = 512;
  config->rope_dim = 64;
  config->q_lora_rank = 1280;
  config->o_lora_rank = 1024;
  config->o_groups = 8;
  config->window = 128;
  config->index_topk = 512;
  config->rms_norm_eps = 1e-20F;
  config->softmax_scale = 0.04419417382415922F;  // 512^-0.5
  config->tp_size = 1;
  config->max_model_len = 1048576;
  config->max_num_batched_tokens = 8192;
  config->max_num_requests = 256;
  config->prefill_chunk_size = 4;
  config->window_format = MEGAMLA_KV_FP8_528;
}

void megamla_forward_params_init(megamla_forward_params* params) { init_struct(params); }
void megamla_step_metadata_init(megamla_step_metadata* metadata) { init_struct(metadata); }
void megamla_layer_taps_init(megamla_layer_taps* taps) { init_struct(taps); }

megamla_status megamla_layer_is_supported(const megamla_layer_config* config, megamla_device device) {
  return guard([&]() -> Status {
    megamla_layer_config c;
    MEGAMLA_RETURN_IF_ERROR(read_struct("layer", "config", config, &c));
    return layer::is_supported(c, device);
  });
}

megamla_status megamla_layer_backend_traits(megamla_device device, megamla_backend_traits* traits) {
  return guard([&]() -> Status {
    MEGAMLA_RETURN_IF_ERROR(expect_pointer("backend_traits: traits", traits));
    return layer::backend_traits(device, traits);
  });
}

megamla_status megamla_resolve_kv_dtype(const char* kv_dtype, megamla_device device, megamla_kv_format* window,
                                        megamla_kv_format* compressed) {
  return guard([&] { return layer::resolve_kv_dtype(kv_dtype, device, window, compressed); });
}

megamla_status megamla_layer_check_tensor_parallel(int64_t num_heads, int64_t o_groups, int64_t o_lora_rank,
                                                   int64_t tp_size, int64_t tp_rank) {
  return guard([&] { return layer::check_tensor_parallel(num_heads, o_groups, o_lora_rank, tp_size, tp_rank); });
}

megamla_status megamla_layer_can_quantize_z(const megamla_layer_config* config) {
  return guard([&]() -> Status {
    megamla_layer_config c;
    MEGAMLA_RETURN_IF_ERROR(read_struct("layer", "config", config, &c));
    return layer::can_quantize_z(c);
  });
}

megamla_status megamla_layer_create(const megamla_layer_config* config, megamla_device device, megamla_layer** result) {
  return guard([&]() -> Status {
    MEGAMLA_RETURN_IF_ERROR(expect_pointer("layer: layer", result));
    megamla_layer_config c;
    MEGAMLA_RETURN_IF_ERROR(read_struct("layer", "config", config, &c));
    MEGAMLA_RETURN_IF_ERROR(layer::is_supported(c, device));
    megamla_device resolved{};
    MEGAMLA_RETURN_IF_ERROR(ops::resolve_device(device, -1, &resolved));
    auto made = std::make_unique<megamla_layer>(c, resolved);
    MEGAMLA_RETURN_IF_ERROR(made->prepare());
    *result = made.release();
    return {};
  });
}

void megamla_layer_destroy(megamla_layer* layer) { std::unique_ptr<megamla_layer>{layer}.reset(); }

megamla_layer_role megamla_layer_get_role(const megamla_layer* layer) {
  return layer == nullptr ? MEGAMLA_ROLE_WINDOW_ONLY : layer::role_of(layer->config());
}

megamla_status megamla_layer_load(megamla_layer* layer, const megamla_named_tensor* tensors, int64_t count) {
  return guard([&]() -> Status {
    MEGAMLA_RETURN_IF_ERROR(expect_pointer("load: layer", layer));
    if (count < 0 || (tensors == nullptr && count > 0)) {
      return invalid_argument("load: tensors: expected an array of count >= 0 entries, got {} at {}", count,
                              tensors == nullptr ? "NULL" : "an address");
    }
    return layer->load({tensors, static_cast<size_t>(count)});
  });
}

megamla_status megamla_layer_is_loaded(const megamla_layer* layer) {
  return guard([&]() -> Status {
    MEGAMLA_RETURN_IF_ERROR(expect_pointer("is_loaded: layer", layer));
    return layer->loader().check_complete();
  });
}

int64_t megamla_layer_weight_bytes(const megamla_layer* layer) {
  return layer == nullptr ? 0 : layer->loader().weights().bytes();
}

megamla_status megamla_layer_workspace_size(const megamla_layer* layer, megamla_device device, int64_t num_threads,
                                            int64_t* bytes) {
  return guard([&]() -> Status {
    MEGAMLA_RETURN_IF_ERROR(expect_pointer("workspace_size: layer", layer));
    MEGAMLA_RETURN_IF_ERROR(expect_pointer("workspace_size: bytes", bytes));
    return layer->workspace_size(device, num_threads, bytes);
  });
}

megamla_status megamla_layer_forward(megamla_layer* layer, const megamla_forward_params* params,
                                     const megamla_exec* exec) {
  return guard([&]() -> Status {
    MEGAMLA_RETURN_IF_ERROR(expect_pointer("forward: layer", layer));
    megamla_forward_params p;
    MEGAMLA_RETURN_IF_ERROR(read_struct("forward", "params", params, &p));
    megamla_exec e = MEGAMLA_EXEC_INIT;
    if (exec != nullptr) MEGAMLA_RETURN_IF_ERROR(read_struct("forward", "exec", exec, &e));
    megamla_step_metadata metadata;
    if (p.metadata != nullptr) {
      MEGAMLA_RETURN_IF_ERROR(read_struct("forward", "metadata", p.metadata, &metadata));
      p.metadata = &metadata;
    }
    megamla_layer_taps taps;
    if (p.taps != nullptr) {
      MEGAMLA_RETURN_IF_ERROR(read_struct("forward", "taps", p.taps, &taps));
      p.taps = &taps;
    }
    return layer->forward(p, e);
  });
}

megamla_status megamla_layer_small_step_support(const megamla_layer_config* config, megamla_device device) {
  return guard([&]() -> Status {
    megamla_layer_config c;
    MEGAMLA_RETURN_IF_ERROR(read_struct("layer", "config", config, &c));
    return layer::small_step_support(c, device);
  });
}

int64_t megamla_warmed_variant_count(void) { return layer::variant_count(); }

megamla_status megamla_workspace_create(void* buffer, int64_t bytes, megamla_workspace_grow_fn grow, void* context,
                                        megamla_workspace** workspace) {
  return guard([&]() -> Status {
    MEGAMLA_RETURN_IF_ERROR(expect_pointer("workspace: workspace", workspace));
    auto created = std::make_unique<megamla_workspace>(nullptr, 0, grow, context);
    MEGAMLA_RETURN_IF_ERROR(created->bind(buffer, bytes));
    *workspace = created.release();
    return {};
  });
}

void megamla_workspace_destroy(megamla_workspace* workspace) { std::unique_ptr<megamla_workspace>{workspace}.reset(); }

megamla_status megamla_workspace_bind(megamla_workspace* workspace, void* buffer, int64_t bytes) {
  return guard([&]() -> Status {
    MEGAMLA_RETURN_IF_ERROR(expect_pointer("workspace: workspace", workspace));
    return workspace->bind(buffer, bytes);
  });
}

megamla_status megamla_workspace_reserve(megamla_workspace* workspace, int64_t bytes) {
  return guard([&]() -> Status {
    MEGAMLA_RETURN_IF_ERROR(expect_pointer("workspace: workspace", workspace));
    return workspace->reserve(bytes);
  });
}

int64_t megamla_workspace_required(const megamla_workspace* workspace) {
  return workspace == nullptr ? 0 : workspace->required();
}
int64_t megamla_workspace_bytes(const megamla_workspace* workspace) {
  return workspace == nullptr ? 0 : workspace->bytes();
}
void megamla_workspace_lock(megamla_workspace* workspace) {
  if (workspace != nullptr) workspace->lock();
}

megamla_status megamla_workspace_head(megamla_workspace* workspace, const int64_t* bytes, int64_t count,
                                      void** pointers) {
  return guard([&]() -> Status {
    MEGAMLA_RETURN_IF_ERROR(expect_pointer("workspace: workspace", workspace));
    if (count < 0 || (count > 0 && (bytes == nullptr || pointers == nullptr))) {
      return invalid_argument("workspace: bytes, pointers: expected arrays of count >= 0 entries, got count {}", count);
    }
    return workspace->head({bytes, static_cast<size_t>(count)}, {pointers, static_cast<size_t>(count)});
  });
}

megamla_status megamla_workspace_retained(megamla_workspace* workspace, uint64_t key, int64_t bytes, void** pointer,
                                          int32_t* intact) {
  return guard([&]() -> Status {
    MEGAMLA_RETURN_IF_ERROR(expect_pointer("workspace: workspace", workspace));
    MEGAMLA_RETURN_IF_ERROR(expect_pointer("workspace: pointer", pointer));
    MEGAMLA_RETURN_IF_ERROR(expect_pointer("workspace: intact", intact));
    bool kept = false;
    MEGAMLA_RETURN_IF_ERROR(workspace->retained(key, bytes, pointer, &kept));
    *intact = kept ? 1 : 0;
    return {};
  });
}

}  // extern "C"
