// What every benchmark shares: the ceilings of this machine, the timing rule, the record.
//
// A row is the median of at least five timed calls; before each, the inputs move on to other bytes of a set of at least
// 240 MB, as a real step finds them cold. The bound is the larger of arithmetic over the GEMM rate and bytes over the
// copy bandwidth, both measured in the same run.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "arena.hpp"
#include "megamla/types.h"

namespace megamla::bench {

struct Ceilings {
  std::string gemm;       // "onednn_bf16"
  double gemm_flops = 0;  // per second, all threads, 2048^3
  double copy_bytes = 0;  // per second, read plus written
};
Ceilings measure_ceilings(const megamla_exec& exec);

struct Options {
  std::vector<std::string> ops;
  std::vector<int64_t> tokens{1, 8, 32, 128};
  std::vector<int64_t> heads{64};
  std::vector<int64_t> topk{512};
  int64_t window = 128;
  std::string window_format = "fp8_528";
  std::string topk_format = "nvfp4_288";
  std::string output = "fp8";
  std::vector<std::string> cases{"wo_a", "wo_b", "wq_b"};
  int repeats = 7;
  megamla_exec exec;
};

struct Row {            // NOLINT(bugprone-exception-escape): json's move may throw in principle
  nlohmann::json cell;  // op and what tells its rows apart, in the names of the record
  std::string implementation;
  double flops = 0;
  double bytes = 0;
  std::vector<double> seconds;  // ascending
  double bound_seconds = 0;

  double median() const { return seconds[seconds.size() / 2]; }
};

// Times call(i) for i = 0 .. repeats (the first is warm-up). `call` picks the i-th set of inputs.
std::vector<double> time_calls(int repeats, const std::function<void(int)>& call);

using Emit = std::function<void(Row)>;
void bench_decode_attention(const Options& options, const Emit& emit);
void bench_prefill_attention(const Options& options, const Emit& emit);
void bench_block_scaled_linear(const Options& options, const Emit& emit);
void bench_kv_insert(const Options& options, const Emit& emit);
void bench_kv_gather(const Options& options, const Emit& emit);
void bench_index_ops(const Options& options, const std::string& op, const Emit& emit);
void bench_layer_step(const Options& options, const Emit& emit);

// Throws app::InputError with the library's message unless a call succeeded.
void check(megamla_status status);
// Gives `exec` a workspace of the size that an op asks for.
void take_workspace(app::Arena& arena, megamla_exec& exec,
                    megamla_status (*query)(const megamla_limits*, megamla_device, int64_t*), megamla_limits limits);
// Every slot of a cache gets the record of a row of values in [-1, 1).
void fill_cache(const megamla_kv_cache& cache, uint64_t seed);
// Random e4m3 codes of ordinary size (0.5 .. 1.9).
void fill_e4m3(void* memory, int64_t bytes, uint64_t seed);
void fill_bf16(void* memory, int64_t count, uint64_t seed);

constexpr int64_t kColdBytes = int64_t{240} << 20;

}  // namespace megamla::bench
