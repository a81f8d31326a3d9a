#include "check/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace megamla::check {

Rule& Verdict::rule_named(std::string_view rule) {
  const auto found = rules_.find(rule);
  return found != rules_.end() ? found->second : rules_[std::string(rule)];
}

bool Verdict::measure(std::string_view rule, double share, bool holds) {
  Rule& entry = rule_named(rule);
  entry.exact = false;
  entry.holds = entry.holds && holds;
  entry.share = std::max(entry.share, std::isnan(share) ? std::numeric_limits<double>::infinity() : share);
  return holds;
}

bool Verdict::decide(std::string_view rule, bool holds) {
  Rule& entry = rule_named(rule);
  entry.holds = entry.holds && holds;
  return holds;
}

void Verdict::fail(std::string_view rule, const std::string& where) {
  if (failure_.empty()) failure_ = fmt::format("{}: {}", rule, where);
}

void Verdict::fail(std::string_view rule, const std::string& where, double share) {
  if (!failure_.empty()) return;
  fail(rule, std::isnan(share) ? where + ": NaN" : fmt::format("{}: {:.3g} of its bound", where, share));
}

void Verdict::equal(std::string_view rule, const void* got, const void* expected, int64_t bytes) {
  const auto* a = static_cast<const uint8_t*>(got);
  const auto* b = static_cast<const uint8_t*>(expected);
  const bool same = bytes == 0 || std::memcmp(a, b, static_cast<size_t>(bytes)) == 0;
  require(rule, same, [&] {
    const int64_t first = std::mismatch(a, a + bytes, b).first - a;
    return fmt::format("byte {}: expected {:#04x}, found {:#04x}", first, b[first], a[first]);
  });
}

void Verdict::error(const std::string& message) {
  if (failure_.empty()) failure_ = message.empty() ? "unknown error" : message;
}

std::string Verdict::failure() const {
  return failure_.empty() && rules_.empty() ? "the case has no rule that was judged" : failure_;
}

void Verdict::used(const std::string& implementation) {
  if (std::find(implementations_.begin(), implementations_.end(), implementation) == implementations_.end()) {
    implementations_.push_back(implementation);
  }
}

std::string Verdict::implementation() const { return fmt::format("{}", fmt::join(implementations_, "+")); }

}  // namespace megamla::check
