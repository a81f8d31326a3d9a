// Facts about the library: its version, and the workspace that an op needs.
#include <map>
#include <string>

#include "call.hpp"

namespace megamla::python {
namespace {

tvm::ffi::String version() { return megamla_version(); }

int64_t workspace_size(const tvm::ffi::String& op, int64_t device, int64_t tokens, int64_t heads, int64_t window_width,
                       int64_t compressed_width, int64_t groups, int64_t in_features, int64_t out_features,
                       int64_t num_threads) {
  static const std::map<std::string, Call::WorkspaceSize> kSizes = {
      {"decode_attention", megamla_decode_attention_workspace_size},
      {"prefill_attention", megamla_prefill_attention_workspace_size},
      {"kv_compress", megamla_kv_compress_workspace_size},
      {"block_scaled_linear", megamla_block_scaled_linear_workspace_size}};
  const auto found = kSizes.find(op);
  if (found == kSizes.end()) {
    TVM_FFI_THROW(ValueError) << "workspace_size: op: expected decode_attention, prefill_attention, kv_compress or "
                                 "block_scaled_linear (other ops need none), got "
                              << std::string(op);
  }
  const megamla_limits limits = {
      sizeof(megamla_limits), tokens,     heads, window_width, compressed_width, groups, in_features,
      out_features,           num_threads};
  int64_t bytes = 0;
  check(found->second(&limits, static_cast<megamla_device>(device), &bytes));
  return bytes;
}

}  // namespace
}  // namespace megamla::python

TVM_FFI_DLL_EXPORT_TYPED_FUNC(version, megamla::python::version);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(workspace_size, megamla::python::workspace_size);
