// Where a block's clocks go: one thread a role notes events for bench/h200/decode_trace. Without MEGAMLA_DECODE_TRACE
// there is no trace of it.
#pragma once

#include <cstdint>

namespace megamla::cuda {

enum class Trace : uint32_t {
  kStart,
  // Producers, warp 0.
  kOpened,   // a tile's slots have come, its scales are on their way
  kColumn,   // the tile's scales have come
  kFree,     // the stage is free for its first half
  kWidened,  // the tile has been handed over
  kOffered,  // shared rows: the blocks of the cluster know where units may go
  // Scores.
  kRow,     // lengths and position have come
  kQuery,   // Q is ready
  kKeys,    // the first part of a tile has been handed over
  kScored,  // Q K^T
  kProbabilities,
  kPublished,  // the row's end
  // Values, thread 0.
  kTaken,    // P has been handed over
  kSummed,   // P V
  kFactors,  // the row's end has come
  kStored,
  kMet,  // shared rows: the partial sums are there
  kMerged,
};

#ifdef MEGAMLA_DECODE_TRACE
constexpr int kTraceRoles = 3;
constexpr int kTraceEvents = 1024;
struct TraceNote {
  uint32_t clock;
  Trace event;
};
struct TraceLog {
  uint32_t count[kTraceRoles];
  TraceNote notes[kTraceRoles][kTraceEvents];
};
__device__ TraceLog trace_logs[256];  // by block

__device__ __forceinline__ void trace(Trace event) {
  const uint32_t thread = threadIdx.x;
  if (thread != 0 && thread != 256 && thread != 384) return;
  const int role = thread == 0 ? 0 : thread == 256 ? 1 : 2;
  TraceLog& log = trace_logs[blockIdx.x];
  const uint32_t n = event == Trace::kStart ? 0 : log.count[role];
  if (n < kTraceEvents) log.notes[role][n] = {static_cast<uint32_t>(clock64()), event};
  log.count[role] = n + 1;
}
#else
__device__ __forceinline__ void trace(Trace) {}
#endif

}  // namespace megamla::cuda
