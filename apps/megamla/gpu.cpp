#include "gpu.hpp"

#include "command.hpp"

namespace megamla::app::gpu {
namespace {
thread_local int32_t chosen_device = 0;
}  // namespace

int32_t device() { return chosen_device; }
void choose_device(int32_t index) { chosen_device = index; }

}  // namespace megamla::app::gpu

#if MEGAMLA_HAVE_CUDA

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "cuda/launch.hpp"
#include "nvml.hpp"

namespace megamla::app::gpu {
namespace {

void check(const char* call, cudaError_t error) {
  if (error != cudaSuccess) throw InputError(cuda::failed("cuda", call, error).message());
}

std::vector<int>& clocks_under_load() {
  static std::vector<int> samples;
  return samples;
}

// Reads the clock now and then until all work so far is done.
void watch_clock(cudaEvent_t done) {
  cudaError_t state = cudaErrorNotReady;
  while ((state = cudaEventQuery(done)) == cudaErrorNotReady) {
    const int mhz = sm_clock_mhz();
    // Only what was read while the work was still running counts.
    if (mhz > 0 && cudaEventQuery(done) == cudaErrorNotReady) clocks_under_load().push_back(mhz);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  check("cudaEventQuery", state);
}

struct Event {
  Event() { check("cudaEventCreate", cudaEventCreate(&event)); }
  ~Event() { (void)cudaEventDestroy(event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t event = nullptr;
};

// The index-th stream of the thread's device.
cudaStream_t stream_of_device(int index) {
  static std::mutex mutex;
  static std::map<std::pair<int32_t, int>, cudaStream_t> streams;
  const std::lock_guard<std::mutex> lock(mutex);
  cudaStream_t& stream = streams[{device(), index}];
  if (stream == nullptr) check("cudaStreamCreate", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

}  // namespace

void require() {
  const Status status = cuda::check_device("cuda", device());
  if (!status.ok()) throw InputError(status.message());
  check("cudaSetDevice", cudaSetDevice(device()));
}

CUstream_st* stream() { return stream_of_device(0); }
CUstream_st* side_stream() { return stream_of_device(1); }

void synchronise() { check("cudaStreamSynchronize", cudaStreamSynchronize(stream())); }

void* allocate(int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  check(fmt::format("cudaMalloc of {} bytes", bytes).c_str(), error);
  return memory;
}

void release(void* memory) noexcept { (void)cudaFree(memory); }

void upload(void* to, const void* from, int64_t bytes) {
  check("cudaMemcpyAsync", cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream()));
  synchronise();
}

void download(void* to, const void* from, int64_t bytes) {
  check("cudaMemcpyAsync", cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream()));
  synchronise();
}

void enqueue_upload(void* to, const void* from, int64_t bytes) {
  check("cudaMemcpyAsync", cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream()));
}

Pinned::Pinned(void* memory, int64_t bytes) {
  if (bytes == 0) return;
  check("cudaHostRegister", cudaHostRegister(memory, static_cast<size_t>(bytes), cudaHostRegisterDefault));
  memory_ = memory;
}
Pinned::~Pinned() {
  if (memory_ != nullptr) (void)cudaHostUnregister(memory_);
}

struct Graph::Handles {
  ~Handles() {
    if (executable != nullptr) (void)cudaGraphExecDestroy(executable);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
};

Graph::Graph(const std::function<void()>& record) : handles_(std::make_unique<Handles>()) {
  check("cudaStreamBeginCapture", cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal));
  try {
    record();
  } catch (...) {
    (void)cudaStreamEndCapture(stream(), &handles_->graph);
    throw;
  }
  check("cudaStreamEndCapture", cudaStreamEndCapture(stream(), &handles_->graph));
  check("cudaGraphInstantiate", cudaGraphInstantiate(&handles_->executable, handles_->graph, 0));
}
Graph::~Graph() = default;
Graph::Graph(Graph&& other) noexcept = default;
Graph& Graph::operator=(Graph&& other) noexcept = default;

void Graph::replay() const { check("cudaGraphLaunch", cudaGraphLaunch(handles_->executable, stream())); }

std::vector<double> time_graph(int repeats, const std::function<void()>& record) {
  const Graph graph(record);
  graph.replay();
  synchronise();
  std::vector<Event> events(static_cast<size_t>(repeats) + 1);
  check("cudaEventRecord", cudaEventRecord(events[0].event, stream()));
  for (size_t i = 1; i < events.size(); ++i) {
    graph.replay();
    check("cudaEventRecord", cudaEventRecord(events[i].event, stream()));
  }
  watch_clock(events.back().event);
  std::vector<double> seconds;
  for (size_t i = 1; i < events.size(); ++i) {
    float milliseconds = 0;
    check("cudaEventElapsedTime", cudaEventElapsedTime(&milliseconds, events[i - 1].event, events[i].event));
    seconds.push_back(milliseconds * 1e-3);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

double copy_bandwidth() {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const std::unique_ptr<void, decltype(&release)> from(allocate(kBytes), release);
  const std::unique_ptr<void, decltype(&release)> to(allocate(kBytes), release);
  // On the stream, not in a graph: there the copy goes through a copy engine, at two thirds of the rate.
  double best = 0;
  for (int i = 0; i < 6; ++i) {
    const Event begin;
    const Event end;
    check("cudaEventRecord", cudaEventRecord(begin.event, stream()));
    check("cudaMemcpyAsync", cudaMemcpyAsync(to.get(), from.get(), kBytes, cudaMemcpyDeviceToDevice, stream()));
    check("cudaEventRecord", cudaEventRecord(end.event, stream()));
    synchronise();
    float milliseconds = 0;
    check("cudaEventElapsedTime", cudaEventElapsedTime(&milliseconds, begin.event, end.event));
    best = std::max(best, 2.0 * kBytes / (milliseconds * 1e-3));
  }
  return best;
}

Card card() {
  cudaDeviceProp properties{};
  check("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, device()));
  int kilohertz = 0;
  check("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, device()));
  int runtime = 0;
  check("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&runtime));
  return {properties.name, nvml::driver_version(), fmt::format("{}.{}", runtime / 1000, runtime % 1000 / 10),
          properties.multiProcessorCount, kilohertz * 1e3};
}

int sm_clock_mhz() {
  static const std::string bus_id = [] {
    char text[32] = {};
    check("cudaDeviceGetPCIBusId", cudaDeviceGetPCIBusId(text, sizeof(text), device()));
    return std::string(text);
  }();
  return nvml::sm_clock_mhz(bus_id);
}

int sm_clock_mhz_under_load() {
  std::vector<int>& samples = clocks_under_load();
  if (samples.empty()) return 0;
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

}  // namespace megamla::app::gpu

#else

namespace megamla::app::gpu {
namespace {
[[noreturn]] void refuse() {
  throw InputError("--device cuda: expected a build with GPU kernels, got one without (MEGAMLA_CUDA=OFF, or no nvcc)");
}
}  // namespace

void require() { refuse(); }
CUstream_st* stream() { refuse(); }
CUstream_st* side_stream() { refuse(); }
void synchronise() { refuse(); }
void* allocate(int64_t) { refuse(); }
void release(void*) noexcept {}
void upload(void*, const void*, int64_t) { refuse(); }
void download(void*, const void*, int64_t) { refuse(); }
void enqueue_upload(void*, const void*, int64_t) { refuse(); }
Pinned::Pinned(void*, int64_t bytes) {
  if (bytes > 0) refuse();
}
Pinned::~Pinned() { memory_ = nullptr; }
struct Graph::Handles {};
Graph::Graph(const std::function<void()>&) { refuse(); }
Graph::~Graph() = default;
Graph::Graph(Graph&& other) noexcept = default;
Graph& Graph::operator=(Graph&& other) noexcept = default;
void Graph::replay() const { refuse(); }
std::vector<double> time_graph(int, const std::function<void()>&) { refuse(); }
double copy_bandwidth() { refuse(); }
Card card() { refuse(); }
int sm_clock_mhz() { refuse(); }
int sm_clock_mhz_under_load() { refuse(); }

}  // namespace megamla::app::gpu

#endif
