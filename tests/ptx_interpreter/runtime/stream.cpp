// Streams run their work at once; a captured stream keeps it for a graph. Events are times.
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "runtime.hpp"

using Work = std::function<cudaError_t()>;

struct CUgraph_st {
  std::vector<Work> work;
};
struct CUgraphExec_st {
  std::vector<Work> work;
};
// What streams that are captured together keep for a graph.
struct Capture {
  cudaStream_t origin = nullptr;
  std::vector<cudaStream_t> joined;  // streams that wait for an event of this capture
  std::vector<Work> work;
  bool open = true;
};
unsigned long long next_id() {
  static std::atomic<unsigned long long> last{1};  // the default stream's
  return ++last;
}
struct CUstream_st {
  const unsigned long long id = next_id();
  std::shared_ptr<Capture> capture;
  int64_t submitted = 0;   // pieces of work in this capture
  int64_t waited_for = 0;  // of these, that its origin is sure to run after

  bool captured() const { return capture != nullptr && capture->open; }
};
struct CUevent_st {
  std::chrono::steady_clock::time_point time;
  bool recorded = false;
  std::shared_ptr<Capture> capture;
  cudaStream_t from = nullptr;
  int64_t submitted = 0;  // on `from` when it was recorded
};

namespace ptx::runtime {

cudaError_t submit(cudaStream_t stream, Work work) {
  if (stream == nullptr || !stream->captured()) return work();
  stream->capture->work.push_back(std::move(work));
  ++stream->submitted;
  return cudaSuccess;
}

}  // namespace ptx::runtime

using namespace ptx::runtime;

extern "C" {

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t stream) {
  if (stream != nullptr && stream->captured()) return report(cudaErrorStreamCaptureUnsupported);
  return cudaSuccess;
}
// A stream that waits for an event of a captured one is captured with it.
cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->capture == nullptr || !event->capture->open) return cudaSuccess;
  if (stream == nullptr || (stream->captured() && stream->capture != event->capture))
    return report(cudaErrorStreamCaptureUnsupported);
  if (!stream->captured()) {
    stream->capture = event->capture;
    stream->submitted = stream->waited_for = 0;
    stream->capture->joined.push_back(stream);
  }
  if (stream == stream->capture->origin) event->from->waited_for = event->submitted;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || stream->captured()) return report(cudaErrorStreamCaptureUnsupported);
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (!stream->captured() || stream->capture->origin != stream) return report(cudaErrorInvalidValue);
  Capture& capture = *stream->capture;
  capture.open = false;
  for (const cudaStream_t other : capture.joined) {
    if (other->waited_for != other->submitted) return report(cudaErrorStreamCaptureUnjoined);
  }
  *graph = new CUgraph_st{std::move(capture.work)};
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const bool capturing = stream != nullptr && stream->captured();
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  if (stream != nullptr && stream->captured()) {
    stream->capture->open = false;
    return report(cudaErrorStreamCaptureUnsupported);
  }
  *id = stream == nullptr ? 1 : stream->id;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(current, *mode);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (const Work& work : executable->work) {
    if (const cudaError_t error = submit(stream, work); error != cudaSuccess) return report(error);
  }
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const cudaError_t error = submit(stream, [event] {
    event->time = std::chrono::steady_clock::now();
    event->recorded = true;
    return cudaSuccess;
  });
  const bool captured = stream != nullptr && stream->captured();
  event->capture = captured ? stream->capture : nullptr;
  event->from = stream;
  event->submitted = captured ? stream->submitted : 0;
  return report(error);
}
cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t CUDARTAPI cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (!begin->recorded || !end->recorded) return report(cudaErrorInvalidResourceHandle);
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return cudaSuccess;
}

}  // extern "C"
