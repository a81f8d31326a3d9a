#include "cuda/side_stream.hpp"

#include "cuda/launch.hpp"

namespace megamla::cuda {
namespace {

constexpr const char* kOp = "layer";

Status order(int32_t device, cudaEvent_t event, cudaStream_t first, cudaStream_t second) {
  const DeviceGuard current(kOp, device);
  MEGAMLA_RETURN_IF_ERROR(current.status());
  MEGAMLA_CUDA_CALL(kOp, cudaEventRecord(event, first));
  MEGAMLA_CUDA_CALL(kOp, cudaStreamWaitEvent(second, event, 0));
  return {};
}

}  // namespace

SideStream::~SideStream() {
  if (device_ < 0) return;
  const DeviceGuard current(kOp, device_);
  for (cudaEvent_t event : {forked_, joined_}) {
    if (event != nullptr) (void)cudaEventDestroy(event);
  }
}

Status SideStream::prepare(int32_t device) {
  const DeviceGuard current(kOp, device);
  MEGAMLA_RETURN_IF_ERROR(current.status());
  device_ = device;
  MEGAMLA_CUDA_CALL(kOp, cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming));
  MEGAMLA_CUDA_CALL(kOp, cudaEventCreateWithFlags(&joined_, cudaEventDisableTiming));
  return {};
}

Status SideStream::fork(CUstream_st* main, CUstream_st* side) const { return order(device_, forked_, main, side); }
Status SideStream::join(CUstream_st* main, CUstream_st* side) const { return order(device_, joined_, side, main); }

}  // namespace megamla::cuda
