// The program's own dealings with a GPU: memory, copies, graphs, clocks. Failures, and any call in a build without GPU
// kernels, throw InputError. A thread has one GPU: the first, unless it chose another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megamla/types.h"

namespace megamla::app::gpu {

// Of the calling thread.
int32_t device();
void choose_device(int32_t index);

// Throws unless the build has GPU kernels and the device runs them.
void require();
// The stream of the device that the program puts work on, and the one for a layer's side work. Never the default
// stream, which no graph can capture.
CUstream_st* stream();
CUstream_st* side_stream();
void synchronise();

void* allocate(int64_t bytes);
void release(void* memory) noexcept;
// In stream order; host memory may be changed or read once the call has returned.
void upload(void* to, const void* from, int64_t bytes);
void download(void* to, const void* from, int64_t bytes);
// Returns at once; host memory that is pinned must stay as it is until the stream has come there.
void enqueue_upload(void* to, const void* from, int64_t bytes);

// Host memory that the GPU reads itself, for as long as this lives. Without a GPU: does nothing for 0 bytes.
class Pinned {
 public:
  Pinned() = default;
  Pinned(void* memory, int64_t bytes);
  ~Pinned();
  Pinned(Pinned&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  Pinned& operator=(Pinned&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }

 private:
  void* memory_ = nullptr;
};

// What `record` puts on the stream, to be put there again and again.
class Graph {
 public:
  explicit Graph(const std::function<void()>& record);
  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  void replay() const;

 private:
  struct Handles;
  std::unique_ptr<Handles> handles_;
};

// Seconds of each of `repeats` replays, ascending, of a graph of what `record` puts on the stream. One replay before
// them is not timed.
std::vector<double> time_graph(int repeats, const std::function<void()>& record);

// Bytes read plus bytes written per second by a large copy within the GPU's memory.
double copy_bandwidth();

struct Card {
  std::string name;    // "NVIDIA H200"
  std::string driver;  // "580.65.06"; "unknown" without NVML
  std::string cuda;    // the runtime of this build, "13.0"
  int multiprocessors;
  double max_clock_hz;
};
Card card();
// SM clock now, in MHz; 0 without NVML.
int sm_clock_mhz();
// The median of what time_graph read during its replays so far; 0 if nothing.
int sm_clock_mhz_under_load();

}  // namespace megamla::app::gpu
