#include "ops/op.hpp"

namespace megamla::ops {

const char* device_name(megamla_device device) {
  switch (device) {
    case MEGAMLA_DEVICE_AUTO:
      return "auto";
    case MEGAMLA_DEVICE_REFERENCE:
      return "reference";
    case MEGAMLA_DEVICE_CPU:
      return "cpu";
    case MEGAMLA_DEVICE_CUDA:
      return "cuda";
    case MEGAMLA_DEVICE_FORCE_INT:
      break;
  }
  return "?";
}

Status resolve_device(megamla_device requested, int32_t cuda_device, megamla_device* resolved) {
  if (requested < MEGAMLA_DEVICE_AUTO || requested > MEGAMLA_DEVICE_CUDA) {
    return invalid_argument("device: expected auto (0), reference (1), cpu (2) or cuda (3), got {}",
                            static_cast<int>(requested));
  }
  *resolved = requested;
  if (requested == MEGAMLA_DEVICE_AUTO) *resolved = cuda_device >= 0 ? MEGAMLA_DEVICE_CUDA : MEGAMLA_DEVICE_CPU;
  return {};
}

Status check_limits(const char* op, const megamla_limits& limits) {
  Validator v(op, -1);
  constexpr int64_t kMax = int64_t{1} << 40;  // keeps every product of a size query within 64 bits
  v.range("limits.tokens", limits.tokens, 0, int64_t{1} << 31);
  v.range("limits.heads", limits.heads, 0, 128);
  v.range("limits.window_width", limits.window_width, 0, int64_t{1} << 31);
  v.range("limits.compressed_width", limits.compressed_width, 0, int64_t{1} << 31);
  v.range("limits.groups", limits.groups, 0, 1024);
  v.range("limits.in_features", limits.in_features, 0, int64_t{1} << 24);
  v.range("limits.out_features", limits.out_features, 0, int64_t{1} << 24);
  v.range("limits.num_threads", limits.num_threads, 0, kMax);
  return v.status();
}

Status check_exec(const char* op, const megamla_exec& exec, int64_t needed) {
  Validator v(op, -1);
  v.range("exec.num_threads", exec.num_threads, 0, 4096);
  v.range("exec.workspace_bytes", exec.workspace_bytes, 0, INT64_MAX);
  if (needed > 0) v.aligned("exec.workspace", exec.workspace, 256);
  MEGAMLA_RETURN_IF_ERROR(v.status());
  const int64_t there = exec.workspace == nullptr ? 0 : exec.workspace_bytes;
  if (there < needed) {
    return {MEGAMLA_WORKSPACE_TOO_SMALL,
            fmt::format("{}: exec.workspace: expected at least {} bytes, got {} (ask {}_workspace_size)", op, needed,
                        there, op)};
  }
  return {};
}

Status check_gpu([[maybe_unused]] const char* op, [[maybe_unused]] int32_t cuda_device) {
#if MEGAMLA_HAVE_CUDA
  return cuda::check_device(op, cuda_device);
#else
  return {};
#endif
}

}  // namespace megamla::ops
