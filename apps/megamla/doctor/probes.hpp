// Asks every op, on every device, whether it supports a typical call.
#pragma once

#include <string>
#include <vector>

#include "megamla/types.h"

namespace megamla::doctor {

struct Probe {
  std::string op;
  megamla_device device;
  bool supported;
  std::string answer;  // the implementation, or the library's reason
};

std::vector<Probe> probe_ops();

}  // namespace megamla::doctor
