// megamla bench: how fast each op runs here, and which fraction of its bound that is.
#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>

#include "bench/bench.hpp"
#include "command.hpp"
#include "gpu.hpp"
#include "options.hpp"
#include "text.hpp"

namespace megamla::app {
namespace {

constexpr std::array<const char*, 9> kOps = {"decode_attention", "prefill_attention", "block_scaled_linear",
                                             "kv_insert",        "kv_gather",         "topk_to_slots",
                                             "combine_topk_swa", "swa_metadata",      "layer_step"};

constexpr int64_t kMostTokens = int64_t{1} << 22;

// An op to time, with options of its own.
struct OpRun {
  std::string op;
  bench::Options options;
};

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  utsname name{};
  return uname(&name) == 0 ? name.machine : "unknown";
}

std::string cell_text(const nlohmann::json& cell) {
  std::string text;
  for (const auto& [key, value] : cell.items()) {
    if (key == "op" || value.is_object()) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", key,
                        value.is_string() ? value.get<std::string>() : value.dump());
  }
  return text;
}

// "kv_insert:1024,65536" -> the op, and the tokens of its calls in place of --tokens.
std::string take_tokens(const std::string& argument, std::vector<int64_t>* tokens) {
  const size_t colon = argument.find(':');
  if (colon == std::string::npos) return argument;
  tokens->clear();
  for (const std::string& text : CLI::detail::split(argument.substr(colon + 1), ',')) {
    int64_t count = 0;
    if (!CLI::detail::lexical_cast(text, count) || count < 1 || count > kMostTokens) {
      throw InputError(fmt::format("OP: expected tokens from 1 to {} behind the ':', got '{}'", kMostTokens, argument));
    }
    tokens->push_back(count);
  }
  return argument.substr(0, colon);
}

void run_op(const std::string& op, const bench::Options& o, const bench::Emit& emit) {
  if (op == "decode_attention") return bench::bench_decode_attention(o, emit);
  if (op == "prefill_attention") return bench::bench_prefill_attention(o, emit);
  if (op == "block_scaled_linear") return bench::bench_block_scaled_linear(o, emit);
  if (op == "kv_insert") return bench::bench_kv_insert(o, emit);
  if (op == "kv_gather") return bench::bench_kv_gather(o, emit);
  if (op == "layer_step") return bench::bench_layer_step(o, emit);
  bench::bench_index_ops(o, op, emit);
}

// What the figures were measured on; for a GPU, its clock before the first row and while rows ran.
nlohmann::json machine_record(megamla_device device, int idle_mhz) {
  if (device != MEGAMLA_DEVICE_CUDA) return {{"card", cpu_name()}};
  const gpu::Card card = gpu::card();
  return {{"card", card.name},
          {"driver", card.driver},
          {"cuda", card.cuda},
          {"sm_clock_mhz", {{"idle", idle_mhz}, {"load", gpu::sm_clock_mhz_under_load()}}}};
}

nlohmann::json row_record(const bench::Row& row) {
  nlohmann::json r = row.cell;
  const double median = row.median();
  r["implementation"] = row.implementation;
  r["us_median"] = median * 1e6;
  r["us_min"] = row.seconds.front() * 1e6;
  r["us_max"] = row.seconds.back() * 1e6;
  r["tflops"] = row.flops / median / 1e12;
  r["gbps"] = row.bytes / median / 1e9;
  r["bound_us"] = row.bound_seconds * 1e6;
  if (row.copy_bytes > 0) r["copy_gbps"] = row.copy_bytes / 1e9;
  if (row.gemm_flops > 0) r["gemm_gflops"] = row.gemm_flops / 1e9;
  return r;
}

int run(bench::Options& o, const DeviceOptions& device, const std::string& commit, const JsonOption& json) {
  o.exec = device.exec();
  if (o.exec.device == MEGAMLA_DEVICE_AUTO) o.exec.device = MEGAMLA_DEVICE_CPU;
  std::vector<OpRun> runs;
  for (const std::string& argument : o.ops) {
    OpRun one{"", o};
    one.op = take_tokens(argument, &one.options.tokens);
    if (std::find(kOps.begin(), kOps.end(), one.op) == kOps.end()) {
      throw InputError(fmt::format("OP: expected one of {}, got '{}'", fmt::join(kOps, ", "), one.op));
    }
    runs.push_back(std::move(one));
  }
  const int idle_mhz = o.device() == MEGAMLA_DEVICE_CUDA ? gpu::sm_clock_mhz() : 0;
  const bench::Ceilings ceilings = bench::measure_ceilings(o.exec);
  fmt::print("ceilings of this run: {} {:.0f} GFLOP/s, copy {:.1f} GB/s\n", ceilings.gemm, ceilings.gemm_flops / 1e9,
             ceilings.copy_bytes / 1e9);
  nlohmann::json results = nlohmann::json::array();
  Table table({"op", "case", "implementation", "median us", "GFLOP/s", "GB/s", "bound us", "of bound"});
  for (const auto& [op, options] : runs) {
    run_op(op, options, [&](bench::Row row) {
      const double copy_bytes = row.copy_bytes > 0 ? row.copy_bytes : ceilings.copy_bytes;
      const double gemm_flops = row.gemm_flops > 0 ? row.gemm_flops : ceilings.gemm_flops;
      row.bound_seconds = std::max(row.flops / gemm_flops, row.bytes / copy_bytes);
      const double median = row.median();
      const auto name = row.cell["op"].get<std::string>();
      table.add({name, cell_text(row.cell), row.implementation, fmt::format("{:.1f}", median * 1e6),
                 fmt::format("{:.0f}", row.flops / median / 1e9), fmt::format("{:.2f}", row.bytes / median / 1e9),
                 fmt::format("{:.1f}", row.bound_seconds * 1e6),
                 fmt::format("{:.0f}%", 100 * row.bound_seconds / median)});
      results.push_back(row_record(row));
      fmt::print(stderr, "bench: {} {} done\n", name, cell_text(row.cell));
    });
  }
  table.print();
  nlohmann::json record = machine_record(o.device(), idle_mhz);
  record["device"] = device_word(o.device());
  record["commit"] = commit;
  record["ceilings"] = {
      {"gemm", ceilings.gemm}, {"gemm_gflops", ceilings.gemm_flops / 1e9}, {"copy_gbps", ceilings.copy_bytes / 1e9}};
  record["results"] = std::move(results);
  json.write("bench", std::move(record));
  return kOk;
}

}  // namespace

