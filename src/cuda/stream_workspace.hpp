// Scratch memory that a stream keeps from call to call. To ask a framework's allocator for it costs as much host time
// as an op's checks and arguments together.
#pragma once

#include <cstdint>
#include <memory>

struct CUstream_st;

namespace megamla::cuda {

// At most so much is kept: for each stream, and for so many streams of a device, the first that ask.
constexpr int64_t kMostKeptBytes = int64_t{128} << 20;
constexpr int kMostKeptStreams = 4;

// At least `bytes` of device memory, 256-byte aligned, for work that the caller puts on `stream` while it holds the
// pointer: on the stream it runs after whatever had the memory before. Null where the caller has to get memory by
// itself: beyond the limits above, where none is left, and while the stream is captured, since a graph's replays run
// beside the stream's other work.
std::shared_ptr<void> stream_workspace(int32_t device, CUstream_st* stream, int64_t bytes);

}  // namespace megamla::cuda
