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
  // What `side` gets from now on runs after what `main` has got so far; and the other way round.
  Status fork(CUstream_st* main, CUstream_st* side) const;
  Status join(CUstream_st* main, CUstream_st* side) const;

 private:
  int32_t device_ = -1;
  CUevent_st* forked_ = nullptr;
  CUevent_st* joined_ = nullptr;
};

}  // namespace megamla::cuda