Command bench_command() {
  Command command;
  command.summary = "Time ops and set them beside their bound";
  command.examples = fmt::format(
      "OP is one of {}.\n"
      "Each row is the median of --repeats timings on inputs that no cache holds: of single calls on the CPU, of\n"
      "replays of a graph of calls on a GPU. The bound is the larger of arithmetic over the GEMM rate (measured; on a\n"
      "GPU the tensor cores' at the highest clock) and bytes over the copy bandwidth, measured in the same run, "
      "beside\n"
      "the calls where a row has a gemm_gflops or a copy_gbps of its own. layer_step: ops_us is the sum of the step's\n"
      "ops, each timed by itself.\n"
      "\n"
      "Examples:\n"
      "  megamla bench decode_attention --heads 64,8 --tokens 1,32,128\n"
      "  megamla bench decode_attention --lengths random --batch-invariant\n"
      "  megamla bench block_scaled_linear --case wq_b --tokens 1,256\n"
      "  megamla bench decode_attention:32 prefill_attention:256 kv_insert:65536 --heads 64,8 --json cpu.json\n"
      "  megamla bench decode_attention --device cuda --commit $(git rev-parse HEAD) --json decode.json",
      fmt::join(kOps, ", "));
  command.add = [](CLI::App& app) -> std::function<int()> {
    auto o = std::make_shared<bench::Options>();
    auto device = std::make_shared<DeviceOptions>();
    auto json = std::make_shared<JsonOption>();
    auto commit = std::make_shared<std::string>();
    app.add_option("op", o->ops, "Ops to time; OP:TOKENS,... for other tokens than --tokens")->required();
    app.add_option("--tokens", o->tokens, "Tokens (rows) per call")
        ->delimiter(',')
        ->check(CLI::Range(int64_t{1}, kMostTokens))
        ->capture_default_str();
    app.add_option("--heads", o->heads, "Heads of attention ops")->delimiter(',')->capture_default_str();
    app.add_option("--topk", o->topk, "Compressed keys per token of attention ops")
        ->delimiter(',')
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
        ->capture_default_str();
    app.add_option("--window", o->window, "Window keys per token")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
        ->capture_default_str();
    app.add_option("--window-format", o->window_format, "Of attention ops: fp8_528 or fp8_584")->capture_default_str();
    app.add_option("--topk-format", o->topk_format, "Of attention ops: fp8_528, nvfp4_288 or fp8_584")
        ->capture_default_str();
    app.add_option("--output", o->output, "fp8 (the output pair) or bf16")
        ->check(CLI::IsMember({"fp8", "bf16"}))
        ->capture_default_str();
    app.add_option(
           "--lengths", o->lengths,
           "Lengths of decode_attention's lists: none given, all full, or compressed ones random from 1 to --topk")
        ->check(CLI::IsMember({"none", "full", "random"}))
        ->capture_default_str();
    app.add_flag("--batch-invariant", o->batch_invariant, "decode_attention in batch-invariant mode");
    app.add_option("--case", o->cases, "Shapes of block_scaled_linear: wo_a, wo_b, wq_b, wq_a_wkv, compressor")
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("--path", o->paths,
                   "Of prefill_attention: gathered, paged (decode_attention on a chunk of a prompt)")
        ->delimiter(',')
        ->check(CLI::IsMember({"gathered", "paged"}))
        ->capture_default_str();
    app.add_flag("--peer", o->peer,
                 "Beside block_scaled_linear: cuBLASLt's bf16 product of the same shape, if the machine has it");
    app.add_option("--repeats", o->repeats, "Timings per row")->check(CLI::Range(5, 1000))->capture_default_str();
    app.add_option("--commit", *commit, "Commit that the record names");
    device->add(app);
    json->add(app);
    return [=] { return run(*o, *device, *commit, *json); };
  };
  return command;
}

}  // namespace megamla::app
