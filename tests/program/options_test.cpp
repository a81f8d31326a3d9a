// Options of the program: what a number may be.
#include "options.hpp"

#include <gtest/gtest.h>

namespace megamla::app {
namespace {

TEST(NumberIn, TakesItsRangeAndNothingElse) {
  const CLI::Validator share = number_in(0, 1);
  for (const char* word : {"0", "1", "0.02", "1e-3"}) {
    std::string text = word;
    EXPECT_EQ(share(text), "") << word;
  }
  for (const char* word : {"nan", "-nan", "inf", "-0.1", "1.01", "", "half", "0.5x", "1e999"}) {
    std::string text = word;
    EXPECT_NE(share(text).find("expected a number from 0 to 1, got "), std::string::npos) << word;
  }
}

}  // namespace
}  // namespace megamla::app
