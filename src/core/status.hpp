// Status: what a call inside the library returns. Turned into a megamla_status and the thread's last error at the C
// boundary.
#pragma once

#if !defined(__CUDACC__)
#include <fmt/format.h>
#endif

#include <string>
#include <utility>

#include "megamla/types.h"

namespace megamla {

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(megamla_status code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == MEGAMLA_OK; }
  megamla_status code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  megamla_status code_ = MEGAMLA_OK;
  std::string message_;
};

#if !defined(__CUDACC__)  // nvcc does not take fmt's compile-time checks: a .cu file formats no message
template <class... Args>
Status invalid_argument(fmt::format_string<Args...> format, Args&&... args) {
  return {MEGAMLA_INVALID_ARGUMENT, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
Status unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return {MEGAMLA_UNSUPPORTED, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
Status io_error(fmt::format_string<Args...> format, Args&&... args) {
  return {MEGAMLA_IO_ERROR, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
Status runtime_error(fmt::format_string<Args...> format, Args&&... args) {
  return {MEGAMLA_RUNTIME_ERROR, fmt::format(format, std::forward<Args>(args)...)};
}
#endif

}  // namespace megamla

// Returns from the enclosing function if the Status is not ok.
#define MEGAMLA_RETURN_IF_ERROR(expression)                                      \
  do {                                                                           \
    if (::megamla::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)
