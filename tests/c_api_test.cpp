// The C boundary: names and sizes of the enumerations, the thread's last error, exceptions turned into codes.
#include <gtest/gtest.h>

#include <climits>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "core/c_boundary.hpp"
#include "megamla/types.h"

namespace megamla {
namespace {

TEST(CApi, VersionIsTheHeaders) {
  const std::string expected = std::to_string(MEGAMLA_VERSION_MAJOR) + "." + std::to_string(MEGAMLA_VERSION_MINOR) +
                               "." + std::to_string(MEGAMLA_VERSION_PATCH);
  EXPECT_EQ(megamla_version(), expected);
  EXPECT_EQ(MEGAMLA_PROJECT_VERSION, expected);
}

TEST(CApi, EveryStatusHasItsOwnName) {
  std::set<std::string> names;
  for (int code = MEGAMLA_OK; code <= MEGAMLA_RUNTIME_ERROR; ++code) {
    names.insert(megamla_status_name(static_cast<megamla_status>(code)));
  }
  EXPECT_EQ(names.size(), 6U);
  EXPECT_FALSE(names.contains("?"));
}

TEST(CApi, DtypesHaveSizesAndNames) {
  const struct {
    megamla_dtype dtype;
    int64_t size;
    const char* name;
  } cases[] = {{MEGAMLA_U8, 1, "U8"},           {MEGAMLA_I32, 4, "I32"},        {MEGAMLA_I64, 8, "I64"},
               {MEGAMLA_F32, 4, "F32"},         {MEGAMLA_F64, 8, "F64"},        {MEGAMLA_BF16, 2, "BF16"},
               {MEGAMLA_F8_E4M3, 1, "F8_E4M3"}, {MEGAMLA_F8_E8M0, 1, "F8_E8M0"}};
  for (const auto& c : cases) {
    EXPECT_EQ(megamla_dtype_size(c.dtype), c.size) << c.name;
    EXPECT_STREQ(megamla_dtype_name(c.dtype), c.name);
  }
}

// What a C caller may pass; under sanitizers a load of a value outside the enumeration's range would end the run.
TEST(CApi, UnknownEnumValuesAreAnswered) {
  for (int value : {99, -1, INT_MAX, INT_MIN}) {
    EXPECT_STREQ(megamla_status_name(static_cast<megamla_status>(value)), "?") << value;
    EXPECT_EQ(megamla_dtype_size(static_cast<megamla_dtype>(value)), 0) << value;
    EXPECT_STREQ(megamla_dtype_name(static_cast<megamla_dtype>(value)), "?") << value;
  }
}

TEST(CApi, LastErrorStaysUntilTheNextFailure) {
  EXPECT_EQ(guard([] { return invalid_argument("op: x: expected {}, got {}", 1, 2); }), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_STREQ(megamla_last_error(), "op: x: expected 1, got 2");
  EXPECT_EQ(guard([] { return Status(); }), MEGAMLA_OK);
  EXPECT_STREQ(megamla_last_error(), "op: x: expected 1, got 2");
  EXPECT_EQ(guard([] { return unsupported("not here"); }), MEGAMLA_UNSUPPORTED);
  EXPECT_STREQ(megamla_last_error(), "not here");
}

TEST(CApi, LastErrorBelongsToItsThread) {
  EXPECT_EQ(guard([] { return io_error("here"); }), MEGAMLA_IO_ERROR);
  std::string before;
  std::string after;
  std::thread([&] {
    before = megamla_last_error();
    EXPECT_EQ(guard([] { return io_error("there"); }), MEGAMLA_IO_ERROR);
    after = megamla_last_error();
  }).join();
  EXPECT_EQ(before, "");
  EXPECT_EQ(after, "there");
  EXPECT_STREQ(megamla_last_error(), "here");
}

TEST(CApi, NoExceptionCrosses) {
  EXPECT_EQ(guard([]() -> Status { throw std::bad_alloc(); }), MEGAMLA_RUNTIME_ERROR);
  EXPECT_STREQ(megamla_last_error(), "out of memory");
  EXPECT_EQ(guard([]() -> Status { throw std::runtime_error("lost"); }), MEGAMLA_RUNTIME_ERROR);
  EXPECT_STREQ(megamla_last_error(), "lost");
  EXPECT_EQ(guard([]() -> Status { throw 7; }), MEGAMLA_RUNTIME_ERROR);
  EXPECT_STREQ(megamla_last_error(), "unknown exception");
}

}  // namespace
}  // namespace megamla
