// Which implementations ran: counted per op, also where two ops' implementations share a name.
#include "ops/usage.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace megamla::ops {
namespace {

TEST(Usage, CountsPerEntry) {
  const char* name = "cpu.same_name";
  const int first = 0;
  const int second = 0;
  note_use(&first, "op_a", name);
  note_use(&second, "op_b", name);
  note_use(&first, "op_a", name);
  const std::vector<Usage> all = usage();
  const auto calls_of = [&](const std::string& op) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const Usage& use) { return use.op == op; });
    return found == all.end() ? int64_t{-1} : found->calls;
  };
  EXPECT_EQ(calls_of("op_a"), 2);
  EXPECT_EQ(calls_of("op_b"), 1);
}

}  // namespace
}  // namespace megamla::ops
