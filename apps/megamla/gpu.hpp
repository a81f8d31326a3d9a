// The program's own dealings with the GPU (the first CUDA device): memory, copies, graphs, clocks. Failures, and any
// call in a build without GPU kernels, throw InputError.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "megamla/types.h"

namespace megamla::app::gpu {

constexpr int32_t kDevice = 0;

// Throws unless the build has GPU kernels and the device runs them.
void require();
// The one stream that the program puts work on. Never the default stream, which no graph can capture.
CUstream_st* stream();
void synchronise();

void* allocate(int64_t bytes);
void release(void* memory) noexcept;
// In stream order; host memory may be changed or read once the call has returned.
void upload(void* to, const void* from, int64_t bytes);
void download(void* to, const void* from, int64_t bytes);

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
