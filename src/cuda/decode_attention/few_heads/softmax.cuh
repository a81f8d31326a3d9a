// Logits of a tile from the warps' partial products, running maxima, and probabilities as fragments. The warps share
// the work: 8 keys and 8 heads at a time, as the products left them (key lane / 4, heads 2c and 2c + 1).
#pragma once

#include "cuda/attention/softmax.cuh"
#include "cuda/decode_attention/few_heads/values.cuh"

namespace megamla::cuda::few_heads {

// Of heads 2c and 2c + 1 of each eight.
template <int kEights>
struct Running {
  float2 maximum[kEights];  // the same in all lanes that have the head
  float2 sum[kEights];      // of the probabilities that this lane made
};

template <class Record, int kEights, class SharedT>
struct Softmax {
  static constexpr bool kF16 = Record::kFormat == MEGAMLA_KV_NVFP4_288;
  static constexpr int kHalves = RawTile<Record>::kKeys / 32;  // 8-key halves of a step, for each warp
  SharedT& shared;
  const Lane& me;
  Running<kEights>& running;
  Sums<kEights>& o;
  int step;
  int first_half;

  __device__ Softmax(SharedT& s, const Lane& lane, Running<kEights>& r, Sums<kEights>& sums)
      : shared(s),
        me(lane),
        running(r),
        o(sums),
        step(kHalves == 2 ? lane.warp : lane.warp % 2),
        first_half(kHalves == 2 ? 0 : lane.warp / 2) {}

  // A sum that is not finite, as of a NaN scale, makes a NaN.
  __device__ __forceinline__ static float logit(float sum, float scale, float bias) {
    return fmaf(sum, scale, fmaf(sum, 0.0F, bias));
  }

  __device__ __forceinline__ void take_logits(uint32_t biases, float2 (&logits)[kHalves][kEights]) const {
    constexpr float kUnshift = kF16 ? kNibbleUnshift : 1;
    float2 scale[kEights];
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const HeadFactors(&heads)[SharedT::kHeads] = shared.head;
      scale[e] = {heads[e * 8 + 2 * me.c].logit * kUnshift, heads[e * 8 + 2 * me.c + 1].logit * kUnshift};
    }
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int row = (first_half + h) * 8 + me.g;
      const float bias = __uint_as_float(ptx::load_shared_1(biases + (step * 16 + row) * 4));
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        float2 sum = {0, 0};
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          const float2 part = *reinterpret_cast<const float2*>(&shared.partial[w][step][e][row][2 * me.c]);
          sum.x += part.x, sum.y += part.y;
        }
        logits[h][e] = {logit(sum.x, scale[e].x, bias), logit(sum.y, scale[e].y, bias)};
      }
    }
  }

  // Probabilities by the present maxima; true if some logit lies more than `slack` above.
  __device__ __forceinline__ bool exponentiate(const float2 (&logits)[kHalves][kEights], float2 (&sum)[kEights],
                                               float slack) const {
    bool above = false;
#pragma unroll
    for (int e = 0; e < kEights; ++e) sum[e] = {0, 0};
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        const float2 over = {logits[h][e].x - running.maximum[e].x, logits[h][e].y - running.maximum[e].y};
        above = above || over.x > slack || over.y > slack;
        const float2 probability = {exp2_approx(over.x), exp2_approx(over.y)};
        sum[e].x += probability.x, sum[e].y += probability.y;
        const uint32_t packed =
            kF16 ? ptx::pack_f16(probability.x, probability.y) : pack_bf16(probability.x, probability.y);
        shared.probabilities[step][e][me.lane][first_half + h] = ptx::transposed(packed);
      }
    }
    return above;
  }

  // All warps: maxima move up to the tile's logits, and what was summed before shrinks.
  __device__ __forceinline__ void raise_maxima(const float2 (&logits)[kHalves][kEights]) const {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      float2 most = logits[0][e];
#pragma unroll
      for (int h = 1; h < kHalves; ++h) {
        most.x = fmaxf(most.x, logits[h][e].x), most.y = fmaxf(most.y, logits[h][e].y);
      }
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        most.x = fmaxf(most.x, __shfl_xor_sync(~0u, most.x, lanes));
        most.y = fmaxf(most.y, __shfl_xor_sync(~0u, most.y, lanes));
      }
      if (me.g == 0) *reinterpret_cast<float2*>(&shared.tile_max[me.warp][e * 8 + 2 * me.c]) = most;
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      float2 most = running.maximum[e];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float2 other = *reinterpret_cast<const float2*>(&shared.tile_max[w][e * 8 + 2 * me.c]);
        most.x = fmaxf(most.x, other.x), most.y = fmaxf(most.y, other.y);
      }
      const float2 shrink = {exp2_approx(running.maximum[e].x - most.x), exp2_approx(running.maximum[e].y - most.y)};
      running.maximum[e] = most;
      running.sum[e].x *= shrink.x, running.sum[e].y *= shrink.y;
#pragma unroll
      for (int t = 0; t < 8; ++t) {
        o[e][t][0] *= shrink.x, o[e][t][1] *= shrink.y, o[e][t][2] *= shrink.x, o[e][t][3] *= shrink.y;
      }
    }
  }

  // All threads, after a barrier behind the scores; ends with a barrier. Steps beyond the tile's keys are left out.
  // The first tiles' maxima are followed exactly where probabilities are bf16, which holds 1 exactly and has half the
  // rounding error below it: a few keys decide a row that has no more.
  __device__ __forceinline__ void run(uint32_t biases, int steps, int index) const {
    const float slack = kF16 || index > 1 ? kMaximumSlack : 0;
    float2 logits[kHalves][kEights];
    float2 sum[kEights];
    const bool mine = step < steps;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int e = 0; e < kEights; ++e) logits[h][e] = {kNoMaximum, kNoMaximum};
    }
    if (mine) take_logits(biases, logits);
    bool raised = false;
#pragma unroll 1
    for (;;) {
      bool above = false;
      if (mine) above = exponentiate(logits, sum, raised ? kMaximumSlack : slack);
      if (__syncthreads_or(above) == 0) break;
      raise_maxima(logits);
      raised = true;
    }
    if (!mine) return;
#pragma unroll
    for (int e = 0; e < kEights; ++e) running.sum[e].x += sum[e].x, running.sum[e].y += sum[e].y;
  }
};

}  // namespace megamla::cuda::few_heads
