#include "replay/replay.hpp"

#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>

#include "command.hpp"
#include "core/threads.hpp"
#include "io/trace.hpp"

namespace megamla::replay {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

int64_t peak_rss() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

// 0 where the system does not say.
int64_t resident_bytes() {
  int64_t all = 0;
  int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t total_tokens(const std::vector<Request>& requests) {
  int64_t tokens = 0;
  for (const Request& request : requests) tokens += request.total();
  return tokens;
}

std::vector<Request> read_requests(const ReplayOptions& options) {
  Result<std::vector<io::TraceRequest>> traced = io::read_trace(options.trace, options.requests);
  if (!traced.ok()) throw app::InputError(traced.status().message());
  if (traced.value().empty())
    throw app::InputError(fmt::format("{}: expected at least one request, found none", options.trace));
  std::vector<Request> requests;
  for (const io::TraceRequest& request : traced.value()) {
    requests.push_back(make_request(static_cast<int64_t>(requests.size()), request, options.max_tokens));
  }
  return requests;
}

// Limits that the requests fit: the longest sets the model length, and the pool holds as many of the largest as may run
// at a time.
void fit_limits(const std::vector<Request>& requests, ReplayOptions& options) {
  SchedulerLimits& limits = options.model.limits;
  limits.max_requests = std::min<int64_t>(options.max_requests, static_cast<int64_t>(requests.size()));
  std::vector<int64_t> lengths;
  lengths.reserve(requests.size());
  for (const Request& request : requests) lengths.push_back(request.total());
  std::sort(lengths.rbegin(), lengths.rend());
  options.model.max_model_len = lengths.front();
  limits.max_batched_tokens = std::min(limits.max_batched_tokens, std::max<int64_t>(total_tokens(requests), 1));
  for (int64_t i = 0; i < limits.max_requests; ++i) {
    const int64_t tokens = lengths[static_cast<size_t>(i)];
    limits.window_blocks += Scheduler::window_blocks_for(tokens, limits.window, limits.max_batched_tokens);
    limits.compressed_blocks += Scheduler::compressed_blocks_for(tokens);
  }
}

struct Counts {
  int64_t prefill = 0;
  int64_t decode = 0;
};

Counts count_tokens(const std::vector<Scheduled>& step) {
  Counts counts;
  for (const Scheduled& s : step) (s.request->prefilling() ? counts.prefill : counts.decode) += s.query;
  return counts;
}

using ShowProgress = std::function<void(const Progress&)>;

void note_rows(Model& model, const std::vector<Scheduled>& step, RowHashes& hashes) {
  int64_t tokens = 0;
  for (const Scheduled& scheduled : step) tokens += scheduled.query;
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const megamla_tensor& y = model.layers()[i].y;
    model.fetch(y.data, tokens * y.shape[1] * 2);
    hashes.note(static_cast<int64_t>(i), step, y);
  }
}

// The requests of `next`, one by one, each with all pages to itself.
void replay_alone(Model& model, const std::vector<Request>& requests, std::atomic<size_t>& next,
                  const SchedulerLimits& limits, RowHashes& hashes, const std::function<void(int64_t)>& done) {
  for (size_t i = next++; i < requests.size(); i = next++) {
    Scheduler scheduler({requests[i]}, limits);
    for (std::vector<Scheduled> step = scheduler.next(); !step.empty(); step = scheduler.next()) {
      model.run(model.batch(step));
      note_rows(model, step, hashes);
      scheduler.complete(step);
    }
    done(requests[i].total());
  }
}

// Models that may stand beside each other: a quarter of the machine's memory.
int64_t affordable(const Model& model) {
  const int64_t memory = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  return memory / 4 / (model.weight_bytes() + model.pool_bytes() + model.workspace_bytes());
}

// Every request alone. One request keeps few cores busy, so on the CPU as many go side by side as there are threads,
// each on one thread and a model of its own.
void replay_all_alone(Model& model, const ModelOptions& options, const std::vector<Request>& requests,
                      RowHashes& hashes, const ShowProgress& progress) {
  ModelOptions single = options;
  single.exec.num_threads = 1;
  int64_t workers = 1;
  if (options.exec.device == MEGAMLA_DEVICE_CPU) {
    workers = std::min(
        {int64_t{resolve_threads(options.exec.num_threads)}, static_cast<int64_t>(requests.size()), affordable(model)});
  }
  std::vector<std::unique_ptr<Model>> models;
  for (int64_t i = 0; workers > 1 && i < workers; ++i) models.push_back(std::make_unique<Model>(single));

  const Clock::time_point begin = Clock::now();
  Progress p{"alone", 0, static_cast<int64_t>(requests.size()), 0, total_tokens(requests), 0};
  std::mutex mutex;
  const auto done = [&](int64_t tokens) {
    const std::lock_guard<std::mutex> lock(mutex);
    ++p.done_requests;
    p.tokens += tokens;
    p.seconds = seconds_since(begin);
    progress(p);
  };
  std::atomic<size_t> next{0};
  if (models.empty()) {
    replay_alone(model, requests, next, options.limits, hashes, done);
    return;
  }
  std::exception_ptr failure;
  std::vector<std::thread> pool;
  pool.reserve(models.size());
  for (const std::unique_ptr<Model>& own : models) {
    pool.emplace_back([&, worker = own.get()] {
      try {
        omp_set_num_threads(1);  // of this thread's parallel regions
        replay_alone(*worker, requests, next, options.limits, hashes, done);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        failure = std::current_exception();
        next = requests.size();
      }
    });
  }
  for (std::thread& thread : pool) thread.join();
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace

ReplayResult run_replay(ReplayOptions options, const ShowProgress& progress) {
  if (!(options.verify_rate >= 0 && options.verify_rate <= 1))
    throw app::InputError(fmt::format("--verify: expected a share in [0, 1], got {}", options.verify_rate));
  const std::vector<Request> requests = read_requests(options);
  fit_limits(requests, options);
  options.model.batch_invariant = options.compare_alone;
  options.model.verified = options.verify_rate > 0;
  ReplayResult result;
  result.requests = static_cast<int64_t>(requests.size());
  const int64_t all_tokens = total_tokens(requests);

  Model model(options.model);
  Verifier verifier(model, options.verify_rate, options.model.seed);
  Scheduler scheduler(requests, options.model.limits);
  const auto num_layers = static_cast<int64_t>(model.layers().size());
  std::vector<RowHashes> hashes;  // of the replay, and of the requests alone
  if (options.compare_alone) hashes.assign(2, RowHashes(requests, num_layers));
  const Clock::time_point begin = Clock::now();
  for (std::vector<Scheduled> step = scheduler.next(); !step.empty(); step = scheduler.next()) {
    const Counts counts = count_tokens(step);
    const StepBatch batch = model.batch(step);
    const std::vector<int64_t> sampled = verifier.choose(step);
    const Clock::time_point forward = Clock::now();
    model.run(batch);
    const double step_seconds = seconds_since(forward);
    const Clock::time_point verify = Clock::now();
    verifier.keep(step, batch, sampled);
    if (options.compare_alone) note_rows(model, step, hashes[0]);
    result.verify_seconds += seconds_since(verify);
    ++result.steps;
    result.step_seconds.push_back(step_seconds);
    const double share = static_cast<double>(counts.prefill) / static_cast<double>(counts.prefill + counts.decode);
    result.prefill_seconds += step_seconds * share;
    result.decode_seconds += step_seconds * (1 - share);
    result.prefill_tokens += counts.prefill;
    result.decode_tokens += counts.decode;
    scheduler.complete(step);
    const int64_t done = result.prefill_tokens + result.decode_tokens + scheduler.reused_tokens();
    if (result.half_way_rss_bytes == 0 && 2 * done >= all_tokens) result.half_way_rss_bytes = resident_bytes();
    progress(
        {"replay", result.requests - scheduler.remaining(), result.requests, done, all_tokens, seconds_since(begin)});
  }
  const Clock::time_point verify = Clock::now();
  verifier.finish();
  result.verify_seconds += seconds_since(verify);
  result.wall_seconds = seconds_since(begin);
  result.last_rss_bytes = resident_bytes();
  result.peak_rss_bytes = peak_rss();
  scheduler.forget_prefixes();
  if (options.compare_alone) {
    const Clock::time_point alone = Clock::now();
    replay_all_alone(model, options.model, requests, hashes[1], progress);
    for (const Request& request : requests) hashes[0].compare(hashes[1], request.id, &result.alone);
    result.alone_seconds = seconds_since(alone);
  }
  std::sort(result.step_seconds.begin(), result.step_seconds.end());
  result.reused_tokens = scheduler.reused_tokens();
  result.weight_bytes = model.weight_bytes();
  result.pool_bytes = model.pool_bytes();
  result.workspace_bytes = model.workspace_bytes();
  result.graph_replays = model.graph_replays();
  result.kv_bytes_per_token = model.kv_bytes_per_token();
  result.window_blocks = options.model.limits.window_blocks;
  result.window_blocks_peak = scheduler.window_blocks().peak();
  result.window_blocks_left = scheduler.window_blocks().in_use();
  result.compressed_blocks = options.model.limits.compressed_blocks;
  result.compressed_blocks_peak = scheduler.compressed_blocks().peak();
  result.compressed_blocks_left = scheduler.compressed_blocks().in_use();
  result.worst = verifier.worst();
  return result;
}

}  // namespace megamla::replay
