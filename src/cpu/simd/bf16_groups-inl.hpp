// Scale groups of bf16 values as e4m3 and e2m1 codes, 16 bits a lane, bit for bit what the scalar functions of
// src/format/ give. Compiled once per instruction set: include behind hwy/foreach_target.h.

#if defined(MEGAMLA_CPU_SIMD_BF16_GROUPS) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGAMLA_CPU_SIMD_BF16_GROUPS
#undef MEGAMLA_CPU_SIMD_BF16_GROUPS
#else
#define MEGAMLA_CPU_SIMD_BF16_GROUPS
#endif

#include "cpu/simd/lanes-inl.hpp"

#if !MEGAMLA_PLAIN_TARGET

HWY_BEFORE_NAMESPACE();
namespace megamla::cpu {
namespace HWY_NAMESPACE {

using U16Wide = hn::Repartition<uint16_t, U32>;
using Halves = hn::VFromD<U16Wide>;
constexpr int kWideLanes = 2 * kLanes;

HWY_INLINE Halves u16(uint16_t x) { return hn::Set(U16Wide(), x); }
HWY_INLINE Halves halves(U32s x) { return hn::BitCast(U16Wide(), x); }
HWY_INLINE U32s pairs(Halves x) { return hn::BitCast(U32(), x); }
HWY_INLINE Halves load_halves(const format::Bf16* x) {
  return hn::LoadU(U16Wide(), reinterpret_cast<const uint16_t*>(x));
}
HWY_INLINE Halves magnitudes(Halves x) { return hn::And(x, u16(0x7fff)); }

// AVX-512 looks 16-bit values up in a table of 32.
#undef MEGAMLA_LOOKUP_32
#if HWY_TARGET == HWY_AVX3
#define MEGAMLA_LOOKUP_32 1
// Lane i is that of the table which the lowest 5 bits of indices[i] name.
HWY_INLINE Halves lookup(Halves table, Halves indices) {
  return Halves{_mm512_permutexvar_epi16(indices.raw, table.raw)};
}
#else
#define MEGAMLA_LOOKUP_32 0
#endif

// The lower byte of each lane.
HWY_INLINE void store_bytes(Halves lanes, uint8_t* to) {
  const hn::Rebind<uint8_t, U16Wide> du8;
  hn::StoreU(hn::TruncateTo(du8, lanes), du8, to);
}

// --- e4m3 under a ue8m0 scale

// max|x| of kLanes groups of kGroup values, 0 from group `count` on. at(d) points to value d of them all.
template <int kGroup, class At>
HWY_INLINE F32s bf16_group_maxima(int count, At&& at) {
  U32s most[kLanes];
  for (int g = 0; g < kLanes; ++g) {
    Halves largest = u16(0);
    for (int i = 0; i < kGroup && g < count; i += kWideLanes) {
      largest = hn::Max(largest, magnitudes(load_halves(at(g * kGroup + i))));
    }
    most[g] = hn::Max(pairs(largest), hn::ShiftLeft<16>(pairs(largest)));  // lower halves: anything
  }
  return floats(hn::And(lane_maxima(most), u32(0xffff0000)));
}

// Magnitudes below this one, in both halves of a lane, are 0 under the scale: 2^-11 times it, less than half a code.
constexpr uint32_t kOctavesBelowOne = 11;
HWY_INLINE U32s smallest_coded(U32s scales) {
  const U32s bits = hn::ShiftLeft<7>(hn::Sub(scales, u32(kOctavesBelowOne)));
  return hn::Or(bits, hn::ShiftLeft<16>(bits));
}

// Codes of finite x, in the lower byte of each lane, whose upper one is 0.
//
// Less `smallest`, a magnitude is an octave above 2^-11 and 7 bits of a significand. Octave 5 is that of 2^-6, the
// smallest normal code: from there on a code counts eighths of an octave, below it counts those of octave 5.
HWY_INLINE Halves e4m3_codes(Halves x, Halves smallest) {
  constexpr uint16_t kNormal = kOctavesBelowOne - 6;
  const Halves above = hn::SaturatedSub(magnitudes(x), smallest);
  const Halves octave = hn::ShiftRight<7>(above);
  // 1.7 bits at the top of 15, so that no bit is lost on the way down, then to nearest even in units of 2^11.
  const Halves significand = hn::Or(hn::And(hn::ShiftLeft<7>(above), u16(0x3f80)), u16(0x4000));
  const Halves eighths = significand >> hn::SaturatedSub(u16(kNormal), octave);
  const Halves odd = hn::And(hn::ShiftRight<11>(eighths), u16(1));
  const Halves rounded = hn::ShiftRight<11>(hn::Add(hn::Add(eighths, u16(0x3ff)), odd));
  const Halves code = hn::Add(rounded, hn::ShiftLeft<3>(hn::SaturatedSub(octave, u16(kNormal))));
  return hn::Or(code, hn::And(hn::ShiftRight<8>(x), u16(0x80)));
}

// --- e2m1 under an e4m3 scale
//
// A tile is 8 vectors of values. A chunk is 8 neighbouring values, what a block of 128 bits holds: half a scale group,
// 4 bytes of a record. Transposed, lane j of block b is chunk kBlocks * j + b, and vector i holds value i of each.

constexpr int kChunk = 8;
constexpr int kBlocks = kWideLanes / kChunk;

HWY_INLINE void transpose_chunks(Halves* x) {
  const hn::Repartition<uint64_t, U16Wide> du64;
  const U16Wide d;
  U32s low[4];
  U32s high[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    low[i] = pairs(hn::InterleaveLower(d, x[2 * i], x[2 * i + 1]));
    high[i] = pairs(hn::InterleaveUpper(d, x[2 * i], x[2 * i + 1]));
  }
  const auto store = [&](U32s four, U32s other_four, Halves* to) {
    const auto a = hn::BitCast(du64, four);
    const auto b = hn::BitCast(du64, other_four);
    to[0] = hn::BitCast(d, hn::InterleaveLower(du64, a, b));
    to[1] = hn::BitCast(d, hn::InterleaveUpper(du64, a, b));
  };
  store(hn::InterleaveLower(U32(), low[0], low[1]), hn::InterleaveLower(U32(), low[2], low[3]), x);
  store(hn::InterleaveUpper(U32(), low[0], low[1]), hn::InterleaveUpper(U32(), low[2], low[3]), x + 2);
  store(hn::InterleaveLower(U32(), high[0], high[1]), hn::InterleaveLower(U32(), high[2], high[3]), x + 4);
  store(hn::InterleaveUpper(U32(), high[0], high[1]), hn::InterleaveUpper(U32(), high[2], high[3]), x + 6);
}

// max|x| of the two chunks of a group, in the lane of each.
HWY_INLINE Halves chunk_pair_maxima(const Halves* x) {
  const auto max2 = [&](int i) { return hn::Max(magnitudes(x[i]), magnitudes(x[i + 1])); };
  const Halves largest = hn::Max(hn::Max(max2(0), max2(2)), hn::Max(max2(4), max2(6)));
  if constexpr (kBlocks == 1) {
    const U32s u = pairs(largest);
    return hn::Max(largest, halves(hn::Or(hn::ShiftLeft<16>(u), hn::ShiftRight<16>(u))));
  } else {
    return hn::Max(largest, hn::SwapAdjacentBlocks(largest));
  }
}

struct Nvfp4Scales {
  Halves codes;  // lower bytes of the lanes
  F32s even;     // what the codes of the even lanes stand for
  F32s odd;
};
// format::detail::nvfp4_scale.
HWY_INLINE Nvfp4Scales nvfp4_scales(Halves maxima) {
  const auto round = [](U32s largest) {
    const F32s wanted = hn::Mul(floats(largest), f32(1.0F / 6.0F));
    return round_to_e4m3(hn::Min(hn::Max(wanted, f32(0x1p-9F)), f32(format::kE4m3Max)));
  };
  const Rounded even = round(hn::ShiftLeft<16>(pairs(maxima)));
  const Rounded odd = round(hn::And(pairs(maxima), u32(0xffff0000)));
  const U32s codes = hn::OrAnd(hn::ShiftLeft<16>(odd.codes), even.codes, u32(0xff));
  return {halves(codes), even.values, odd.values};
}

// e2m1 of |x| / d without the division: a code is the number of midpoints t that the rounded quotient passes. t * d has
// at most 7 significant bits, so it is a bf16, and where |x|, another one, differs from it at all, |x| / d differs from
// t by far more than a rounding: comparing |x| with t * d gives the same. At a tie the even code wins: the midpoints
// below an even code are lowered by one step, so that all are passed by what is greater.
constexpr int kE2m1Midpoints = 7;
HWY_INLINE void e2m1_midpoints(const Nvfp4Scales& scales, Halves* midpoints) {
#pragma GCC unroll 8
  for (uint8_t t = 0; t < kE2m1Midpoints; ++t) {
    const uint8_t next = t + 1;
    const F32s midpoint = f32((format::e2m1_to_float(t) + format::e2m1_to_float(next)) / 2);
    const U32s even = hn::ShiftRight<16>(bits(hn::Mul(scales.even, midpoint)));
    const U32s both = hn::Or(even, bits(hn::Mul(scales.odd, midpoint)));
    midpoints[t] = hn::Sub(halves(both), u16(next % 2 == 0 ? 1 : 0));
  }
}

// Codes of four vectors, value i in bits 4i .. 4i+3 of its lane: a binary search over the midpoints.
HWY_INLINE Halves packed_e2m1_codes(const Halves* x, const Halves* midpoints) {
  const hn::RebindToSigned<U16Wide> d;  // magnitudes are positive, and signed comparisons are there on every machine
  const auto midpoint = [&](int t) { return hn::BitCast(d, midpoints[t]); };
  const auto value = [&](int i) {
    const auto magnitude = hn::BitCast(d, magnitudes(x[i]));
    const auto four = hn::Gt(magnitude, midpoint(3));
    const auto two = hn::Gt(magnitude, hn::IfThenElse(four, midpoint(5), midpoint(1)));
    const auto last = hn::IfThenElse(four, hn::IfThenElse(two, midpoint(6), midpoint(4)),
                                     hn::IfThenElse(two, midpoint(2), midpoint(0)));
    const auto one = hn::Gt(magnitude, last);
    const auto code = hn::Or3(hn::IfThenElseZero(four, hn::Set(d, 4)), hn::IfThenElseZero(two, hn::Set(d, 2)),
                              hn::IfThenElseZero(one, hn::Set(d, 1)));
    return hn::OrAnd(hn::BitCast(U16Wide(), code), hn::ShiftRight<12>(x[i]), u16(8));
  };
  const Halves lower = hn::Or(value(0), hn::ShiftLeft<4>(value(1)));
  const Halves upper = hn::Or(value(2), hn::ShiftLeft<4>(value(3)));
  return hn::Or(lower, hn::ShiftLeft<8>(upper));
}

// Lanes of 32 bits, each a chunk, from transposed order to that of the chunks.
HWY_INLINE U32s in_chunk_order(U32s x) {
  if constexpr (kBlocks == 1) {
    return x;
  } else {
    alignas(64) constexpr auto kFrom = [] {
      std::array<int32_t, kLanes> from{};
      for (int i = 0; i < kLanes; ++i) from[static_cast<size_t>(i)] = 4 * (i % kBlocks) + i / kBlocks;
      return from;
    }();
    return hn::TableLookupLanes(x, hn::SetTableIndices(U32(), kFrom.data()));
  }
}

// Each chunk's lower and upper two bytes.
HWY_INLINE void store_chunks(Halves lower, Halves upper, uint8_t* to) {
  const U16Wide d;
  const auto store = [](Halves chunks, uint8_t* first) {
    hn::StoreU(in_chunk_order(pairs(chunks)), U32(), reinterpret_cast<uint32_t*>(first));
  };
  store(hn::InterleaveLower(d, lower, upper), to);
  store(hn::InterleaveUpper(d, lower, upper), to + 4 * kLanes);
}

// A byte for each two chunks.
HWY_INLINE void store_scales(Halves codes, uint8_t* to) {
  const U16Wide d;
  const hn::Repartition<uint64_t, U16Wide> du64;
  const hn::Rebind<uint8_t, decltype(du64)> du8;
  const auto store = [&](Halves chunks, uint8_t* first) {
    hn::StoreU(hn::TruncateTo(du8, hn::BitCast(du64, in_chunk_order(pairs(chunks)))), du8, first);
  };
  store(hn::InterleaveLower(d, codes, codes), to);
  store(hn::InterleaveUpper(d, codes, codes), to + kLanes / 2);
}

}  // namespace HWY_NAMESPACE
}  // namespace megamla::cpu
HWY_AFTER_NAMESPACE();

#endif  // !MEGAMLA_PLAIN_TARGET
#endif  // per target
