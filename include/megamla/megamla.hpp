// MegaMLA for C++20: the C ABI with initialised structs, overloads and owned handles. Header only; nothing but C
// functions crosses the library's boundary, so compiler and standard library of caller and library may differ.
//
//   namespace mla = megamla::api;
//   mla::TopkToSlots p;                                   // initialised; fields as in megamla/index_ops.h
//   p.topk = mla::tensor(topk.data(), {tokens, width});
//   ...
//   if (mla::Result r = mla::run(p); !r) fail(r.message());
//
// Everything is in megamla::api, since the library's own sources use namespace megamla for its internals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>

#include "megamla/megamla.h"

namespace megamla::api {

// A status and, unless it is MEGAMLA_OK, a copy of its message. True if ok.
class [[nodiscard]] Result {
 public:
  Result() = default;
  // Of a call that this thread has just made.
  explicit Result(megamla_status code) : code_(code) {
    if (code != MEGAMLA_OK) message_ = megamla_last_error();
  }

  bool ok() const { return code_ == MEGAMLA_OK; }
  explicit operator bool() const { return ok(); }
  megamla_status code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  megamla_status code_ = MEGAMLA_OK;
  std::string message_;
};

// Automatic device, all cores, default stream, no workspace.
struct Exec : megamla_exec {
  Exec() : megamla_exec(MEGAMLA_EXEC_INIT) {}
  explicit Exec(megamla_device where) : Exec() { device = where; }
};

struct Limits : megamla_limits {
  Limits() : megamla_limits(MEGAMLA_LIMITS_INIT) {}
};

// A C-contiguous view. More than MEGAMLA_MAX_DIMS extents give a tensor that every op refuses.
inline megamla_tensor tensor(void* data, std::initializer_list<int64_t> shape, megamla_dtype dtype,
                             int32_t cuda_device = -1) {
  megamla_tensor t{};
  t.data = data;
  t.dtype = dtype;
  t.cuda_device = cuda_device;
  t.ndim = static_cast<int32_t>(shape.size());
  if (shape.size() > MEGAMLA_MAX_DIMS) return t;
  int32_t d = 0;
  for (const int64_t extent : shape) t.shape[d++] = extent;
  int64_t stride = 1;
  while (d-- > 0) {
    t.stride[d] = stride;
    stride *= t.shape[d];
  }
  return t;
}

// The ABI has one pointer type for inputs and outputs; an op never writes through an input.
inline megamla_tensor tensor(const void* data, std::initializer_list<int64_t> shape, megamla_dtype dtype,
                             int32_t cuda_device = -1) {
  return tensor(const_cast<void*>(data), shape, dtype, cuda_device);
}

template <class T>
struct DtypeOf;  // no definition: give the dtype, as for the formats that C++ has no type for
template <>
struct DtypeOf<uint8_t> : std::integral_constant<megamla_dtype, MEGAMLA_U8> {};
template <>
struct DtypeOf<int32_t> : std::integral_constant<megamla_dtype, MEGAMLA_I32> {};
template <>
struct DtypeOf<int64_t> : std::integral_constant<megamla_dtype, MEGAMLA_I64> {};
template <>
struct DtypeOf<float> : std::integral_constant<megamla_dtype, MEGAMLA_F32> {};
template <>
struct DtypeOf<double> : std::integral_constant<megamla_dtype, MEGAMLA_F64> {};

// The dtype follows from the pointer.
template <class T>
megamla_tensor tensor(T* data, std::initializer_list<int64_t> shape) {
  return tensor(static_cast<const void*>(data), shape, DtypeOf<std::remove_const_t<T>>::value);
}

// Same data, other strides (in elements), one for each dimension.
inline megamla_tensor with_strides(megamla_tensor t, std::initializer_list<int64_t> strides) {
  int32_t d = 0;
  for (const int64_t stride : strides) {
    if (d < MEGAMLA_MAX_DIMS) t.stride[d++] = stride;
  }
  return t;
}

// One op: TYPE is its parameter struct, initialised; supports, implementation, workspace_size and run are overloads.
// workspace_size<TYPE>(limits, device, &bytes) finds its op through the type alone.
#define MEGAMLA_CPP_OP(TYPE, NAME)                                                                                  \
  struct TYPE : megamla_##NAME##_params {                                                                           \
    TYPE() : megamla_##NAME##_params() { megamla_##NAME##_init(this); }                                             \
  };                                                                                                                \
  inline Result supports(const megamla_##NAME##_params& params, megamla_device device = MEGAMLA_DEVICE_AUTO) {      \
    return Result(megamla_##NAME##_supports(&params, device));                                                      \
  }                                                                                                                 \
  inline Result implementation(const megamla_##NAME##_params& params, megamla_device device, const char** name) {   \
    return Result(megamla_##NAME##_implementation(&params, device, name));                                          \
  }                                                                                                                 \
  inline Result workspace_size(const megamla_##NAME##_params*, const megamla_limits& limits, megamla_device device, \
                               int64_t* bytes) {                                                                    \
    return Result(megamla_##NAME##_workspace_size(&limits, device, bytes));                                         \
  }                                                                                                                 \
  inline Result run(const megamla_##NAME##_params& params, const megamla_exec& exec = Exec()) {                     \
    return Result(megamla_##NAME(&params, &exec));                                                                  \
  }

MEGAMLA_CPP_OP(BlockScaledLinear, block_scaled_linear)
MEGAMLA_CPP_OP(CombineTopkSwa, combine_topk_swa)
MEGAMLA_CPP_OP(DecodeAttention, decode_attention)
MEGAMLA_CPP_OP(KvCompress, kv_compress)
MEGAMLA_CPP_OP(KvGather, kv_gather)
MEGAMLA_CPP_OP(KvInsert, kv_insert)
MEGAMLA_CPP_OP(OutputCast, output_cast)
MEGAMLA_CPP_OP(PermuteWeights, permute_weights)
MEGAMLA_CPP_OP(PrefillAttention, prefill_attention)
MEGAMLA_CPP_OP(RmsNorm, rms_norm)
MEGAMLA_CPP_OP(RopeTable, rope_table)
MEGAMLA_CPP_OP(SwaMetadata, swa_metadata)
MEGAMLA_CPP_OP(TopkToSlots, topk_to_slots)
#undef MEGAMLA_CPP_OP

template <class Op>
Result workspace_size(const megamla_limits& limits, megamla_device device, int64_t* bytes) {
  return workspace_size(static_cast<const Op*>(nullptr), limits, device, bytes);
}

// Structs that are not an op's.
#define MEGAMLA_CPP_STRUCT(TYPE, C_TYPE, INIT) \
  struct TYPE : C_TYPE {                       \
    TYPE() : C_TYPE() { INIT(this); }          \
  };

MEGAMLA_CPP_STRUCT(PrefillChunkPlan, megamla_prefill_chunk_plan_params, megamla_prefill_chunk_plan_init)
MEGAMLA_CPP_STRUCT(LayerConfig, megamla_layer_config, megamla_layer_config_init)
MEGAMLA_CPP_STRUCT(Forward, megamla_forward_params, megamla_forward_params_init)
MEGAMLA_CPP_STRUCT(StepMetadata, megamla_step_metadata, megamla_step_metadata_init)
MEGAMLA_CPP_STRUCT(LayerTaps, megamla_layer_taps, megamla_layer_taps_init)
#undef MEGAMLA_CPP_STRUCT

// Owned handles: `.get()` goes to the C functions of layer.h and workspace.h.
struct Destroy {
  void operator()(megamla_layer* layer) const { megamla_layer_destroy(layer); }
  void operator()(megamla_workspace* workspace) const { megamla_workspace_destroy(workspace); }
};
using Layer = std::unique_ptr<megamla_layer, Destroy>;
using Workspace = std::unique_ptr<megamla_workspace, Destroy>;

inline Result create(const megamla_layer_config& config, megamla_device device, Layer* layer) {
  megamla_layer* made = nullptr;
  Result result(megamla_layer_create(&config, device, &made));
  layer->reset(made);
  return result;
}
// A workspace over a buffer of the caller's, which `grow` may replace before it is locked.
inline Result create(void* buffer, int64_t bytes, megamla_workspace_grow_fn grow, void* context, Workspace* workspace) {
  megamla_workspace* made = nullptr;
  Result result(megamla_workspace_create(buffer, bytes, grow, context, &made));
  workspace->reset(made);
  return result;
}
inline Result run(megamla_layer* layer, const megamla_forward_params& params, const megamla_exec& exec = Exec()) {
  return Result(megamla_layer_forward(layer, &params, &exec));
}

}  // namespace megamla::api
