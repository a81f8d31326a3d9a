// Construction checks and backend traits: what a layer refuses, and what a device can read, without building anything.
#pragma once

#include "core/status.hpp"
#include "megamla/layer.h"

namespace megamla::layer {

Status check_config(const megamla_layer_config& config);
// check_config, and whether this build and machine have what the config needs.
Status is_supported(const megamla_layer_config& config, megamla_device device);
Status backend_traits(megamla_device device, megamla_backend_traits* traits);
Status resolve_kv_dtype(const char* kv_dtype, megamla_device device, megamla_kv_format* window,
                        megamla_kv_format* compressed);
Status check_tensor_parallel(int64_t num_heads, int64_t o_groups, int64_t o_lora_rank, int64_t tp_size,
                             int64_t tp_rank);
Status can_quantize_z(const megamla_layer_config& config);
megamla_layer_role role_of(const megamla_layer_config& config);

}  // namespace megamla::layer
