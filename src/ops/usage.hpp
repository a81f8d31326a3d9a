// Which implementation of each op has run in this process, and how often: the program shows it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megamla::ops {

struct Usage {
  std::string op;
  std::string implementation;
  int64_t calls;
};

// `entry` is the address of the implementation's entry in its op's table (names alone may be shared by ops); both names
// must be static strings. Lock-free: one relaxed increment.
void note_use(const void* entry, const char* op, const char* implementation);
// In order of first use.
std::vector<Usage> usage();

}  // namespace megamla::ops
