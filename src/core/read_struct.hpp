// Structs of the C ABI begin with their size: the library may be newer or older than its caller.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/status.hpp"

namespace megamla {

// Copies a caller's struct into the library's own, whatever version it was compiled against: fields that the caller did
// not know stay zero; fields that the library does not know must be zero.
template <class T>
Status read_struct(const char* op, const char* argument, const T* source, T* target) {
  if (source == nullptr) return invalid_argument("{}: {}: expected a struct, got NULL", op, argument);
  std::memset(static_cast<void*>(target), 0, sizeof(T));
  const size_t size = source->struct_size;
  if (size < sizeof(size_t) * 2 || size > 65536) {
    return invalid_argument("{}: {}.struct_size: expected {}, got {} (use the init function)", op, argument, sizeof(T),
                            size);
  }
  const char* bytes = reinterpret_cast<const char*>(source);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0)
      return unsupported("{}: {}: a field beyond byte {} is set: this library is older than its caller", op, argument,
                         sizeof(T));
  }
  std::memcpy(static_cast<void*>(target), bytes, std::min(size, sizeof(T)));
  target->struct_size = sizeof(T);
  return {};
}

}  // namespace megamla
