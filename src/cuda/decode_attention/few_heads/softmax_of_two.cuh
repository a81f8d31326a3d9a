// Softmax of a step of eight heads, by a crew of two warps: both do the same with the sum of their parts of the logits.
#pragma once

#include "cuda/decode_attention/few_heads/softmax.cuh"

namespace megamla::cuda::few_heads {

template <>
struct Softmax<1> {
  const Lane& me;
  uint32_t part;    // of the logits, of this warp
  uint32_t others;  // of the other one
  uint64_t* read;   // barrier: the other one has read this one's part, which is not overwritten before
  uint64_t* other_read;

  // Lanes have keys g and g + 8 of heads 2c and 2c + 1.
  __device__ __forceinline__ static int head(int, int lane) { return 2 * (lane & 3); }
  static constexpr int kLeastLanes = 4;  // so far apart are the lanes of a head
  // The warp tells the sums of its heads.
  __device__ __forceinline__ static bool tells(const Lane& me) { return me.part == 0 && me.lane < kLeastLanes; }

  // `parts` becomes the whole, the same bits in both warps.
  __device__ __forceinline__ void add_parts(float (&parts)[4]) const {
    ptx::store_shared(part + me.lane * 16, uint4{__float_as_uint(parts[0]), __float_as_uint(parts[1]),
                                                 __float_as_uint(parts[2]), __float_as_uint(parts[3])});
    ptx::named_barrier<64>(1 + me.warp / 2);
    const float4 other = ptx::load_shared_floats(others + me.lane * 16);
    parts[0] += other.x, parts[1] += other.y, parts[2] += other.z, parts[3] += other.w;
    __syncwarp();
    if (me.lane == 0) ptx::mbarrier_arrive(other_read);
  }
  // Parts of logits to probabilities b, f16: keys 2c, 2c + 1 and 2c + 8, 2c + 9 of head g.
  __device__ __forceinline__ void run(float (&parts)[1][4], float2 factor, uint32_t valid, float slack, bool first,
                                      Running& running, Sums<1>& o, uint2 (&b)[1]) const {
    float(&v)[4] = parts[0];
    add_parts(v);
    const float bias[2] = {bias_of((valid & 1) != 0), bias_of((valid & 2) != 0)};
    const float2 low = {logit_of(v[0], factor.x, bias[0]), logit_of(v[1], factor.y, bias[0])};
    const float2 high = {logit_of(v[2], factor.x, bias[1]), logit_of(v[3], factor.y, bias[1])};
    const float2 most = larger(low, high);
    const bool above = most.x > running.maximum.x + slack || most.y > running.maximum.y + slack;
    if (__any_sync(~0u, above)) {
      const float2 by[1] = {raise_maxima(most, kLeastLanes, running)};
      if (!first) shrink_sums<1>(o, by);
    }
    const float2 m = running.maximum;
    const float2 p = {exp2_approx(low.x - m.x), exp2_approx(low.y - m.y)};
    const float2 p_high = {exp2_approx(high.x - m.x), exp2_approx(high.y - m.y)};
    running.sum = add(running.sum, add(p, p_high));
    b[0] = {ptx::transposed(f16x2_round(p.x, p.y)), ptx::transposed(f16x2_round(p_high.x, p_high.y))};
  }
  // Before the part's memory is written again.
  __device__ __forceinline__ void finish(int turn) const { ptx::mbarrier_wait(read, turn & 1); }
};

}  // namespace megamla::cuda::few_heads
