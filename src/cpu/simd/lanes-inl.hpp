// The number formats of src/format/ in vector lanes: bf16, e4m3 and e2m1 as fp32, without a branch, bit for bit what
// the scalar functions give. Compiled once per instruction set: include behind hwy/foreach_target.h.

#if defined(MEGAMLA_CPU_SIMD_LANES) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGAMLA_CPU_SIMD_LANES
#undef MEGAMLA_CPU_SIMD_LANES
#else
#define MEGAMLA_CPU_SIMD_LANES
#endif

#include <hwy/highway.h>

#include <array>
#include <cstdint>

#include "format/kv_record.hpp"

// Instruction sets without a fused multiply-add.
#undef MEGAMLA_PLAIN_TARGET
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || (HWY_ARCH_ARM_A64 && HWY_TARGET < HWY_EMU128)
#define MEGAMLA_PLAIN_TARGET 0
#else
#define MEGAMLA_PLAIN_TARGET 1
#endif

#if !MEGAMLA_PLAIN_TARGET

HWY_BEFORE_NAMESPACE();
namespace megamla::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, the smallest scale group: a power of two that divides every group and row.
using F32 = hn::CappedTag<float, 16>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<uint16_t, F32>;
using U8 = hn::Rebind<uint8_t, F32>;
using F32s = hn::VFromD<F32>;
using U32s = hn::VFromD<U32>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));

constexpr auto kE2m1Values = [] {
  std::array<float, 16> values{};
  for (uint8_t code = 0; code < 16; ++code) values[code] = format::e2m1_to_float(code);
  return values;
}();

HWY_INLINE F32s floats(U32s bits) { return hn::BitCast(F32(), bits); }
HWY_INLINE U32s bits(F32s x) { return hn::BitCast(U32(), x); }
HWY_INLINE U32s u32(uint32_t x) { return hn::Set(U32(), x); }
HWY_INLINE F32s f32(float x) { return hn::Set(F32(), x); }

// Magnitudes compare as integers: infinity is above every finite value, NaN above infinity.
HWY_INLINE U32s magnitudes(F32s x) { return hn::And(bits(x), u32(0x7fffffff)); }

