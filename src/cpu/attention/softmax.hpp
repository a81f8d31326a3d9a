// The running softmax of a row of scores, in base 2, and the merging of partial results.
#pragma once

#include <cstdint>

#include "cpu/attention/products.hpp"
#include "format/bf16.hpp"

namespace megamla::cpu::attention {

// Partial result of some heads over some keys: weights are 2^(logit - shift), sum is theirs, out [heads, 512] their sum
// of value rows. Logits are in base-2 units.
struct Partial {
  float* out;
  float* shift;
  float* sum;
  float* largest;  // the largest logit; shift may lag behind it (softmax.cpp)
};

void start_partial(const Partial& partial, int64_t heads);

// One head, one tile: turns `count` raw scores into weights 2^(scale * score - shift), raising the head's shift where
// that is needed, and zeroes the weights from count to padded (a multiple of 16). `scale` takes raw scores to base-2
// logits. Returns the factor by which what was accumulated before must be multiplied (1 nearly always).
// Weights are fp32 for kGemmF32, else bf16.
float weigh_scores(Multiplier multiplier, const float* scores, int64_t count, int64_t padded, float scale,
                   const Partial& partial, int64_t head, void* weights);

void scale_row(float factor, int64_t count, float* x);

// Adds `from` to `into`, in this order: the order of merging is part of a row's bits.
void merge_partial(const Partial& from, int64_t heads, const Partial& into);
void copy_partial(const Partial& from, int64_t heads, const Partial& into);

}  // namespace megamla::cpu::attention
