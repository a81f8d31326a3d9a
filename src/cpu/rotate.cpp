#include "cpu/simd/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rotate.cpp"
#include <hwy/foreach_target.h>
// Behind foreach_target.h.
#include "cpu/rotate.hpp"
#include "cpu/simd/lanes-inl.hpp"
#include "format/rope.hpp"

HWY_BEFORE_NAMESPACE();
namespace megamla::cpu {
namespace HWY_NAMESPACE {

constexpr int kPairs = format::kRopeDim / 2;

#if MEGAMLA_PLAIN_TARGET

void rotate_bf16(const float* cos_sin, format::Bf16* rope) {
  for (int j = 0; j < kPairs; ++j) {
    const format::Pair x{format::to_float(rope[2 * j]), format::to_float(rope[2 * j + 1])};
    const format::Pair y = format::rotate(x, cos_sin[j], cos_sin[kPairs + j]);
    rope[2 * j] = format::to_bf16(y.x0);
    rope[2 * j + 1] = format::to_bf16(y.x1);
  }
}
void rotate_back_f32(const float* cos_sin, float* rope) {
  for (int j = 0; j < kPairs; ++j) {
    const format::Pair y = format::rotate_back({rope[2 * j], rope[2 * j + 1]}, cos_sin[j], cos_sin[kPairs + j]);
    rope[2 * j] = y.x0;
    rope[2 * j + 1] = y.x1;
  }
}

#else

void rotate_bf16(const float* cos_sin, format::Bf16* rope) {
  for (int j = 0; j < kPairs; j += kLanes) {
    const Pairs y = rotate(load_pairs(rope + 2 * j), load(cos_sin + j), load(cos_sin + kPairs + j));
    store_pairs(bf16_in_upper_half(y.x0), bf16_in_upper_half(y.x1), rope + 2 * j);
  }
}
void rotate_back_f32(const float* cos_sin, float* rope) {
  for (int j = 0; j < kPairs; j += kLanes) {
    Pairs x{};
    hn::LoadInterleaved2(F32(), rope + 2 * j, x.x0, x.x1);
    const Pairs y = rotate(x, load(cos_sin + j), hn::Neg(load(cos_sin + kPairs + j)));
    hn::StoreInterleaved2(y.x0, y.x1, F32(), rope + 2 * j);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace megamla::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace megamla::cpu {

HWY_EXPORT(rotate_bf16);
HWY_EXPORT(rotate_back_f32);

void rotate_rope(const float* cos_sin, format::Bf16* rope) { HWY_DYNAMIC_DISPATCH(rotate_bf16)(cos_sin, rope); }
void rotate_rope_back(const float* cos_sin, float* rope) { HWY_DYNAMIC_DISPATCH(rotate_back_f32)(cos_sin, rope); }

}  // namespace megamla::cpu

#endif
