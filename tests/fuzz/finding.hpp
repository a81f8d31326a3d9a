// What a target throws when the library breaks its contract; crashes and sanitizers speak for themselves.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace megamla::fuzz {

class Finding : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw Finding(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace megamla::fuzz
