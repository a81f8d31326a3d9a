// A block's shared memory, and the ring of stages between its producers and its multipliers.
#pragma once

#include <cstdint>

#include "cuda/block_scaled_linear/tile_shape.hpp"
#include "cuda/ptx/sync.cuh"

namespace megamla::cuda::linear {

// Stages (x, weights, scales), then a round of sums, then barriers. The swizzle asks for multiples of 1024 bytes.
template <class Shape>
class Shared {
 public:
  __device__ explicit Shared(uint8_t* memory) {
    const uint32_t address = ptx::shared_address(memory);
    base_ = (address + 1023) / 1024 * 1024;
    memory_ = memory + (base_ - address);
  }
  __device__ uint32_t x(int stage) const { return base_ + stage * Shape::kStageBytes; }
  __device__ uint32_t weights(int stage) const { return x(stage) + Shape::kXBytes; }
  __device__ uint32_t scales(int stage) const { return weights(stage) + Shape::kWeightsBytes; }
  __device__ float* cluster_sums() const { return reinterpret_cast<float*>(memory_); }
  __device__ float* round_sums() const {
    return reinterpret_cast<float*>(memory_ + Shape::kStages * Shape::kStageBytes);
  }
  // Every producer arrives when its copies are there, and once more for what it wrote itself.
  __device__ uint64_t* full(int stage) const { return barriers() + stage; }
  // Every warp of multipliers arrives once.
  __device__ uint64_t* empty(int stage) const { return barriers() + Shape::kStages + stage; }

  __device__ void init_barriers(uint32_t arrivals) const {
    for (int i = 0; i < Shape::kStages; ++i) {
      ptx::mbarrier_init(full(i), arrivals);
      ptx::mbarrier_init(empty(i), Shape::kMultiplierWarps);
    }
  }

 private:
  __device__ uint64_t* barriers() const {
    return reinterpret_cast<uint64_t*>(memory_ + Shape::kStages * Shape::kStageBytes + Shape::kRoundBytes);
  }
  uint32_t base_;
  uint8_t* memory_;
};

// Where a role is in the ring.
template <class Shape>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;  // of the stage's barrier: turns with every round
  __device__ void advance() {
    if (++stage == Shape::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace megamla::cuda::linear
