// Which vector code the CPU backend runs: the widest that the machine has, or less where the environment's MEGAMLA_SIMD
// says so, to see what a lesser machine computes. Read when the library is loaded. It limits this library's vector code
// and oneDNN's; loops that the compiler turns into vector code (core/simd.hpp) have the same bits at every width and
// are not limited.
#pragma once

#include "core/status.hpp"

namespace megamla::cpu {

enum class SimdLevel { kPlain, kNeon, kAvx2, kAvx512 };

// The most that may run, whether this machine has it or not.
SimdLevel simd_limit();

// What does run: "avx512", "avx2", "neon" or "plain".
const char* simd_name();

// INVALID_ARGUMENT where MEGAMLA_SIMD names nothing that this build has; nothing is limited then.
Status check_simd_limit();

}  // namespace megamla::cpu
