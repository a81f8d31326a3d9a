// The one mechanism behind every op: validate, choose the first implementation that covers the parameters, check the
// workspace, run.
//
// An op `foo` is described once, in src/ops/foo.cpp, by an Op<megamla_foo_params> and MEGAMLA_DEFINE_OP(foo, ...),
// which makes the five C entry points of include/megamla/foo.h. Implementations are listed best first; each says what
// it covers in `supports`.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "core/c_boundary.hpp"
#include "core/read_struct.hpp"
#include "core/status.hpp"
#include "core/tensor.hpp"
#include "core/validate.hpp"
#include "ops/registry.hpp"
#include "ops/usage.hpp"
#if MEGAMLA_HAVE_CUDA
#include "cuda/launch.hpp"
#endif

namespace megamla::ops {

template <class Params>
struct Implementation {
  const char* name;  // "cpu.onednn", "cuda.sm90_h16": what the program prints
  megamla_device device;
  Status (*supports)(const Params&);                 // UNSUPPORTED, naming what is missing
  int64_t (*workspace_size)(const megamla_limits&);  // bytes for every call within the limits
  Status (*run)(const Params&,
                const megamla_exec&);  // parameters are valid, covered, and the workspace is large enough
};

template <class Params>
struct Op {
  const char* name;
  Status (*validate)(const Params&, int32_t cuda_device);  // the contract; reads no tensor data
  megamla_limits (*limits_of)(const Params&);  // the limits that this very call needs (num_threads is set by run)
  int32_t (*memory_of)(const Params&);         // cuda_device of the tensor that decides where the op runs
  std::span<const Implementation<Params>> implementations;
};

template <class Params>
Status supports_all(const Params&) {
  return {};
}
inline int64_t no_workspace(const megamla_limits&) { return 0; }

const char* device_name(megamla_device device);
// AUTO -> cuda for GPU memory, else cpu. Refuses a device that is none of the enumeration.
Status resolve_device(megamla_device requested, int32_t cuda_device, megamla_device* resolved);
Status check_limits(const char* op, const megamla_limits& limits);
Status check_exec(const char* op, const megamla_exec& exec, int64_t needed);
// UNSUPPORTED unless kernels of this build run on that GPU; OK in a build without any.
Status check_gpu(const char* op, int32_t cuda_device);

using megamla::read_struct;

template <class Params>
Status choose(const Op<Params>& op, const Params& params, megamla_device requested,
              const Implementation<Params>** chosen) {
  const int32_t memory = op.memory_of(params);
  megamla_device device{};
  MEGAMLA_RETURN_IF_ERROR(resolve_device(requested, memory, &device));
  const int32_t gpu = device == MEGAMLA_DEVICE_CUDA ? std::max(memory, 0) : -1;
  MEGAMLA_RETURN_IF_ERROR(op.validate(params, gpu));
  if (gpu >= 0) MEGAMLA_RETURN_IF_ERROR(check_gpu(op.name, gpu));
  std::string reasons;
  for (const Implementation<Params>& candidate : op.implementations) {
    if (candidate.device != device) continue;
    const Status covers = candidate.supports(params);
    if (covers.ok()) {
      *chosen = &candidate;
      return {};
    }
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", candidate.name, covers.message());
  }
  if (reasons.empty())
    return unsupported("{}: this build has no implementation for device {}", op.name, device_name(device));
  return unsupported("{}: no implementation on device {} covers these parameters: {}", op.name, device_name(device),
                     reasons);
}

template <class Params>
Status workspace_size(const Op<Params>& op, const megamla_limits& limits, megamla_device requested, int64_t* bytes) {
  MEGAMLA_RETURN_IF_ERROR(check_limits(op.name, limits));
  megamla_device device{};
  MEGAMLA_RETURN_IF_ERROR(resolve_device(requested, -1, &device));
  bool any = false;
  *bytes = 0;
  for (const Implementation<Params>& candidate : op.implementations) {
    if (candidate.device != device) continue;
    any = true;
    *bytes = std::max(*bytes, candidate.workspace_size(limits));
  }
  if (!any) return unsupported("{}: this build has no implementation for device {}", op.name, device_name(device));
  return {};
}

template <class Params>
Status run_chosen(const Op<Params>& op, const Implementation<Params>& chosen, const Params& params,
                  const megamla_exec& exec) {
  megamla_limits limits = op.limits_of(params);
  limits.struct_size = sizeof(limits);
  limits.num_threads = exec.num_threads;
  MEGAMLA_RETURN_IF_ERROR(check_exec(op.name, exec, chosen.workspace_size(limits)));
  note_use(&chosen, op.name, chosen.name);
#if MEGAMLA_HAVE_CUDA
  const cuda::DeviceGuard current(op.name, chosen.device == MEGAMLA_DEVICE_CUDA ? op.memory_of(params) : -1);
  MEGAMLA_RETURN_IF_ERROR(current.status());
#endif
  return chosen.run(params, exec);
}

template <class Params>
Status run(const Op<Params>& op, const Params& params, const megamla_exec& exec) {
  const Implementation<Params>* chosen = nullptr;
  MEGAMLA_RETURN_IF_ERROR(choose(op, params, static_cast<megamla_device>(exec.device), &chosen));
  return run_chosen(op, *chosen, params, exec);
}

// `wanted` in place of the first that covers, with every check that `run` makes: for tests and measurements.
template <class Params>
Status run_implementation(const Op<Params>& op, const Implementation<Params>& wanted, const Params& params,
                          const megamla_exec& exec) {
  const int32_t gpu = wanted.device == MEGAMLA_DEVICE_CUDA ? std::max(op.memory_of(params), 0) : -1;
  MEGAMLA_RETURN_IF_ERROR(op.validate(params, gpu));
  if (gpu >= 0) MEGAMLA_RETURN_IF_ERROR(check_gpu(op.name, gpu));
  MEGAMLA_RETURN_IF_ERROR(wanted.supports(params));
  return run_chosen(op, wanted, params, exec);
}

}  // namespace megamla::ops

