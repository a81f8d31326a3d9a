// Softmax of a step of 16 heads, by a crew of four warps. Each has four of the heads: it adds the warps' parts of their
// logits, and leaves their probabilities to all.
#pragma once

#include "cuda/decode_attention/few_heads/softmax.cuh"
#include "cuda/ptx/matrix_load.cuh"

namespace megamla::cuda::few_heads {

template <>
struct Softmax<2> {
  static constexpr int kEights = 2;
  static constexpr int kWarps = kCrewWarps<kEights>;
  static constexpr int kWarpHeads = 8 * kEights / kWarps;
  static constexpr int kKeyPitch = 2 * 8 * kEights;
  int warp;
  int part;
  int lane;
  uint32_t parts;          // of logits, of the crew's first warp
  uint32_t distance;       // to those of the next
  uint32_t probabilities;  // [key][head]
  float* shrink;           // of the crew's heads

  // A lane softens heads head() and the next of key g or g + 8.
  __device__ __forceinline__ int high_key() const { return lane >> 1 & 1; }
  __device__ __forceinline__ static int head(int part, int lane) { return part * kWarpHeads + 2 * (lane & 1); }
  __device__ __forceinline__ int head() const { return head(part, lane); }
  static constexpr int kLeastLanes = 2;  // so far apart are the lanes of a head
  // The warp tells the sums of its heads.
  __device__ __forceinline__ static bool tells(const Lane& me) { return me.lane < kLeastLanes; }
  __device__ __forceinline__ void meet() const { ptx::named_barrier<32 * kWarps>(1 + warp / kWarps); }

  // Fragments of 16 keys and eight heads; swizzled so that readers of four heads find other banks.
  __device__ __forceinline__ uint32_t part_at(int c) const {
    return static_cast<uint32_t>(((lane & 28) + c) * 16) ^ static_cast<uint32_t>((lane & 8) << 2);
  }
  __device__ __forceinline__ void leave_part(const float (&logits)[kEights][4]) const {
    const uint32_t to = parts + part * distance + part_at(lane & 3);
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      ptx::store_shared(to + e * 512, uint4{__float_as_uint(logits[e][0]), __float_as_uint(logits[e][1]),
                                            __float_as_uint(logits[e][2]), __float_as_uint(logits[e][3])});
    }
  }
  __device__ __forceinline__ float2 add_parts() const {
    const int c = head() % 8 / 2;
    const uint32_t from = parts + head() / 8 * 512 + part_at(c) + high_key() * 8;
    float2 sum = {0, 0};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const uint2 part = ptx::load_shared_2(from + w * distance);
      const float2 v = {__uint_as_float(part.x), __uint_as_float(part.y)};
      sum = w == 0 ? v : add(sum, v);
    }
    return sum;
  }

  // Parts of logits to probabilities b, f16: keys 2c, 2c + 1 and 2c + 8, 2c + 9 of head g. Between its two meetings the
  // crew reads parts, after the second its probabilities.
  __device__ __forceinline__ void run(float (&logits)[kEights][4], float2 factor, uint32_t valid, float slack,
                                      bool first, Running& running, Sums<kEights>& o, uint2 (&b)[kEights]) const {
    leave_part(logits);
    meet();
    const float2 sum = add_parts();
    const float bias = bias_of((valid >> high_key() & 1) != 0);
    const float2 logit = {logit_of(sum.x, factor.x, bias), logit_of(sum.y, factor.y, bias)};
    float2 by = {1, 1};
    const bool above = logit.x > running.maximum.x + slack || logit.y > running.maximum.y + slack;
    if (__any_sync(~0u, above)) {
      by = raise_maxima(logit, kLeastLanes, running);
      if (first) by = {1, 1};  // nothing was summed
    }
    const float2 p = {exp2_approx(logit.x - running.maximum.x), exp2_approx(logit.y - running.maximum.y)};
    running.sum = add(running.sum, p);
    ptx::store_shared(probabilities + (lane >> 2 | high_key() << 3) * kKeyPitch + head() * 2, f16x2_round(p.x, p.y));
    if (lane < 2) *reinterpret_cast<float2*>(&shrink[head()]) = by;
    meet();
    load_probabilities(b);
    float2 all[kEights];
    bool some = false;
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      all[e] = *reinterpret_cast<const float2*>(&shrink[e * 8 + 2 * (lane & 3)]);
      some = some || all[e].x != 1 || all[e].y != 1;
    }
    if (__any_sync(~0u, some)) shrink_sums<kEights>(o, all);
  }
  __device__ __forceinline__ void finish(int) const {}
  __device__ __forceinline__ void load_probabilities(uint2 (&b)[kEights]) const {
    const int eight = lane / 16;
    uint32_t v[4];
    ptx::load_matrices_transposed(probabilities + lane % 16 * kKeyPitch + eight * 16, v);
#pragma unroll
    for (int e = 0; e < kEights; ++e) b[e] = {v[2 * e], v[2 * e + 1]};
  }
};

}  // namespace megamla::cuda::few_heads
