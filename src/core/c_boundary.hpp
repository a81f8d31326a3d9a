// The edge between the library and its C callers: no exception crosses it, and every failure leaves its message for
// megamla_last_error.
#pragma once

#include <exception>
#include <new>
#include <utility>

#include "core/status.hpp"

namespace megamla {

// Remembers the message of a failed call for this thread; returns the code.
megamla_status report(const Status& status) noexcept;

// Runs a function that returns a Status.
template <class F>
megamla_status guard(F&& body) noexcept {
  try {
    return report(std::forward<F>(body)());
  } catch (const std::bad_alloc&) {
    return report({MEGAMLA_RUNTIME_ERROR, "out of memory"});
  } catch (const std::exception& error) {
    return report({MEGAMLA_RUNTIME_ERROR, error.what()});
  } catch (...) {
    return report({MEGAMLA_RUNTIME_ERROR, "unknown exception"});
  }
}

}  // namespace megamla
