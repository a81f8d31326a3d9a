// Results of a layer's steps and the rules that hold for them (docs/golden.md, "Whole layer").
#pragma once

#include <map>
#include <set>
#include <vector>

#include "check/case.hpp"
#include "io/model_config.hpp"
#include "megamla/layer.h"

namespace megamla::check {

// One row per row of the case, padding included.
struct LayerResults {
  megamla_tensor qr, latent, compressed_latent, q, lse, pair, pair_scale, z, y;

  megamla_layer_taps taps(int64_t begin, int64_t end) const;
};
LayerResults make_results(app::Arena& arena, int64_t tokens, const io::ModelConfig& model, int64_t tp);

// Every stage end to end; `real_rows`: rows that are not padding.
void compare_layer(Run& run, const LayerResults& results, const std::vector<int64_t>& real_rows);
// y of one rank.
void compare_rank(Run& run, const megamla_tensor& y, int64_t rank);

void write_record(const megamla_kv_cache& cache, int64_t slot, const uint8_t* record);

// After each step every byte of the pool is as expected: records so far, newest wins, the fill elsewhere. Edge bytes,
// which the noise of fp32 sums may turn into another code, are judged by the values that they decode to.
class PoolRule {
 public:
  PoolRule(Run& run, const megamla_tensor& pool, const megamla_kv_cache& window, const megamla_kv_cache& compressed);

  void expect_step(int64_t begin, int64_t end, const megamla_tensor& window_slots,
                   const megamla_tensor& compressed_slots);
  void check(int64_t step);

 private:
  struct Records {
    megamla_kv_cache cache{};                     // in the pool under test
    megamla_tensor token{};                       // I32 [n]
    megamla_tensor bytes{};                       // U8 [n, record]
    std::set<std::pair<int64_t, int64_t>> edges;  // (record, byte)
    std::map<int64_t, int64_t> newest;            // slot -> record
  };
  void expect(Records& records, int64_t begin, int64_t end, const megamla_tensor& slots);
  void judge(Records& records, int64_t slot, int64_t record);
  megamla_kv_cache in_expected(megamla_kv_cache cache) const;

  Run& run_;
  megamla_tensor pool_;
  megamla_tensor expected_;
  Records window_, compressed_;
};

}  // namespace megamla::check
