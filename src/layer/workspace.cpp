#include "layer/workspace.hpp"

#include <algorithm>
#include <limits>

#include "core/validate.hpp"
#include "format/chunked.hpp"

namespace megamla {
namespace {

constexpr int64_t kMaxBytes = std::numeric_limits<int64_t>::max() / 4;

Status check_buffer(const void* buffer, int64_t bytes) {
  Validator v("workspace", -1);
  v.range("bytes", bytes, 0, kMaxBytes).aligned("buffer", buffer, kWorkspaceAlignment);
  v.require(buffer != nullptr || bytes == 0, "buffer", "a non-null pointer", "NULL");
  if (v.ok()) v.addressable("buffer", buffer, bytes);
  return v.status();
}

}  // namespace

Workspace::Workspace(void* buffer, int64_t bytes, megamla_workspace_grow_fn grow, void* context)
    : buffer_(static_cast<char*>(buffer)), bytes_(bytes), grow_(grow), context_(context) {}

Status Workspace::bind(void* buffer, int64_t bytes) {
  MEGAMLA_RETURN_IF_ERROR(check_buffer(buffer, bytes));
  if (locked_)
    return invalid_argument("workspace: bind: expected an unlocked workspace, got one locked at {} bytes", bytes_);
  buffer_ = static_cast<char*>(buffer);
  bytes_ = bytes;
  retained_ = {};
  return {};
}

Status Workspace::reserve(int64_t bytes) {
  if (bytes < 0 || bytes > kMaxBytes) return invalid_argument("workspace: bytes: expected 0 .. 2^61, got {}", bytes);
  if (!locked_) required_ = std::max(required_, bytes);
  if (bytes <= bytes_) return {};
  if (locked_ || grow_ == nullptr) {
    return {MEGAMLA_WORKSPACE_TOO_SMALL, fmt::format("workspace: expected at least {} bytes, got {}{}", bytes, bytes_,
                                                     locked_ ? " (locked: it may not grow any more)" : "")};
  }
  void* grown = grow_(context_, buffer_, bytes);
  if (grown == nullptr) return runtime_error("workspace: the caller's function could not provide {} bytes", bytes);
  MEGAMLA_RETURN_IF_ERROR(check_buffer(grown, bytes));
  buffer_ = static_cast<char*>(grown);
  bytes_ = bytes;
  retained_ = {};
  return {};
}

Status Workspace::head(std::span<const int64_t> bytes, std::span<void*> pointers) {
  int64_t total = 0;
  for (const int64_t size : bytes) {
    if (size < 0 || size > kMaxBytes - total - kWorkspaceAlignment) {
      return invalid_argument("workspace: view: expected a total below 2^61 bytes, got a view of {}", size);
    }
    total += format::round_up(size, kWorkspaceAlignment);
  }
  MEGAMLA_RETURN_IF_ERROR(reserve(total));
  if (retained_.bytes > 0 && total > bytes_ - retained_.bytes) retained_ = {};
  int64_t offset = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    pointers[i] = buffer_ + offset;
    offset += format::round_up(bytes[i], kWorkspaceAlignment);
  }
  return {};
}

Status Workspace::retained(uint64_t key, int64_t bytes, void** pointer, bool* intact) {
  if (bytes < 0 || bytes > kMaxBytes)
    return invalid_argument("workspace: retained: expected 0 .. 2^61 bytes, got {}", bytes);
  const int64_t size = format::round_up(bytes, kWorkspaceAlignment);
  MEGAMLA_RETURN_IF_ERROR(reserve(size));
  *intact = size > 0 && retained_.bytes == size && retained_.key == key;
  retained_ = {key, size};
  // A buffer whose own size is no multiple of the alignment keeps the span aligned by leaving the last bytes unused.
  *pointer = buffer_ + (bytes_ / kWorkspaceAlignment * kWorkspaceAlignment - size);
  return {};
}

}  // namespace megamla
