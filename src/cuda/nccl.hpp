// NCCL, opened at run time: the few functions that sums over ranks need.
#pragma once

#include <cstdint>

#include "core/status.hpp"

struct CUstream_st;

namespace megamla::cuda::nccl {

constexpr int kIdBytes = 128;
struct Id {
  char bytes[kIdBytes];
};

enum class Type { kF32, kBf16 };

// OK, or UNSUPPORTED: no library of that name, or one that lacks a function.
Status available();
Status make_id(Id* id);

// A rank's end of a group.
class Rank {
 public:
  Rank() = default;
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Waits for the other ranks.
  Status join(const Id& id, int size, int rank, int32_t device);
  Status all_reduce(void* x, int64_t count, Type type, CUstream_st* stream) const;
  // `count`: elements that this rank receives.
  Status reduce_scatter(const void* x, void* y, int64_t count, Type type, CUstream_st* stream) const;

 private:
  void* handle_ = nullptr;
  int32_t device_ = -1;
};

}  // namespace megamla::cuda::nccl
