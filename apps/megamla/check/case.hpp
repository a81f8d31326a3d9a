// A golden case: a safetensors file with inputs, expected results and scalar parameters (docs/golden.md), and the
// verdict on a run of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/tensor.hpp"
#include "io/safetensors.hpp"
#include "megamla/types.h"

namespace megamla::check {

// A file that is no golden case, or an op that refuses what the case asks for: one line, shown as the case's failure.
class CaseError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Memory that ops get: aligned to 256 bytes, filled on request.
class Arena {
 public:
  megamla_tensor tensor(megamla_dtype dtype, std::initializer_list<int64_t> shape, uint8_t fill = 0);
  void* bytes(int64_t count, uint8_t fill = 0);

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::vector<std::unique_ptr<void, Free>> blocks_;
};

class Case {
 public:
  explicit Case(const io::SafetensorsFile& file) : file_(file) {}

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  // An aligned copy of an input; absent tensor where `optional` and not there. Throws CaseError.
  megamla_tensor input(const std::string& name);
  megamla_tensor optional_input(const std::string& name) { return has(name) ? input(name) : megamla_tensor{}; }
  // Expected results, as aligned copies.
  megamla_tensor expected(const std::string& name) { return input(name); }

  const std::string& text(const std::string& key) const;
  bool has_text(const std::string& key) const { return file_.metadata().contains(key); }
  int64_t integer(const std::string& key) const;
  double number(const std::string& key) const;

  Arena& arena() { return arena_; }

 private:
  const io::SafetensorsFile& file_;
  Arena arena_;
};

// How much of each rule's bound a run used: 1 is the bound itself. A rule of equality uses 0 or more than 1.
class Verdict {
 public:
  // Records a share; over 1 or NaN is a failure, of which the first place is kept.
  void share(const std::string& rule, double share, const std::string& where);
  void require(const std::string& rule, bool holds, const std::string& where) { share(rule, holds ? 0 : 2, where); }
  // Every byte equal.
  void equal(const std::string& rule, const void* got, const void* expected, int64_t bytes);
  void error(const std::string& message);

  bool passed() const { return failure_.empty(); }
  const std::string& failure() const { return failure_; }
  const std::map<std::string, double>& shares() const { return shares_; }
  void set_implementation(const std::string& name) { implementation_ = name; }
  const std::string& implementation() const { return implementation_; }

 private:
  std::map<std::string, double> shares_;
  std::string failure_;
  std::string implementation_;
};

struct Run {
  Case& golden;
  Verdict& verdict;
  megamla_exec exec;

  megamla_device device() const { return static_cast<megamla_device>(exec.device); }
  Arena& arena() { return golden.arena(); }
};

// Throws CaseError with the library's message unless a call succeeded.
void expect_ok(megamla_status status);

using Runner = void (*)(Run&);
// The runner of an op; nullptr for an unknown one.
Runner find_runner(const std::string& op);

// One per op family; the table is in registry.cpp.
void run_decode(Run& run);
void run_prefill(Run& run);
void run_kv_encode(Run& run);
void run_kv_decode(Run& run);
void run_kv_insert(Run& run);
void run_gather(Run& run);
void run_compress(Run& run);
void run_rope_tables(Run& run);
void run_permute_q(Run& run);
void run_pad_q(Run& run);
void run_permute_o(Run& run);
void run_permute_wq_b(Run& run);
void run_permute_wo_a(Run& run);
void run_swa_metadata(Run& run);
void run_global_topk(Run& run);
void run_combine_topk_swa(Run& run);
void run_prefill_chunk_plan(Run& run);
void run_split_batch(Run& run);
void run_compressed_slot_mapping(Run& run);
void run_cast(Run& run);
void run_mxfp8_quant(Run& run);
void run_o_proj(Run& run);
void run_layer(Run& run);

}  // namespace megamla::check
