// megamla replay: a request trace through the layers, with a continuous-batching scheduler over paged caches.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "command.hpp"
#include "ops/usage.hpp"
#include "options.hpp"
#include "replay/replay.hpp"
#include "text.hpp"

namespace megamla::app {
namespace {

struct Options {
  replay::ReplayOptions replay;
  std::vector<int64_t> layers{2, 20};
  DeviceOptions device;
  JsonOption json;
};

// A line on a terminal every half second; elsewhere one every ten seconds.
class ProgressLine {
 public:
  void show(const replay::Progress& p) {
    const bool last = p.done_requests == p.all_requests;
    const double pause = terminal_ ? 0.5 : 10;
    if (!last && p.seconds - shown_ < pause) return;
    shown_ = last ? 0 : p.seconds;  // another phase may follow
    fmt::print(stderr, "{}{}: {} of {} requests, {} of {} tokens, {:.0f} s{}", terminal_ ? "\r" : "", p.phase,
               p.done_requests, p.all_requests, p.tokens, p.all_tokens, p.seconds, terminal_ && !last ? "" : "\n");
    std::fflush(stderr);
  }

 private:
  bool terminal_ = isatty(STDERR_FILENO) == 1;
  double shown_ = 0;
};

double percentile(const std::vector<double>& ascending, double share) {
  if (ascending.empty()) return 0;
  const auto last = static_cast<double>(ascending.size() - 1);
  return ascending[static_cast<size_t>(std::lround(share * last))];
}

std::string mib(int64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 1048576); }

std::string rate(int64_t tokens, double seconds) {
  return tokens == 0 ? "-" : fmt::format("{:.1f} tokens/s ({} tokens)", static_cast<double>(tokens) / seconds, tokens);
}

int64_t planned_bytes(const replay::ReplayResult& r) { return r.weight_bytes + r.pool_bytes + r.workspace_bytes; }

void print_figures(const replay::ReplayResult& r) {
  Table table({"figure", "value"});
  const std::vector<double>& s = r.step_seconds;
  table.add({"requests, steps", fmt::format("{}, {}", r.requests, r.steps)});
  if (r.graph_replays > 0) table.add({"steps that were one graph", fmt::format("{}", r.graph_replays)});
  table.add({"prefill", rate(r.prefill_tokens, r.prefill_seconds)});
  table.add({"decode", rate(r.decode_tokens, r.decode_seconds)});
  table.add({"reused from shared prefixes", fmt::format("{} tokens", r.reused_tokens)});
  table.add({"step time p50 / p95 / p99", fmt::format("{:.1f} / {:.1f} / {:.1f} ms", percentile(s, 0.5) * 1e3,
                                                      percentile(s, 0.95) * 1e3, percentile(s, 0.99) * 1e3)});
  table.add({"wall time, of it verification", fmt::format("{:.1f} s, {:.1f} s", r.wall_seconds, r.verify_seconds)});
  table.add({"KV bytes per token (compressed caches)", fmt::format("{:.0f}", r.kv_bytes_per_token)});
  table.add({"window blocks: peak of pool, left",
             fmt::format("{} of {}, {}", r.window_blocks_peak, r.window_blocks, r.window_blocks_left)});
  table.add({"compressed blocks: peak of pool, left",
             fmt::format("{} of {}, {}", r.compressed_blocks_peak, r.compressed_blocks, r.compressed_blocks_left)});
  table.add({"weights + pool + workspace", fmt::format("{} + {} + {} = {}", mib(r.weight_bytes), mib(r.pool_bytes),
                                                       mib(r.workspace_bytes), mib(planned_bytes(r)))});
  table.add({"peak memory of the process",
             fmt::format("{} ({:+.1f}%)", mib(r.peak_rss_bytes),
                         100.0 * static_cast<double>(r.peak_rss_bytes) / static_cast<double>(planned_bytes(r)) - 100)});
  table.add({"resident memory half-way, at the end",
             fmt::format("{}, {}", mib(r.half_way_rss_bytes), mib(r.last_rss_bytes))});
  table.print();
}

void print_usage() {
  Table table({"op", "implementation", "calls"});
  for (const ops::Usage& use : ops::usage()) table.add({use.op, use.implementation, fmt::format("{}", use.calls)});
  table.print();
}

void print_errors(const replay::WorstErrors& w) {
  if (w.rows == 0) {
    fmt::print("verification: no row sampled (--verify RATE)\n");
    return;
  }
  Table table({"sampled rows against the reference", "worst", "bound"});
  table.add({"y, L2 of a row", fmt::format("{:.2e}", w.y_l2), "2.00e-02"});
  table.add({"y, element", fmt::format("{:.2f} of its bound", w.y_element), "|ref|/256 + 0.1 rms"});
  table.add({"window record, value", fmt::format("{:.2f} of its bound", w.record), "one code step"});
  table.print();
  fmt::print("{} rows sampled, longest context {}: {}\n", w.rows, w.longest_context,
             w.holds ? "all within the bounds" : w.first_failure);
}

void print_alone(const replay::ReplayResult& r) {
  const replay::Comparison& c = r.alone;
  fmt::print("each request alone, {:.1f} s: {} of {} rows differ{}\n", r.alone_seconds, c.differing, c.rows,
             c.differing == 0 ? "" : fmt::format("; the first: {}", c.first_difference));
}

nlohmann::json record(const replay::ReplayResult& r) {
  nlohmann::json ops = nlohmann::json::array();
  for (const ops::Usage& use : ops::usage())
    ops.push_back({{"op", use.op}, {"implementation", use.implementation}, {"calls", use.calls}});
  return {
      {"requests", r.requests},
      {"steps", r.steps},
      {"graph_replays", r.graph_replays},
      {"prefill_tokens", r.prefill_tokens},
      {"decode_tokens", r.decode_tokens},
      {"reused_tokens", r.reused_tokens},
      {"prefill_seconds", r.prefill_seconds},
      {"decode_seconds", r.decode_seconds},
      {"verify_seconds", r.verify_seconds},
      {"wall_seconds", r.wall_seconds},
      {"step_ms",
       {{"p50", percentile(r.step_seconds, 0.5) * 1e3},
        {"p95", percentile(r.step_seconds, 0.95) * 1e3},
        {"p99", percentile(r.step_seconds, 0.99) * 1e3}}},
      {"kv_bytes_per_token", r.kv_bytes_per_token},
      {"window_blocks", {{"pool", r.window_blocks}, {"peak", r.window_blocks_peak}, {"left", r.window_blocks_left}}},
      {"compressed_blocks",
       {{"pool", r.compressed_blocks}, {"peak", r.compressed_blocks_peak}, {"left", r.compressed_blocks_left}}},
      {"weight_bytes", r.weight_bytes},
      {"pool_bytes", r.pool_bytes},
      {"workspace_bytes", r.workspace_bytes},
      {"peak_rss_bytes", r.peak_rss_bytes},
      {"half_way_rss_bytes", r.half_way_rss_bytes},
      {"last_rss_bytes", r.last_rss_bytes},
      {"alone",
       {{"rows", r.alone.rows},
        {"differing", r.alone.differing},
        {"first_difference", r.alone.first_difference},
        {"seconds", r.alone_seconds}}},
      {"verification",
       {{"rows", r.worst.rows},
        {"y_l2", r.worst.y_l2},
        {"y_element_share", r.worst.y_element},
        {"record_share", r.worst.record},
        {"longest_context", r.worst.longest_context},
        {"holds", r.worst.holds},
        {"first_failure", r.worst.first_failure}}},
      {"ops", ops}};
}

int run(Options& o) {
  o.replay.model.layers = o.layers;
  o.replay.model.exec = o.device.exec();
  if (o.replay.model.exec.device == MEGAMLA_DEVICE_AUTO) o.replay.model.exec.device = MEGAMLA_DEVICE_CPU;
  ProgressLine progress;
  const replay::ReplayResult result =
      replay::run_replay(o.replay, [&](const replay::Progress& p) { progress.show(p); });
  print_figures(result);
  fmt::print("\n");
  print_usage();
  fmt::print("\n");
  print_errors(result.worst);
  if (o.replay.compare_alone) print_alone(result);
  o.json.write("replay", record(result));
  const bool pages_returned = result.window_blocks_left == 0 && result.compressed_blocks_left == 0;
  if (!pages_returned) fmt::print("blocks still in use after the last request: expected 0\n");
  return result.worst.holds && pages_returned && result.alone.differing == 0 ? kOk : kFailed;
}

}  // namespace

