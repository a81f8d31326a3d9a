// Order between two streams: events, so that it can be captured.
#pragma once

#include <cstdint>

#include "core/status.hpp"

struct CUevent_st;
struct CUstream_st;

namespace megamla::cuda {

class SideStream {
 public:
  SideStream() = default;
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  Status prepare(int32_t device);
  // What `second` gets from now on runs after what `first` has got so far. Each point of a step where streams meet has
  // an event of its own.
  Status order(int point, CUstream_st* first, CUstream_st* second) const;

 private:
  static constexpr int kPoints = 2;
  int32_t device_ = -1;
  CUevent_st* events_[kPoints] = {};
};

}  // namespace megamla::cuda
