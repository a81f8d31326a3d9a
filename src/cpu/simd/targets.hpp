// Before any header of Highway: the instruction sets that vector code is compiled for, AVX2, AVX-512 and NEON. These
// have the fused multiply-add that the contract asks for; everything else takes the plain loops of src/format/
// (MEGAMLA_PLAIN_TARGET in cpu/simd/lanes-inl.hpp). The bits below HWY_AVX3 are the newer kinds of AVX-512, of which
// each version of Highway knows others: nothing here needs them.
#pragma once

#define HWY_DISABLED_TARGETS ((HWY_AVX3 - 1) | HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

// GCC 12's own AVX-512 headers initialise undefined vectors with themselves and warn about it once inlined.
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
