// What every benchmark shares: the ceilings of this machine, the timing rule, the record.
//
// A row is the median of at least five timings; the inputs move on to other bytes of a set of at least 240 MB before
// they come back to the same, as a real step finds them cold. On the CPU a timing is one call; on the GPU it is one
// replay of a graph of calls that goes through the whole set, divided by their number. The bound is the larger of
// arithmetic over the GEMM rate and bytes over the copy bandwidth. The copy is measured in the same run (beside the
// calls of kv_insert and kv_gather), and so is the CPU's GEMM (beside the calls of attention).
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "arena.hpp"
#include "megamla/block_scaled_linear.h"
#include "megamla/megamla.hpp"
#include "op_views.hpp"

namespace megamla::bench {

struct Ceilings {
  std::string gemm;       // what gemm_flops is the rate of
  double gemm_flops = 0;  // per second. CPU: all threads, 2048^3; GPU: the tensor cores at the highest clock
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
  std::string lengths = "none";  // of decode_attention's lists: "none" given, "full", "random"
  bool batch_invariant = false;
  std::vector<std::string> cases{"wo_a", "wo_b", "wq_b"};
  std::vector<std::string> paths{"gathered"};
  bool peer = false;  // block_scaled_linear: cuBLASLt beside it
  int repeats = 7;
  megamla_exec exec;

  megamla_device device() const { return static_cast<megamla_device>(exec.device); }
};

// Of values in ascending order.
inline double median(const std::vector<double>& ascending) { return ascending[ascending.size() / 2]; }

struct Row {            // NOLINT(bugprone-exception-escape): json's move may throw in principle
  nlohmann::json cell;  // op and what tells its rows apart, in the names of the record
  std::string implementation;
  double flops = 0;
  double bytes = 0;
  std::vector<double> seconds;  // ascending
  double copy_bytes = 0;        // per second, of copies timed beside the calls; 0: there were none
  double gemm_flops = 0;        // per second, of GEMMs timed beside the calls; 0: there were none
  double bound_seconds = 0;

  double median() const { return bench::median(seconds); }
};

// How many sets of inputs a loop goes through, of which one call reads `bytes` bytes that must be cold.
int input_sets(const Options& options, double bytes);
// Seconds per call, ascending; call(i) runs on set i of `sets`. On the GPU each call runs once before it is recorded.
std::vector<double> time_calls(const Options& options, int sets, const std::function<void(int)>& call);

// Sets row.seconds and row.copy_bytes. On the CPU as many bytes, read and written together, are copied after each call
// by memcpy on as many threads from other memory to other memory, so that both meet the memory in the same state; on
// the GPU a large copy follows the calls. `row.bytes` must be set.
void time_beside_copies(const Options& options, int sets, const std::function<void(int)>& call, Row& row);

// Sets row.seconds, and on the CPU row.gemm_flops: after each call oneDNN multiplies as for Ceilings, so that both meet
// the machine in the same state.
void time_beside_gemms(const Options& options, int sets, const std::function<void(int)>& call, Row& row);

// What ops and ceilings work on: huge pages, as a long-lived pool should lie on.
struct Inputs : app::Arena {
  explicit Inputs(megamla_device device) : Arena(device, INT64_MAX, app::Pages::kHuge) {}
};

using Emit = std::function<void(Row)>;
void bench_decode_attention(const Options& options, const Emit& emit);
void bench_prefill_attention(const Options& options, const Emit& emit);
void bench_block_scaled_linear(const Options& options, const Emit& emit);
void bench_kv_insert(const Options& options, const Emit& emit);
void bench_kv_gather(const Options& options, const Emit& emit);
void bench_index_ops(const Options& options, const std::string& op, const Emit& emit);
void bench_layer_step(const Options& options, const Emit& emit);
// kv_gather of `rows` rows of one request.
Row time_gather(const Options& options, const std::string& format_name, int64_t rows);
// kv_insert of `rows` rows.
Row time_insert(const Options& options, const std::string& format_name, int64_t rows);

// A projection of the layer.
struct LinearCase {
  const char* name;
  int64_t groups, in, out;
  megamla_linear_weight kind;
  bool fp8_pair;  // x is the output pair
  bool f32_output;
};
// Those of a rank with so many of the model's 64 heads.
std::vector<LinearCase> linear_cases(int64_t heads);
Row time_linear(const Options& options, const LinearCase& linear_case, int64_t tokens);

struct OpTime {
  const char* name;
  double seconds;
};
// Each op of a ratio-1 layer's decode step by itself, at the step's shapes.
std::vector<OpTime> time_step_ops(const Options& options, int64_t heads, int64_t topk, int64_t tokens);

// Throw app::InputError with the library's message unless a call succeeded.
void check(megamla_status status);
void check(const api::Result& result);
// Runs an op on buffers of the arena.
template <class Params>
void run_op(app::Arena& arena, const Params& params, const megamla_exec& exec) {
  check(api::run(app::placed(params, arena), app::placed(exec, arena)));
}
template <class Params>
const char* implementation(const Params& params, const megamla_exec& exec) {
  const char* name = nullptr;
  check(api::implementation(params, static_cast<megamla_device>(exec.device), &name));
  return name;
}
// Gives `exec` a workspace of the size that an op asks for.
void take_workspace(app::Arena& arena, megamla_exec& exec,
                    megamla_status (*query)(const megamla_limits*, megamla_device, int64_t*), megamla_limits limits);
// Every slot of a cache gets the record of a row of values in [-1, 1).
void fill_cache(const megamla_kv_cache& cache, uint64_t seed);
// Random e4m3 codes of ordinary size (0.5 .. 1.9).
void fill_e4m3(void* memory, int64_t bytes, uint64_t seed);
void fill_bf16(void* memory, int64_t count, uint64_t seed);

constexpr int64_t kColdBytes = int64_t{240} << 20;
// Bytes of a pool whose slots are read at random: on the GPU far more than its L2 holds.
int64_t pool_bytes(const Options& options);

}  // namespace megamla::bench
