// A value, or the Status that says why there is none.
#pragma once

#include <optional>
#include <utility>

#include "core/status.hpp"

namespace megamla {

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor): `return value;`
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor): `return io_error(...)`

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace megamla
