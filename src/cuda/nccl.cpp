#include "cuda/nccl.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "cuda/launch.hpp"

namespace megamla::cuda::nccl {
namespace {

constexpr const char* kOp = "communicator";

// Of NCCL's ABI, version 2.
using Result = int;  // 0: success
constexpr int kSum = 0;
constexpr int abi_type(Type type) { return type == Type::kF32 ? 7 : 9; }

struct Library {
  Status status;
  Result (*get_unique_id)(Id*) = nullptr;
  Result (*comm_init_rank)(void**, int, Id, int) = nullptr;
  Result (*comm_destroy)(void*) = nullptr;
  Result (*all_reduce)(const void*, void*, size_t, int, int, void*, cudaStream_t) = nullptr;
  Result (*reduce_scatter)(const void*, void*, size_t, int, int, void*, cudaStream_t) = nullptr;
  const char* (*get_error_string)(Result) = nullptr;
};

Library open_library() {
  Library library;
  const char* chosen = std::getenv("MEGAMLA_NCCL");  // empty: the program itself, where it is part of that
  const std::string file = chosen != nullptr ? chosen : "libnccl.so.2";
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    library.status =
        unsupported("{}: NCCL: expected {} (MEGAMLA_NCCL names another file), got: {}", kOp, file, dlerror());
    return library;
  }
  const auto find = [&](const char* name, auto& function) {
    void* symbol = dlsym(handle, name);
    if (symbol == nullptr && library.status.ok())
      library.status = unsupported("{}: NCCL: expected the function {} in {}, got none", kOp, name, file);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  find("ncclGetUniqueId", library.get_unique_id);
  find("ncclCommInitRank", library.comm_init_rank);
  find("ncclCommDestroy", library.comm_destroy);
  find("ncclAllReduce", library.all_reduce);
  find("ncclReduceScatter", library.reduce_scatter);
  find("ncclGetErrorString", library.get_error_string);
  return library;  // stays open: communicators of the process may need it until its end
}

const Library& library() {
  static const Library instance = open_library();
  return instance;
}

Status expect_success(const char* call, Result result) {
  if (result == 0) return {};
  return runtime_error("{}: {}: {}", kOp, call, library().get_error_string(result));
}

}  // namespace

Status available() { return library().status; }

Status make_id(Id* id) {
  MEGAMLA_RETURN_IF_ERROR(available());
  return expect_success("ncclGetUniqueId", library().get_unique_id(id));
}

Rank::~Rank() {
  if (handle_ == nullptr) return;
  const DeviceGuard current(kOp, device_);
  (void)library().comm_destroy(handle_);
}

Status Rank::join(const Id& id, int size, int rank, int32_t device) {
  MEGAMLA_RETURN_IF_ERROR(available());
  MEGAMLA_RETURN_IF_ERROR(check_device(kOp, device));
  const DeviceGuard current(kOp, device);
  MEGAMLA_RETURN_IF_ERROR(current.status());
  device_ = device;
  return expect_success("ncclCommInitRank", library().comm_init_rank(&handle_, size, id, rank));
}

Status Rank::all_reduce(void* x, int64_t count, Type type, CUstream_st* stream) const {
  const DeviceGuard current(kOp, device_);
  MEGAMLA_RETURN_IF_ERROR(current.status());
  return expect_success("ncclAllReduce",
                        library().all_reduce(x, x, static_cast<size_t>(count), abi_type(type), kSum, handle_, stream));
}

Status Rank::reduce_scatter(const void* x, void* y, int64_t count, Type type, CUstream_st* stream) const {
  const DeviceGuard current(kOp, device_);
  MEGAMLA_RETURN_IF_ERROR(current.status());
  return expect_success("ncclReduceScatter", library().reduce_scatter(x, y, static_cast<size_t>(count), abi_type(type),
                                                                      kSum, handle_, stream));
}

}  // namespace megamla::cuda::nccl
