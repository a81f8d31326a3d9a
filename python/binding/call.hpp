// One call of an op from Python: DLPack views become views of the C ABI, a status becomes an exception. Nothing is
// copied; the arguments outlive the call.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <cstdlib>
#include <initializer_list>
#include <memory>

#include "megamla/megamla.h"

namespace megamla::python {

using MaybeTensor = tvm::ffi::Optional<DLTensor*>;

// The dtypes of an argument, in the order of preference for raw bytes.
using Dtypes = std::initializer_list<megamla_dtype>;

// Throws what Python shows as ValueError, NotImplementedError, OSError or RuntimeError, with the library's message.
void check(megamla_status status);

// Where and with what an op runs, as the last three arguments of every function here say it.
struct Where {
  int64_t device;       // megamla_device
  int64_t num_threads;  // 0 = all cores
  MaybeTensor workspace;
};

class Call {
 public:
  Call(const char* op, const Where& where);

  // A view of `tensor`; TypeError if its dtype is none of `dtypes` (empty: any). numpy has no bf16 and no fp8: uint16
  // holds the bits of bf16, and uint8 those of the first one-byte dtype of `dtypes`.
  megamla_tensor tensor(const char* name, const MaybeTensor& tensor, Dtypes dtypes);
  // The same with `ndim` dimensions, or one more: then the first two are one.
  megamla_tensor rows(const char* name, const MaybeTensor& tensor, Dtypes dtypes, int ndim);
  // Pages [num_pages, page_size, record] or [num_pages, page_size, 1, record], bytes: the record's size is the format.
  megamla_kv_cache cache(const char* name, const MaybeTensor& pages, int64_t layout);

  template <typename Params>
  void run(megamla_status (*op)(const Params*, const megamla_exec*), const Params& params) {
    exec_.stream = stream();
    check(op(&params, &exec_));
  }
  // The same for an op that has a workspace, if the caller gave none: host memory for this call; on a GPU what the
  // stream keeps (cuda/stream_workspace.hpp), or memory of the framework's allocator, which is free again behind the
  // op's work on the stream and, where that is captured, stays with the graph.
  using WorkspaceSize = megamla_status (*)(const megamla_limits*, megamla_device, int64_t*);
  template <typename Params>
  void run(megamla_status (*op)(const Params*, const megamla_exec*), const Params& params, WorkspaceSize size,
           const megamla_limits& limits) {
    make_workspace(size, limits);
    run(op, params);
  }

 private:
  // The framework's current one on the first GPU that was seen.
  CUstream_st* stream() const;
  void make_workspace(WorkspaceSize size, megamla_limits limits);
  void* host_workspace(int64_t bytes);
  void* gpu_workspace(int64_t bytes);
  // Memory of a view; the first GPU seen gives the stream.
  int32_t memory(const char* name, const DLTensor* tensor);

  const char* op_;
  megamla_exec exec_ = MEGAMLA_EXEC_INIT;
  int32_t cuda_device_ = -1;
  std::shared_ptr<void> own_workspace_;
  tvm::ffi::Optional<tvm::ffi::Tensor> framework_workspace_;
};

}  // namespace megamla::python
