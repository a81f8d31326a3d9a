// Workspace: head views and the retained tail of one caller-owned buffer (contract section 13).
#pragma once

#include <cstdint>
#include <span>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "megamla/workspace.h"

namespace megamla {

constexpr int64_t kWorkspaceAlignment = 256;

class Workspace {
 public:
  Workspace(void* buffer, int64_t bytes, megamla_workspace_grow_fn grow, void* context);

  Status bind(void* buffer, int64_t bytes);
  Status reserve(int64_t bytes);
  Status head(std::span<const int64_t> bytes, std::span<void*> pointers);
  Status retained(uint64_t key, int64_t bytes, void** pointer, bool* intact);
  void lock() { locked_ = true; }

  int64_t required() const { return required_; }
  int64_t bytes() const { return bytes_; }
  megamla_tensor view() const { return host_tensor(buffer_, MEGAMLA_U8, {bytes_}); }

 private:
  struct Retained {
    uint64_t key = 0;
    int64_t bytes = 0;  // 0: nothing is retained
  };

  char* buffer_;
  int64_t bytes_;
  megamla_workspace_grow_fn grow_;
  void* context_;
  bool locked_ = false;
  int64_t required_ = 0;
  Retained retained_;
};

}  // namespace megamla

struct megamla_workspace : megamla::Workspace {
  using megamla::Workspace::Workspace;
};
