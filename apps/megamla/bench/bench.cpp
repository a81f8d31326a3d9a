#include "bench/bench.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "command.hpp"
#include "core/threads.hpp"
#include "cpu/gemm.hpp"
#include "format/bf16.hpp"
#include "format/page.hpp"
#include "gpu.hpp"

namespace megamla::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& call) {
  const Clock::time_point begin = Clock::now();
  call();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double best_of(int repeats, const std::function<void()>& call) {
  double best = 1e30;
  for (int i = 0; i <= repeats; ++i) {
    const double seconds = seconds_of(call);
    if (i > 0) best = std::min(best, seconds);
  }
  return best;
}

// By memcpy, a range a thread.
void copy(const char* from, int64_t bytes, int threads, char* to) {
  parallel_ranges(bytes, threads, [&](int64_t begin, int64_t end, int) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

// oneDNN's product of the type that this machine multiplies best: 2048^3, all threads.
class CeilingGemm {
 public:
  static constexpr int64_t kSize = 2048;
  static constexpr double kFlops = 2.0 * kSize * kSize * kSize;

  explicit CeilingGemm(const megamla_exec& exec) : threads_(resolve_threads(exec.num_threads)) {
    if (type_ == cpu::GemmType::kBf16) {
      fill_bf16(a_, kSize * kSize, 1);
      fill_bf16(b_, kSize * kSize, 2);
    } else {
      std::fill_n(reinterpret_cast<float*>(a_), kSize * kSize, 0.5F);
      std::fill_n(reinterpret_cast<float*>(b_), kSize * kSize, 0.25F);
    }
  }

  // Each thread multiplies its rows of A with all of B: how oneDNN itself divides such a product.
  void run() {
    parallel_ranges(kSize, threads_, [&](int64_t begin, int64_t end, int) {
      const cpu::Gemm gemm{type_, end - begin, kSize, kSize, kSize, kSize, kSize, true};
      const Status status = cpu::run_gemm(gemm, a_ + begin * kSize * element_, b_, out_ + begin * kSize);
      static_cast<void>(status);
    });
  }

 private:
  int threads_;
  cpu::GemmType type_ = cpu::native_gemm_type();
  int64_t element_ = cpu::gemm_element_size(type_);
  Inputs arena_{MEGAMLA_DEVICE_CPU};
  char* a_ = static_cast<char*>(arena_.bytes(kSize * kSize * element_));
  char* b_ = static_cast<char*>(arena_.bytes(kSize * kSize * element_));
  float* out_ = static_cast<float*>(arena_.bytes(kSize * kSize * 4));
};

// Of each call, and of what is timed after it: call(i % sets), then beside(i). The first is warm-up.
struct Alternated {
  std::vector<double> calls;  // ascending, both
  std::vector<double> beside;
};
Alternated time_alternately(const Options& options, int sets, const std::function<void(int)>& call,
                            const std::function<void(int)>& beside) {
  Alternated times;
  for (int i = 0; i <= options.repeats; ++i) {
    const double one = seconds_of([&] { call(i % sets); });
    const double other = seconds_of([&] { beside(i); });
    if (i == 0) continue;
    times.calls.push_back(one);
    times.beside.push_back(other);
  }
  std::sort(times.calls.begin(), times.calls.end());
  std::sort(times.beside.begin(), times.beside.end());
  return times;
}

uint64_t next_random(uint64_t& state) {
  state += 0x9E3779B97F4A7C15U;
  uint64_t z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

}  // namespace

Ceilings measure_ceilings(const megamla_exec& exec) {
  Ceilings c;
  if (exec.device == MEGAMLA_DEVICE_CUDA) {
    constexpr double kFlopsPerClock = 4096;  // of one SM's tensor cores, bf16, dense
    const app::gpu::Card card = app::gpu::card();
    c.gemm = "tensor cores (bf16) at the highest clock";
    c.gemm_flops = kFlopsPerClock * card.multiprocessors * card.max_clock_hz;
    c.copy_bytes = app::gpu::copy_bandwidth();
    return c;
  }
  CeilingGemm gemm(exec);
  c.gemm = cpu::gemm_name(cpu::native_gemm_type());
  c.gemm_flops = CeilingGemm::kFlops / best_of(5, [&] { gemm.run(); });

  const int threads = resolve_threads(exec.num_threads);
  Inputs arena(MEGAMLA_DEVICE_CPU);
  constexpr int64_t kCopy = int64_t{128} << 20;
  char* from = static_cast<char*>(arena.bytes(kCopy, 1));
  char* to = static_cast<char*>(arena.bytes(kCopy, 2));
  const double copy_seconds = best_of(5, [&] { copy(from, kCopy, threads, to); });
  c.copy_bytes = 2.0 * kCopy / copy_seconds;
  return c;
}

int input_sets(const Options& options, double bytes) {
  if (options.device() != MEGAMLA_DEVICE_CUDA) return options.repeats + 1;
  constexpr double kMaxSets = 32768;  // nodes of a graph
  return static_cast<int>(std::clamp(std::ceil(static_cast<double>(kColdBytes) / bytes), 1.0, kMaxSets));
}

int64_t pool_bytes(const Options& options) {
  return options.device() == MEGAMLA_DEVICE_CUDA ? int64_t{2} << 30 : kColdBytes;
}

std::vector<double> time_calls(const Options& options, int sets, const std::function<void(int)>& call) {
  if (options.device() == MEGAMLA_DEVICE_CUDA) {
    const auto all = [&] {
      for (int i = 0; i < sets; ++i) call(i);
    };
    all();
    std::vector<double> seconds = app::gpu::time_graph(options.repeats, all);
    for (double& s : seconds) s /= sets;
    return seconds;
  }
  std::vector<double> seconds;
  for (int i = 0; i <= options.repeats; ++i) {  // the first is warm-up
    const double one = seconds_of([&] { call(i % sets); });
    if (i > 0) seconds.push_back(one);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

void time_beside_copies(const Options& options, int sets, const std::function<void(int)>& call, Row& row) {
  if (options.device() == MEGAMLA_DEVICE_CUDA) {
    row.seconds = time_calls(options, sets, call);
    row.copy_bytes = app::gpu::copy_bandwidth();
    return;
  }
  const int threads = resolve_threads(options.exec.num_threads);
  const auto bytes = static_cast<int64_t>(row.bytes / 2);
  const int64_t places = (kColdBytes + bytes - 1) / bytes;
  Inputs arena(MEGAMLA_DEVICE_CPU);
  const char* from = static_cast<char*>(arena.bytes(places * bytes, 1));
  char* to = static_cast<char*>(arena.bytes(places * bytes, 2));
  Alternated times = time_alternately(options, sets, call, [&](int i) {
    const int64_t place = i % places * bytes;
    copy(from + place, bytes, threads, to + place);
  });
  row.seconds = std::move(times.calls);
  row.copy_bytes = row.bytes / median(times.beside);
}

void time_beside_gemms(const Options& options, int sets, const std::function<void(int)>& call, Row& row) {
  if (options.device() == MEGAMLA_DEVICE_CUDA) {
    row.seconds = time_calls(options, sets, call);
    return;
  }
  CeilingGemm gemm(options.exec);
  Alternated times = time_alternately(options, sets, call, [&](int) { gemm.run(); });
  row.seconds = std::move(times.calls);
  row.gemm_flops = CeilingGemm::kFlops / median(times.beside);
}

void check(megamla_status status) {
  if (status != MEGAMLA_OK) throw app::InputError(megamla_last_error());
}
void check(const api::Result& result) {
  if (!result) throw app::InputError(result.message());
}

void take_workspace(app::Arena& arena, megamla_exec& exec,
                    megamla_status (*query)(const megamla_limits*, megamla_device, int64_t*), megamla_limits limits) {
  limits.struct_size = sizeof(limits);
  limits.num_threads = exec.num_threads;
  int64_t bytes = 0;
  check(query(&limits, static_cast<megamla_device>(exec.device), &bytes));
  exec.workspace = arena.bytes(bytes);
  exec.workspace_bytes = bytes;
}

void fill_cache(const megamla_kv_cache& cache, uint64_t seed) {
  constexpr int64_t kRows = 61;  // no divisor of a page: neighbouring pages differ
  const auto kind = static_cast<megamla_kv_format>(cache.format);
  const auto data_bytes = static_cast<size_t>(format::data_bytes(kind));
  const auto scale_bytes = static_cast<size_t>(format::scale_bytes(kind));
  std::vector<format::Bf16> values(static_cast<size_t>(kRows * format::kHeadDim));
  fill_bf16(values.data(), kRows * format::kHeadDim, seed);
  std::vector<uint8_t> records(static_cast<size_t>(kRows) * (data_bytes + scale_bytes));
  for (int64_t r = 0; r < kRows; ++r) {
    float row[format::kHeadDim];
    for (int64_t d = 0; d < format::kHeadDim; ++d)
      row[d] = format::to_float(values[static_cast<size_t>(r * format::kHeadDim + d)]);
    uint8_t* record = records.data() + static_cast<size_t>(r) * (data_bytes + scale_bytes);
    format::encode_row(kind, row, record, record + data_bytes);
  }
  for (int64_t slot = 0; slot < format::num_slots(cache); ++slot) {
    const uint8_t* record = records.data() + static_cast<size_t>(slot % kRows) * (data_bytes + scale_bytes);
    const auto to = format::slot_bytes(cache, slot);
    std::memcpy(to.data, record, data_bytes);
    std::memcpy(to.scale, record + data_bytes, scale_bytes);
  }
}

void fill_e4m3(void* memory, int64_t bytes, uint64_t seed) {
  auto* out = static_cast<uint8_t*>(memory);
  uint64_t state = seed;
  for (int64_t i = 0; i < bytes; i += 8) {
    uint64_t word = next_random(state);
    for (int64_t j = i; j < std::min(bytes, i + 8); ++j, word >>= 8)
      out[j] = static_cast<uint8_t>((word & 0x8fU) | 0x30U);
  }
}

void fill_bf16(void* memory, int64_t count, uint64_t seed) {
  auto* out = static_cast<format::Bf16*>(memory);
  uint64_t state = seed;
  for (int64_t i = 0; i < count; i += 4) {
    uint64_t word = next_random(state);
    for (int64_t j = i; j < std::min(count, i + 4); ++j, word >>= 16) {
      out[j] = format::to_bf16((static_cast<float>(word & 0xffffU) - 32767.5F) / 32768.0F);
    }
  }
}

}  // namespace megamla::bench
