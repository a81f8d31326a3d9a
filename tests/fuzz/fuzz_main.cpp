// libFuzzer's entry point of one target; MEGAMLA_FUZZ_TARGET names it.
#include <cstdio>
#include <cstdlib>

#include "fuzz/finding.hpp"
#include "fuzz/targets.hpp"

// What the OpenMP runtime keeps for its threads is no leak of the library's.
extern "C" const char* __lsan_default_suppressions() { return "leak:libomp.so\n"; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  try {
    megamla::fuzz::MEGAMLA_FUZZ_TARGET({bytes, size});
  } catch (const megamla::fuzz::Finding& finding) {
    std::fprintf(stderr, "finding: %s\n", finding.what());
    std::abort();
  }
  return 0;
}
