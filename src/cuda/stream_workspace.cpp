#include "cuda/stream_workspace.hpp"

#include <algorithm>
#include <mutex>
#include <vector>

#include "cuda/launch.hpp"

namespace megamla::cuda {
namespace {

constexpr const char* kName = "stream_workspace";

struct Kept {
  int32_t device;
  unsigned long long stream;  // cudaStreamGetId: handles come back when a stream is destroyed, numbers do not
  int64_t bytes;
  std::shared_ptr<void> memory;
};

// Another thread may capture a stream in a mode that forbids this one to allocate and to ask, and ends the capture if
// it does: here it may, since none of it concerns a captured stream.
class BesideCaptures {
 public:
  BesideCaptures() { exchange(); }
  ~BesideCaptures() { exchange(); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  void exchange() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Of a stream that is not captured: to ask for the number of one ends its capture.
bool number_of(CUstream_st* stream, unsigned long long* number) {
  cudaStreamCaptureStatus capture{};
  cudaError_t error = cudaStreamIsCapturing(stream, &capture);
  if (error == cudaSuccess && capture != cudaStreamCaptureStatusNone) return false;
  if (error == cudaSuccess) error = cudaStreamGetId(stream, number);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error == cudaSuccess;
}

// Freed behind the work of the last caller that had it: all of them put theirs on this stream.
std::shared_ptr<void> allocate_on(int32_t device, CUstream_st* stream, int64_t bytes) {
  void* memory = nullptr;
  if (cudaMallocAsync(&memory, static_cast<size_t>(bytes), stream) != cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  return {memory, [device, stream](void* p) {
            const DeviceGuard current(kName, device);
            const BesideCaptures beside;
            (void)cudaFreeAsync(p, stream);
          }};
}

}  // namespace

std::shared_ptr<void> stream_workspace(int32_t device, CUstream_st* stream, int64_t bytes) {
  static std::mutex mutex;
  static auto& all = *new std::vector<Kept>;  // never freed: at exit the driver may be gone before
  const DeviceGuard current(kName, device);
  const BesideCaptures beside;
  unsigned long long number = 0;
  if (!current.status().ok() || bytes > kMostKeptBytes || !number_of(stream, &number)) return nullptr;
  const std::lock_guard lock(mutex);
  auto kept =
      std::find_if(all.begin(), all.end(), [&](const Kept& k) { return k.device == device && k.stream == number; });
  if (kept == all.end()) {
    const auto streams = std::count_if(all.begin(), all.end(), [&](const Kept& k) { return k.device == device; });
    if (streams >= kMostKeptStreams) return nullptr;
    kept = all.insert(all.end(), {device, number, 0, nullptr});
  }
  if (kept->bytes < bytes) {
    kept->memory.reset();
    kept->memory = allocate_on(device, stream, bytes);
    kept->bytes = kept->memory == nullptr ? 0 : bytes;
  }
  return kept->memory;
}

}  // namespace megamla::cuda