Command replay_command() {
  Command command;
  command.summary = "Run a trace of requests through attention layers";
  command.examples =
      "A continuous-batching scheduler admits the requests in the order of the trace (its timestamps are not waited "
      "for), decodes\n"
      "first, prompts in chunks, prefixes shared by their hash_ids. Without --weights the layers have seeded weights.\n"
      "\n"
      "Examples:\n"
      "  megamla replay examples/demo_trace.jsonl --layers 2,20 --verify 0.02\n"
      "  megamla replay trace.jsonl --requests 10 --max-tokens 2048 --json replay.json\n"
      "  megamla replay trace.jsonl --requests 100 --max-tokens 512 --compare-alone\n"
      "  megamla make-layer --layers 2 --out /tmp/ckpt && megamla replay trace.jsonl --layers 2 --weights /tmp/ckpt";
  command.add = [](CLI::App& app) -> std::function<int()> {
    auto o = std::make_shared<Options>();
    app.add_option("trace", o->replay.trace, "JSONL file: timestamp, input_length, output_length, hash_ids")
        ->required();
    app.add_option("--requests", o->replay.requests, "Read only the first N requests")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
    app.add_option("--layers", o->layers, "Layer ids, ascending; a kv consumer needs its source in the list")
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("--weights", o->replay.model.weights, "Checkpoint folder (default: seeded weights)");
    app.add_option("--seed", o->replay.model.seed, "Seed of the weights and of the sampling")->capture_default_str();
    app.add_option("--kv-dtype", o->replay.model.kv_dtype, "auto, fp8, fp8_528, nvfp4_288 or fp8_584")
        ->capture_default_str();
    app.add_option("--max-tokens", o->replay.max_tokens,
                   "Cap on prompt and output of a request together, shortened in proportion")
        ->check(CLI::Range(int64_t{2}, int64_t{1} << 30));
    app.add_option("--max-batched-tokens", o->replay.model.limits.max_batched_tokens, "Tokens of a step")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
        ->capture_default_str();
    app.add_option("--max-requests", o->replay.max_requests, "Requests running at a time")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
        ->capture_default_str();
    app.add_option("--verify", o->replay.verify_rate,
                   "Share of rows checked against the reference, beside each request's and each chunk's last row")
        ->check(number_in(0, 1))
        ->capture_default_str();
    app.add_flag("--compare-alone", o->replay.compare_alone,
                 "Replay each request by itself afterwards and compare every row bit for bit (batch-invariant layers). "
                 "On the CPU "
                 "requests go side by side, one thread each");
    o->device.add(app);
    o->json.add(app);
    return [o] { return run(*o); };
  };
  return command;
}

}  // namespace megamla::app
