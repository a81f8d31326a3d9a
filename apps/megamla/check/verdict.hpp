// What a run of a case is judged by: for every comparison rule the largest share of its bound that was used, and the
// first place where a rule does not hold.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace megamla::check {

struct Rule {
  bool exact = true;  // equality, or another yes-or-no rule
  bool holds = true;
  double share = 0;  // of the bound; 1 is the bound itself. Infinite where the result is NaN
};

class Verdict {
 public:
  // |error| < bound, as share = |error| / bound. `where`: a string, or a callable that makes one.
  template <class Where>
  void below(std::string_view rule, double share, Where&& where) {
    if (!measure(rule, share, share < 1)) fail(rule, text(where), share);
  }
  // |error| <= bound.
  template <class Where>
  void at_most(std::string_view rule, double share, Where&& where) {
    if (!measure(rule, share, share <= 1)) fail(rule, text(where), share);
  }
  // A yes-or-no rule.
  template <class Where>
  void require(std::string_view rule, bool holds, Where&& where) {
    if (!decide(rule, holds)) fail(rule, text(where));
  }
  // Every byte equal.
  void equal(std::string_view rule, const void* got, const void* expected, int64_t bytes);
  // The case could not be run or judged.
  void error(const std::string& message);
  // Several implementations may serve one case.
  void used(const std::string& implementation);

  bool passed() const { return failure_.empty() && !rules_.empty(); }
  // "RULE: WHERE", of the first failure; "" if there is none.
  std::string failure() const;
  const std::map<std::string, Rule, std::less<>>& rules() const { return rules_; }
  std::string implementation() const;

 private:
  template <class Where>
  static std::string text(Where&& where) {
    if constexpr (std::is_invocable_v<Where>) {
      return where();
    } else {
      return where;
    }
  }
  Rule& rule_named(std::string_view rule);
  bool measure(std::string_view rule, double share, bool holds);
  bool decide(std::string_view rule, bool holds);
  void fail(std::string_view rule, const std::string& where);
  void fail(std::string_view rule, const std::string& where, double share);

  std::map<std::string, Rule, std::less<>> rules_;
  std::string failure_;
  std::vector<std::string> implementations_;
};

}  // namespace megamla::check