// Lane i of the result is the largest lane of v[i]; kLanes vectors.
HWY_INLINE U32s lane_maxima(const U32s* v) {
  const U32 d;
  const hn::Repartition<uint64_t, U32> du64;
  // Lane j of a block is the largest lane of that block of v[i + j].
  const auto four = [&](int i) {
    const U32s ab = hn::Max(hn::InterleaveLower(d, v[i], v[i + 1]), hn::InterleaveUpper(d, v[i], v[i + 1]));
    const U32s cd = hn::Max(hn::InterleaveLower(d, v[i + 2], v[i + 3]), hn::InterleaveUpper(d, v[i + 2], v[i + 3]));
    const auto lower = hn::InterleaveLower(du64, hn::BitCast(du64, ab), hn::BitCast(du64, cd));
    const auto upper = hn::InterleaveUpper(du64, hn::BitCast(du64, ab), hn::BitCast(du64, cd));
    return hn::Max(hn::BitCast(d, lower), hn::BitCast(d, upper));
  };
  const auto fold = [&](U32s a, U32s b) {
    return hn::Max(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
  };
  if constexpr (kLanes == 16) {
    const U32s even = fold(four(0), four(8));
    const U32s odd = fold(four(4), four(12));
    return hn::OddEvenBlocks(hn::Max(odd, hn::SwapAdjacentBlocks(odd)), hn::Max(even, hn::SwapAdjacentBlocks(even)));
  } else if constexpr (kLanes == 8) {
    return fold(four(0), four(4));
  } else {
    return four(0);
  }
}

// The magnitudes of kLanes groups of kGroup values, lane g that of group g; 0 from group `count` on. group_lanes(g, i)
// gives values i .. i+kLanes-1 of group g.
template <int kGroup, class GroupLanes>
HWY_INLINE U32s group_magnitudes(int64_t count, GroupLanes&& group_lanes) {
  U32s most[kLanes];
  for (int g = 0; g < kLanes; ++g) {
    most[g] = g < count ? magnitudes(group_lanes(g, 0)) : u32(0);
    for (int i = kLanes; i < kGroup && g < count; i += kLanes)
      most[g] = hn::Max(most[g], magnitudes(group_lanes(g, i)));
  }
  return lane_maxima(most);
}
HWY_INLINE bool all_finite(U32s magnitudes) { return hn::AllTrue(U32(), hn::Lt(magnitudes, u32(0x7f800000))); }

HWY_INLINE U32s load_codes(const uint8_t* codes) { return hn::PromoteTo(U32(), hn::LoadU(U8(), codes)); }

// The lowest byte of each lane.
HWY_INLINE void store_bytes(U32s lanes, uint8_t* to) { hn::StoreU(hn::TruncateTo(U8(), lanes), U8(), to); }

// --- bf16

HWY_INLINE F32s load(const float* x) { return hn::LoadU(F32(), x); }
HWY_INLINE F32s load(const format::Bf16* x) {
  const auto halves = hn::LoadU(U16(), reinterpret_cast<const uint16_t*>(x));
  return floats(hn::ShiftLeft<16>(hn::PromoteTo(U32(), halves)));
}

// The upper half of each lane is format::to_bf16; the lower half is arbitrary.
HWY_INLINE U32s bf16_in_upper_half(F32s x) {
  const U32s u = bits(x);
  const U32s odd = hn::And(hn::ShiftRight<16>(u), u32(1));
  const U32s rounded = hn::Add(u, hn::Add(odd, u32(0x7fff)));
  const auto nan = hn::RebindMask(U32(), hn::IsNaN(x));
  return hn::IfThenElse(nan, hn::Or(u, u32(0x400000)), rounded);
}
HWY_INLINE F32s round_to_bf16(F32s x) { return floats(hn::And(bf16_in_upper_half(x), u32(0xffff0000))); }

// The upper halves of 2 kLanes lanes.
HWY_INLINE void store_upper_halves(U32s first, U32s second, format::Bf16* to) {
  const hn::Repartition<uint16_t, U32> du16;
  const auto halves = hn::ConcatOdd(du16, hn::BitCast(du16, second), hn::BitCast(du16, first));
  hn::StoreU(halves, du16, reinterpret_cast<uint16_t*>(to));
}

// --- Interleaved pairs: contract sections 3.2 and 5

struct Pairs {
  F32s x0;
  F32s x1;
};

// format::rotate.
HWY_INLINE Pairs rotate(Pairs x, F32s cosine, F32s sine) {
  return {hn::MulSub(x.x0, cosine, hn::Mul(x.x1, sine)), hn::MulAdd(x.x0, sine, hn::Mul(x.x1, cosine))};
}

// kLanes pairs of bf16: a pair fills a lane, its first value the lower half.
HWY_INLINE Pairs load_pairs(const format::Bf16* x) {
  const U32s pair = hn::LoadU(U32(), reinterpret_cast<const uint32_t*>(x));
  return {floats(hn::ShiftLeft<16>(pair)), floats(hn::And(pair, u32(0xffff0000)))};
}
// The inverse, from upper halves.
HWY_INLINE void store_pairs(U32s x0, U32s x1, format::Bf16* to) {
  const U32s pair = hn::OrAnd(hn::ShiftRight<16>(x0), x1, u32(0xffff0000));
  hn::StoreU(pair, U32(), reinterpret_cast<uint32_t*>(to));
}

// --- Small floats

// Codes without a sign of 0 <= x <= the largest value, in the lowest byte of each lane; the other bytes are arbitrary.
//
// Adding 2^(E+23-kMantissa) rounds x to nearest even in units of 2^(E-kMantissa), those of the codes, and leaves their
// count in the lowest bits of the sum; E is the exponent of x, at least that of the smallest normal code. The code is
// the count plus E+kBias-1 times 2^kMantissa. Of that, the exponent field is at hand; the rest, a constant modulo 256,
// rides on the addend: it is even, so ties go where they should.
//
// Less the addend, the sum is the value of the code.
struct Rounded {
  U32s codes;
  F32s values;
};
template <int kMantissa, uint32_t kBias>
HWY_INLINE Rounded round_magnitudes(F32s x) {
  constexpr uint32_t kSmallestNormal = (128U - kBias) << 23;
  constexpr uint32_t kRest = (0U - ((128U - kBias) << kMantissa)) & 0xffU;
  constexpr uint32_t kAddend = (static_cast<uint32_t>(23 - kMantissa) << 23) + kRest;
  static_assert(kRest % 2 == 0);
  const U32s exponent = hn::Max(hn::And(bits(x), u32(0x7f800000)), u32(kSmallestNormal));
  const F32s addend = floats(hn::Add(exponent, u32(kAddend)));
  const F32s sum = hn::Add(x, addend);
  return {hn::Add(bits(sum), hn::ShiftRight<23 - kMantissa>(exponent)), hn::Sub(sum, addend)};
}

// The sign of x as bit kBit, all others 0.
template <int kBit>
HWY_INLINE U32s sign_at(F32s x) {
  return hn::And(hn::ShiftRight<31 - kBit>(bits(x)), u32(1U << kBit));
}

// --- e4m3

// 0 <= x <= 448.
HWY_INLINE Rounded round_to_e4m3(F32s x) { return round_magnitudes<3, 7>(x); }

// Codes of |x| <= 448, in the lowest byte of each lane; the other bytes are arbitrary.
HWY_INLINE U32s e4m3_codes(F32s x) { return hn::Or(round_to_e4m3(hn::Abs(x)).codes, sign_at<7>(x)); }

// format::e4m3_to_float. A subnormal code is read one exponent higher, as 2^-6 more than it is.
HWY_INLINE F32s e4m3_values(U32s codes) {
  const U32s magnitude = hn::And(codes, u32(0x7f));
  const U32s normal = hn::Add(hn::ShiftLeft<20>(magnitude), u32(120U << 23));
  const F32s subnormal = hn::Sub(floats(hn::Add(normal, u32(1U << 23))), f32(0x1p-6F));
  U32s value = hn::IfThenElse(hn::Lt(magnitude, u32(8)), bits(subnormal), normal);
  value = hn::IfThenElse(hn::Eq(magnitude, u32(0x7f)), u32(0x7fc00000), value);
  return floats(hn::OrAnd(value, hn::ShiftLeft<24>(codes), u32(0x80000000)));
}

// --- ue8m0

// format::group_exponent + 127 of finite maxima, and 2^-exponent. A significand above 1.75 carries into the exponent.
HWY_INLINE U32s group_scales(F32s maxima) {
  const U32s exponents = hn::ShiftRight<23>(hn::Add(bits(maxima), u32(0x1fffff)));
  return hn::Sub(hn::Max(exponents, u32(8)), u32(8));
}
HWY_INLINE F32s inverse_scales(U32s scales) { return floats(hn::ShiftLeft<23>(hn::Sub(u32(254), scales))); }

// --- e2m1

// format::e2m1_to_float of codes below 16.
HWY_INLINE F32s e2m1_values(U32s codes) {
  if constexpr (kLanes == 16) {
    return hn::TableLookupLanes(load(kE2m1Values.data()), hn::IndicesFromVec(F32(), codes));
  } else {
    // A normal code's exponent and mantissa move to fp32's place; 0 and 1 are read one exponent higher, as 1 more than
    // they are.
    const U32s magnitude = hn::And(codes, u32(7));
    const U32s sign = hn::ShiftLeft<28>(hn::And(codes, u32(8)));
    const U32s normal = hn::Add(hn::ShiftLeft<22>(magnitude), u32(126U << 23));
    const F32s subnormal = hn::Sub(floats(hn::Add(normal, u32(1U << 23))), f32(1.0F));
    return floats(hn::Or(hn::IfThenElse(hn::Lt(magnitude, u32(2)), bits(subnormal), normal), sign));
  }
}

// kLanes / 2 bytes: low nibbles in even lanes, high ones in odd lanes.
HWY_INLINE U32s load_nibbles(const uint8_t* from) {
  const hn::Repartition<uint64_t, U32> du64;
  const hn::Rebind<uint32_t, decltype(du64)> du32;
  const hn::Rebind<uint8_t, decltype(du64)> du8;
  const auto pairs = hn::PromoteTo(du64, hn::PromoteTo(du32, hn::LoadU(du8, from)));
  return hn::And(hn::BitCast(U32(), hn::Or(pairs, hn::ShiftLeft<28>(pairs))), u32(15));
}

}  // namespace HWY_NAMESPACE
}  // namespace megamla::cpu
HWY_AFTER_NAMESPACE();

#endif  // !MEGAMLA_PLAIN_TARGET
#endif  // per target
