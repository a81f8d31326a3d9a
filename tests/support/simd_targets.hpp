// Every instruction set that the library has vector code for and this machine runs, the plain loops among them.
#pragma once

#include "cpu/simd/targets.hpp"
// Behind targets.hpp.
#include <gtest/gtest.h>
#include <hwy/targets.h>

namespace megamla::test {

template <class Body>
void on_every_target(Body&& body) {
  const auto targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  for (const int64_t target : targets) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    body();
    if (testing::Test::HasFatalFailure()) break;
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace megamla::test
