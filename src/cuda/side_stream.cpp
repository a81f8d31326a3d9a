#include "cuda/side_stream.hpp"

#include "cuda/launch.hpp"

namespace megamla::cuda {
namespace {

constexpr const char* kOp = "layer";

}  // namespace

SideStream::~SideStream() {
  if (device_ < 0) return;
  const DeviceGuard current(kOp, device_);
  for (cudaEvent_t event : events_) {
    if (event != nullptr) (void)cudaEventDestroy(event);
  }
}

Status SideStream::prepare(int32_t device) {
  const DeviceGuard current(kOp, device);
  MEGAMLA_RETURN_IF_ERROR(current.status());
  device_ = device;
  for (cudaEvent_t& event : events_) MEGAMLA_CUDA_CALL(kOp, cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return {};
}

Status SideStream::order(int point, CUstream_st* first, CUstream_st* second) const {
  const DeviceGuard current(kOp, device_);
  MEGAMLA_RETURN_IF_ERROR(current.status());
  MEGAMLA_CUDA_CALL(kOp, cudaEventRecord(events_[point], first));
  MEGAMLA_CUDA_CALL(kOp, cudaStreamWaitEvent(second, events_[point], 0));
  return {};
}

}  // namespace megamla::cuda
