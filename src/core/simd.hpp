// Loops that the compiler turns into vector code, compiled for several instruction sets and chosen when the library is
// loaded.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define MEGAMLA_SIMD_CLONES __attribute__((target_clones("default", "avx2", "arch=x86-64-v4"), optimize("O3")))
#else
#define MEGAMLA_SIMD_CLONES
#endif
