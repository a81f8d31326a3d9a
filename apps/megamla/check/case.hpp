// A golden case: a safetensors file with inputs, expected results and scalar parameters (docs/golden.md), and the
// verdict on a run of it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "arena.hpp"
#include "check/verdict.hpp"
#include "core/tensor.hpp"
#include "io/safetensors.hpp"
#include "megamla/types.h"

namespace megamla::check {

// A file that is no golden case, or an op that refuses what the case asks for: one line, shown as the case's failure.
class CaseError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Case {
 public:
  // `device`: of the ops that the inputs are for.
  Case(const io::SafetensorsFile& file, megamla_device device) : file_(file), arena_(device, kMemoryLimit) {}

  static constexpr int64_t kAny = -1;  // in a shape: any extent

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  // An aligned copy for an op, whatever its shape: the op itself checks what it is given.
  megamla_tensor input(const std::string& name);
  // An absent tensor where the file has none.
  megamla_tensor optional_input(const std::string& name) { return has(name) ? input(name) : megamla_tensor{}; }
  // The same, of this dtype and shape: what the harness itself indexes. Throws CaseError.
  megamla_tensor input(const std::string& name, megamla_dtype dtype, std::initializer_list<int64_t> shape);
  // An aligned copy in host memory.
  megamla_tensor expected(const std::string& name, megamla_dtype dtype, std::initializer_list<int64_t> shape);

  const std::string& text(const std::string& key) const;
  bool has_text(const std::string& key) const { return file_.metadata().contains(key); }
  int64_t integer(const std::string& key) const;
  int64_t integer(const std::string& key, int64_t low, int64_t high) const;  // inclusive
  double number(const std::string& key) const;

  // "FILE: WHAT: expected ..., found ..."
  [[noreturn]] void refuse(const std::string& what, const std::string& expected, const std::string& found) const;
  app::Arena& arena() { return arena_; }

 private:
  megamla_tensor copy(const std::string& name, app::Arena& arena);
  void require_shape(const std::string& name, const megamla_tensor& t, megamla_dtype dtype,
                     std::initializer_list<int64_t> shape) const;

  static constexpr int64_t kMemoryLimit = int64_t{4} << 30;  // no case needs it: a larger size is a corrupt one

  const io::SafetensorsFile& file_;
  app::Arena arena_;
  app::Arena expected_{MEGAMLA_DEVICE_CPU, kMemoryLimit};
};

struct Run {
  Case& golden;
  Verdict& verdict;
  megamla_exec exec;

  megamla_device device() const { return static_cast<megamla_device>(exec.device); }
  app::Arena& arena() { return golden.arena(); }
};

// What an output holds before an op runs.
constexpr uint8_t kUnwritten = 0xa5;

int64_t count_of(const megamla_tensor& t);  // elements
int64_t bytes_of(const megamla_tensor& t);  // of a C-contiguous tensor

// An output of the dtype and shape of the expected tensor `name`, filled with kUnwritten.
megamla_tensor output_like(Run& run, const std::string& name, megamla_dtype dtype,
                           std::initializer_list<int64_t> shape);
// Rule `name`: a C-contiguous result equals the expected tensor `name`, byte for byte.
void compare_equal(Run& run, const std::string& name, const megamla_tensor& got);

// Throws CaseError with the library's message unless a call succeeded.
void expect_ok(megamla_status status);

using Runner = void (*)(Run&);
// The runner of an op; nullptr for an unknown one.
Runner find_runner(const std::string& op);
std::vector<std::string> known_ops();

}  // namespace megamla::check