// The five C entry points of an op, and its op_of (ops/registry.hpp). OP is an expression of type const
// Op<megamla_NAME_params>&.
#define MEGAMLA_DEFINE_OP(NAME, OP)                                                                                   \
  const megamla::ops::Op<megamla_##NAME##_params>& megamla::ops::op_of(const megamla_##NAME##_params*) { return OP; } \
  extern "C" megamla_status megamla_##NAME##_supports(const megamla_##NAME##_params* params, megamla_device device) { \
    return megamla::guard([&]() -> megamla::Status {                                                                  \
      megamla_##NAME##_params p;                                                                                      \
      MEGAMLA_RETURN_IF_ERROR(megamla::ops::read_struct(#NAME, "params", params, &p));                                \
      const megamla::ops::Implementation<megamla_##NAME##_params>* chosen = nullptr;                                  \
      return megamla::ops::choose(OP, p, device, &chosen);                                                            \
    });                                                                                                               \
  }                                                                                                                   \
  extern "C" megamla_status megamla_##NAME##_implementation(const megamla_##NAME##_params* params,                    \
                                                            megamla_device device, const char** name) {               \
    return megamla::guard([&]() -> megamla::Status {                                                                  \
      if (name == nullptr) return megamla::invalid_argument(#NAME ": name: expected a pointer, got NULL");            \
      megamla_##NAME##_params p;                                                                                      \
      MEGAMLA_RETURN_IF_ERROR(megamla::ops::read_struct(#NAME, "params", params, &p));                                \
      const megamla::ops::Implementation<megamla_##NAME##_params>* chosen = nullptr;                                  \
      MEGAMLA_RETURN_IF_ERROR(megamla::ops::choose(OP, p, device, &chosen));                                          \
      *name = chosen->name;                                                                                           \
      return {};                                                                                                      \
    });                                                                                                               \
  }                                                                                                                   \
  extern "C" megamla_status megamla_##NAME##_workspace_size(const megamla_limits* limits, megamla_device device,      \
                                                            int64_t* bytes) {                                         \
    return megamla::guard([&]() -> megamla::Status {                                                                  \
      if (bytes == nullptr) return megamla::invalid_argument(#NAME ": bytes: expected a pointer, got NULL");          \
      megamla_limits l;                                                                                               \
      MEGAMLA_RETURN_IF_ERROR(megamla::ops::read_struct(#NAME, "limits", limits, &l));                                \
      return megamla::ops::workspace_size(OP, l, device, bytes);                                                      \
    });                                                                                                               \
  }                                                                                                                   \
  extern "C" megamla_status megamla_##NAME(const megamla_##NAME##_params* params, const megamla_exec* exec) {         \
    return megamla::guard([&]() -> megamla::Status {                                                                  \
      megamla_##NAME##_params p;                                                                                      \
      MEGAMLA_RETURN_IF_ERROR(megamla::ops::read_struct(#NAME, "params", params, &p));                                \
      megamla_exec e = MEGAMLA_EXEC_INIT;                                                                             \
      if (exec != nullptr) MEGAMLA_RETURN_IF_ERROR(megamla::ops::read_struct(#NAME, "exec", exec, &e));               \
      return megamla::ops::run(OP, p, e);                                                                             \
    });                                                                                                               \
  }
