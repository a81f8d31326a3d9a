#include "call.hpp"

#include <tvm/ffi/extra/c_env_api.h>

#include <algorithm>
#include <string>

#if MEGAMLA_HAVE_CUDA
#include "cuda/stream_workspace.hpp"
#endif
#include "format/kv_record.hpp"

namespace megamla::python {
namespace {

constexpr int64_t kWorkspaceAlignment = 256;
constexpr int32_t kUnknownDtype = -1;

// The library's dtype for a DLPack one; kUnknownDtype where it has none.
int32_t dtype_of(DLDataType type, Dtypes dtypes) {
  if (type.lanes != 1) return kUnknownDtype;
  const auto one_byte = [&] {
    const auto* wanted = std::find_if(dtypes.begin(), dtypes.end(), [](auto d) { return megamla_dtype_size(d) == 1; });
    return wanted != dtypes.end() ? *wanted : MEGAMLA_U8;
  };
  switch (type.code) {
    case kDLUInt:
      return type.bits == 8 ? one_byte() : type.bits == 16 ? MEGAMLA_BF16 : kUnknownDtype;
    case kDLBool:
      return type.bits == 8 ? MEGAMLA_U8 : kUnknownDtype;
    case kDLInt:  // engines may keep the bytes of a cache as int8
      return type.bits == 8    ? MEGAMLA_U8
             : type.bits == 32 ? MEGAMLA_I32
             : type.bits == 64 ? MEGAMLA_I64
                               : kUnknownDtype;
    case kDLFloat:
      return type.bits == 32 ? MEGAMLA_F32 : type.bits == 64 ? MEGAMLA_F64 : kUnknownDtype;
    case kDLBfloat:
      return type.bits == 16 ? MEGAMLA_BF16 : kUnknownDtype;
    case kDLFloat8_e4m3fn:
      return MEGAMLA_F8_E4M3;
    case kDLFloat8_e8m0fnu:
      return MEGAMLA_F8_E8M0;
    default:
      return kUnknownDtype;
  }
}

std::string names_of(Dtypes dtypes) {
  std::string text;
  for (megamla_dtype dtype : dtypes) text += std::string(text.empty() ? "" : " or ") + megamla_dtype_name(dtype);
  return text.empty() ? "a dtype of the library" : text;
}

std::string refused(const char* op, const char* name, const std::string& expected, const std::string& got) {
  return std::string(op) + ": " + name + ": expected " + expected + ", got " + got;
}

megamla_kv_format format_of(int64_t record) {
  for (megamla_kv_format format : {MEGAMLA_KV_FP8_528, MEGAMLA_KV_NVFP4_288, MEGAMLA_KV_FP8_584}) {
    if (format::record_bytes(format) == record) return format;
  }
  return MEGAMLA_KV_NONE;
}

void* address_of(const DLTensor* tensor) { return static_cast<char*>(tensor->data) + tensor->byte_offset; }

}  // namespace

void check(megamla_status status) {
  switch (status) {
    case MEGAMLA_OK:
      return;
    case MEGAMLA_INVALID_ARGUMENT:
    case MEGAMLA_WORKSPACE_TOO_SMALL:
      TVM_FFI_THROW(ValueError) << megamla_last_error();
      break;
    case MEGAMLA_UNSUPPORTED:
      TVM_FFI_THROW(NotImplementedError) << megamla_last_error();
      break;
    default:
      TVM_FFI_THROW(RuntimeError) << megamla_last_error();
      break;
  }
}

Call::Call(const char* op, const Where& where) : op_(op) {
  exec_.device = static_cast<int32_t>(where.device);
  exec_.num_threads = static_cast<int32_t>(std::clamp<int64_t>(where.num_threads, INT32_MIN, INT32_MAX));
  if (!where.workspace.has_value()) return;
  const megamla_tensor workspace = tensor("workspace", where.workspace, {MEGAMLA_U8});
  if (workspace.ndim != 1 || workspace.stride[0] != 1) {
    TVM_FFI_THROW(ValueError) << refused(op_, "workspace", "contiguous U8 [bytes]",
                                         std::to_string(workspace.ndim) + " dimensions or a stride");
  }
  exec_.workspace = workspace.data;
  exec_.workspace_bytes = workspace.shape[0];
}

int32_t Call::memory(const char* name, const DLTensor* tensor) {
  const DLDevice device = tensor->device;
  switch (device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
      return -1;
    case kDLCUDA:
    case kDLCUDAManaged:
      if (cuda_device_ < 0) cuda_device_ = device.device_id;
      return device.device_id;
    default:
      TVM_FFI_THROW(ValueError) << refused(op_, name, "host or CUDA memory",
                                           "device type " + std::to_string(static_cast<int>(device.device_type)));
  }
}

megamla_tensor Call::tensor(const char* name, const MaybeTensor& tensor, Dtypes dtypes) {
  megamla_tensor view{};
  view.cuda_device = -1;
  if (!tensor.has_value()) return view;
  const DLTensor* from = *tensor;
  view.dtype = dtype_of(from->dtype, dtypes);
  const bool fits = dtypes.size() == 0 || std::count(dtypes.begin(), dtypes.end(), view.dtype) != 0;
  if (view.dtype == kUnknownDtype || !fits) {
    const bool known = view.dtype != kUnknownDtype;
    TVM_FFI_THROW(TypeError) << refused(op_, name, names_of(dtypes),
                                        known ? megamla_dtype_name(static_cast<megamla_dtype>(view.dtype))
                                              : std::string(tvm::ffi::DLDataTypeToString(from->dtype)));
  }
  if (from->ndim > MEGAMLA_MAX_DIMS) {
    TVM_FFI_THROW(ValueError) << refused(op_, name, "at most 4 dimensions", std::to_string(from->ndim));
  }
  view.data = address_of(from);
  view.ndim = from->ndim;
  view.cuda_device = memory(name, from);
  for (int i = 0; i < view.ndim; ++i) {
    view.shape[i] = from->shape[i];
    view.stride[i] = from->strides[i];
  }
  return view;
}

megamla_tensor Call::rows(const char* name, const MaybeTensor& tensor, Dtypes dtypes, int ndim) {
  megamla_tensor view = this->tensor(name, tensor, dtypes);
  if (view.ndim != ndim + 1) return view;
  const bool one_run = view.shape[0] <= 1 || view.shape[1] <= 1 || view.stride[0] == view.shape[1] * view.stride[1];
  if (!one_run) {
    TVM_FFI_THROW(ValueError) << refused(op_, name, "strides of the first two dimensions that merge",
                                         std::to_string(view.stride[0]) + " and " + std::to_string(view.stride[1]));
  }
  if (view.shape[1] > 1) view.stride[0] = view.stride[1];
  view.shape[0] *= view.shape[1];
  for (int i = 1; i < ndim; ++i) {
    view.shape[i] = view.shape[i + 1];
    view.stride[i] = view.stride[i + 1];
  }
  view.ndim = ndim;
  view.shape[ndim] = 0;
  view.stride[ndim] = 0;
  return view;
}

megamla_kv_cache Call::cache(const char* name, const MaybeTensor& pages, int64_t layout) {
  megamla_kv_cache cache{};
  cache.cuda_device = -1;
  if (!pages.has_value()) return cache;
  const megamla_tensor view = tensor(name, pages, {MEGAMLA_U8, MEGAMLA_F8_E4M3});
  const int last = view.ndim - 1;
  const bool shaped = view.ndim == 3 || (view.ndim == 4 && view.shape[2] == 1);
  const megamla_kv_format format = shaped ? format_of(view.shape[last]) : MEGAMLA_KV_NONE;
  if (format == MEGAMLA_KV_NONE) {
    std::string shape;
    for (int i = 0; i < view.ndim; ++i) shape += (i == 0 ? "" : ", ") + std::to_string(view.shape[i]);
    TVM_FFI_THROW(ValueError) << refused(op_, name, "bytes [pages, page_size, 528, 288 or 584]", "[" + shape + "]");
  }
  const int64_t record = view.shape[last];
  const bool dense = view.stride[last] == 1 && (view.shape[1] <= 1 || view.stride[1] == record);
  if (view.shape[0] > 0 && !dense) {
    TVM_FFI_THROW(ValueError) << refused(op_, name, "records of a page one after the other", "strides between them");
  }
  cache.data = view.data;
  cache.num_pages = view.shape[0];
  cache.page_size = view.shape[1];
  // The stride of a dimension of 1 is never taken, and not every framework keeps it.
  cache.page_stride = view.shape[0] > 1 ? view.stride[0] : record * view.shape[1];
  cache.format = format;
  cache.layout = static_cast<int32_t>(layout);
  cache.cuda_device = view.cuda_device;
  return cache;
}

CUstream_st* Call::stream() const {
  if (cuda_device_ < 0) return nullptr;
  return static_cast<CUstream_st*>(TVMFFIEnvGetStream(kDLCUDA, cuda_device_));
}

void Call::make_workspace(WorkspaceSize size, megamla_limits limits) {
  if (exec_.workspace != nullptr || exec_.num_threads < 0) return;
  limits.num_threads = exec_.num_threads;
  const auto memory = cuda_device_ >= 0 ? MEGAMLA_DEVICE_CUDA : MEGAMLA_DEVICE_CPU;
  const auto device = exec_.device == MEGAMLA_DEVICE_AUTO ? memory : static_cast<megamla_device>(exec_.device);
  int64_t bytes = 0;
  // Limits that are refused belong to arguments that the op refuses, with a better message.
  if (size(&limits, device, &bytes) != MEGAMLA_OK || bytes == 0) return;
  exec_.workspace = cuda_device_ >= 0 ? gpu_workspace(bytes) : host_workspace(bytes);
  exec_.workspace_bytes = exec_.workspace != nullptr ? bytes : 0;
}

void* Call::host_workspace(int64_t bytes) {
  const auto rounded = (static_cast<size_t>(bytes) + kWorkspaceAlignment - 1) / kWorkspaceAlignment;
  own_workspace_.reset(std::aligned_alloc(kWorkspaceAlignment, rounded * kWorkspaceAlignment), std::free);
  return own_workspace_.get();
}

void* Call::gpu_workspace(int64_t bytes) {
#if MEGAMLA_HAVE_CUDA
  own_workspace_ = cuda::stream_workspace(cuda_device_, stream(), bytes);
  if (own_workspace_ != nullptr) return own_workspace_.get();
#endif
  if (TVMFFIEnvGetDLPackManagedTensorAllocator() == nullptr) return nullptr;  // the op names the bytes that it misses
  framework_workspace_ = tvm::ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, {bytes + kWorkspaceAlignment},
                                                        {kDLUInt, 8, 1}, {kDLCUDA, cuda_device_});
  const auto address = reinterpret_cast<uintptr_t>((*framework_workspace_).data_ptr());
  return reinterpret_cast<void*>((address + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment);
}

}  // namespace megamla::python
