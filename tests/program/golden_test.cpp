// Every golden case of MEGAMLA_GOLDEN_DIR through the reference and the CPU, and the shipped selection's completeness.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "check/check_file.hpp"

namespace megamla::check {
namespace {

std::string golden_dir() {
  const char* set = std::getenv("MEGAMLA_GOLDEN_DIR");
  return set != nullptr ? set : MEGAMLA_SOURCE_DIR "/tests/golden";
}

// Empty, instead of an exception before main, where there is nothing: FolderHasCases fails then.
std::vector<std::string> cases_of(const std::string& folder) {
  try {
    return find_cases(folder);
  } catch (const CaseError&) {
    return {};
  }
}

class Golden : public testing::TestWithParam<std::tuple<std::string, megamla_device>> {};

TEST_P(Golden, Holds) {
  megamla_exec exec = MEGAMLA_EXEC_INIT;
  exec.device = std::get<1>(GetParam());
  const Report report = check_file(std::get<0>(GetParam()), exec);
  EXPECT_TRUE(report.verdict.passed()) << report.verdict.failure();
  for (const auto& [name, rule] : report.verdict.rules()) {
    if (!rule.exact) RecordProperty("share of " + name, std::to_string(rule.share));
  }
}

std::string test_name(const testing::TestParamInfo<Golden::ParamType>& info) {
  const std::string& path = std::get<0>(info.param);
  const size_t begin = path.rfind('/') + 1;
  std::string name = path.substr(begin, path.rfind('.') - begin);
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name + (std::get<1>(info.param) == MEGAMLA_DEVICE_CPU ? "_on_cpu" : "_on_reference");
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden,
                         testing::Combine(testing::ValuesIn(cases_of(golden_dir())),
                                          testing::Values(MEGAMLA_DEVICE_REFERENCE, MEGAMLA_DEVICE_CPU)),
                         test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Golden);

TEST(GoldenFolder, HasCases) { EXPECT_FALSE(cases_of(golden_dir()).empty()) << golden_dir(); }

// Whole layers are listed in a folder of their own, since they are not of one op.
TEST(GoldenFolder, ShippedSelectionCoversEveryOp) {
  std::set<std::string> missing;
  for (const std::string& op : known_ops()) missing.insert(op);
  megamla_exec exec = MEGAMLA_EXEC_INIT;
  for (const std::string& path : cases_of(MEGAMLA_SOURCE_DIR "/tests/golden")) {
    const Report report = check_file(path, exec);
    EXPECT_TRUE(report.verdict.passed()) << report.name << ": " << report.verdict.failure();
    missing.erase(report.op);
  }
  EXPECT_EQ(missing, std::set<std::string>());
}

}  // namespace
}  // namespace megamla::check
