// Where the clocks of decode_attention go: decode_trace [T,T,..] [HEADS] [TOPK] [nvfp4|fp8_528|fp8_584] [MB of records]
//
// Runs the kernel with its trace on, on random slots of 3000 MB of records, and prints for each role how long it is
// from one event to the next (count, mean, least, most; clocks), and when events happen first after a block's start.
// The README of src/cuda/decode_attention says what is expected.
#define MEGAMLA_DECODE_TRACE
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.hpp"
#include "cuda/decode_attention/decode_attention.hpp"
#include "cuda/decode_attention/kernel.cu"
#include "format/chunked.hpp"
#include "format/page.hpp"

namespace megamla::cuda {
namespace {

constexpr std::array kNames{"start", "opened", "column",  "free",   "widened",       "offered",
                            "row",   "query",  "keys",    "scored", "probabilities", "published",
                            "taken", "summed", "factors", "stored", "met",           "merged"};
constexpr std::array kRoles{"values", "scores", "producers"};
constexpr int kWindow = 128;
constexpr int64_t kPage = 64;

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

void* device_bytes(int64_t bytes, const void* from = nullptr) {
  void* p = nullptr;
  must(cudaMalloc(&p, static_cast<size_t>(bytes)), "cudaMalloc");
  if (from != nullptr) {
    must(cudaMemcpy(p, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice), "cudaMemcpy");
  } else {
    must(cudaMemset(p, 0, static_cast<size_t>(bytes)), "cudaMemset");
  }
  return p;
}
template <class T>
megamla_tensor device_tensor(const std::vector<T>& v, megamla_dtype dtype, std::initializer_list<int64_t> shape) {
  megamla_tensor t = host_tensor(nullptr, dtype, shape);
  t.data = device_bytes(static_cast<int64_t>(v.size() * sizeof(T)), v.data());
  t.cuda_device = 0;
  return t;
}

// Codes of moderate size and scales near 1, at every place of a planar page.
__global__ void fill_records(uint8_t* bytes, int64_t size, int64_t stride, int64_t scale_begin, uint8_t scale) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size; i += int64_t{gridDim.x} * blockDim.x) {
    const auto hash = static_cast<uint32_t>(i * 2654435761u >> 7);
    bytes[i] = i % stride < scale_begin ? static_cast<uint8_t>(hash & 0xb7u) : scale;
  }
}

megamla_kv_cache make_pool(megamla_kv_format kind, int64_t bytes) {
  megamla_kv_cache c{};
  c.format = kind;
  c.page_size = kPage;
  c.page_stride = format::round_up(kPage * format::record_bytes(kind), format::page_alignment(kind));
  c.num_pages = bytes / c.page_stride;
  c.data = device_bytes(c.num_pages * c.page_stride);
  fill_records<<<1024, 256>>>(static_cast<uint8_t*>(c.data), c.num_pages * c.page_stride, c.page_stride,
                              kPage * format::data_bytes(kind), kind == MEGAMLA_KV_NVFP4_288 ? 0x38 : 120);
  must(cudaDeviceSynchronize(), "fill_records");
  return c;
}

__global__ void clear_logs() {
  for (auto& count : trace_logs[blockIdx.x].count) count = 0;
}

struct Sums {
  int64_t count = 0;
  double total = 0;
  uint32_t least = ~0u, most = 0;
  void add(uint32_t clocks) {
    ++count;
    total += clocks;
    least = std::min(least, clocks);
    most = std::max(most, clocks);
  }
  void print(const std::string& what) const {
    std::printf("  %-30s %7ld x %8.0f  (%u .. %u)\n", what.c_str(), static_cast<long>(count),
                total / static_cast<double>(count), least, most);
  }
};

void report() {
  static std::array<TraceLog, 256> logs;
  must(cudaMemcpyFromSymbol(logs.data(), trace_logs, sizeof(logs)), "trace");
  for (size_t role = 0; role < kTraceRoles; ++role) {
    std::map<std::pair<Trace, Trace>, Sums> steps;
    std::map<Trace, Sums> first;
    for (const TraceLog& log : logs) {
      const uint32_t n = std::min<uint32_t>(log.count[role], kTraceEvents);
      std::map<Trace, bool> seen;
      for (uint32_t i = 1; i < n; ++i) {
        const TraceNote& note = log.notes[role][i];
        steps[{log.notes[role][i - 1].event, note.event}].add(note.clock - log.notes[role][i - 1].clock);
        if (!std::exchange(seen[note.event], true)) first[note.event].add(note.clock - log.notes[role][0].clock);
      }
    }
    const auto name = [](Trace t) { return std::string(kNames[static_cast<size_t>(t)]); };
    std::printf(" %s, from start to first\n", kRoles[role]);
    for (const auto& [event, sums] : first) sums.print(name(event));
    std::printf(" %s, from event to event\n", kRoles[role]);
    for (const auto& [step, sums] : steps) sums.print(name(step.first) + " -> " + name(step.second));
  }
}

void trace_step(int64_t tokens, int64_t heads, int64_t topk, const megamla_kv_cache& window,
                const megamla_kv_cache& compressed) {
  std::mt19937_64 random(static_cast<uint64_t>(tokens));
  const auto slots = [&](const megamla_kv_cache& c, int64_t width) {
    std::vector<int32_t> v(static_cast<size_t>(tokens * width));
    for (auto& s : v) s = static_cast<int32_t>(random() % static_cast<uint64_t>(format::num_slots(c)));
    return device_tensor(v, MEGAMLA_I32, {tokens, width});
  };
  std::vector<uint16_t> q(static_cast<size_t>(tokens * heads * 512));
  for (auto& x : q) x = static_cast<uint16_t>(0x3c00u | (random() & 0x807fu));
  megamla_decode_attention_params p{};
  p.struct_size = sizeof(p);
  p.softmax_scale = 0.04419417382415922F;
  p.q = device_tensor(q, MEGAMLA_BF16, {tokens, heads, 512});
  p.q_layout = MEGAMLA_Q_CHUNKED;
  p.positions = device_tensor(std::vector<int64_t>(static_cast<size_t>(tokens), 77), MEGAMLA_I64, {tokens});
  p.cos_sin = device_tensor(std::vector<float>(64 * 128, 0.70710678F), MEGAMLA_F32, {128, 64});
  p.attn_sink = device_tensor(std::vector<float>(static_cast<size_t>(heads), 0.5F), MEGAMLA_F32, {heads});
  p.window = window, p.compressed = compressed;
  p.window_slots = slots(window, kWindow);
  p.compressed_slots = slots(compressed, topk);
  p.window_lens = device_tensor(std::vector<int32_t>(static_cast<size_t>(tokens), kWindow), MEGAMLA_I32, {tokens});
  p.compressed_lens = device_tensor(std::vector<int32_t>(static_cast<size_t>(tokens), static_cast<int32_t>(topk)),
                                    MEGAMLA_I32, {tokens});
  p.output = MEGAMLA_OUTPUT_FP8_PAIR;
  const int64_t a = format::round_up(tokens, 4);
  p.out = device_tensor(std::vector<uint8_t>(static_cast<size_t>(tokens * heads * 512)), MEGAMLA_F8_E4M3,
                        {tokens, heads / 8, 4096});
  p.out_scale = device_tensor(std::vector<int32_t>(static_cast<size_t>(heads / 8 * 32 * a)), MEGAMLA_I32,
                              {tokens, heads / 8, 32});
  p.out_scale.stride[0] = 1, p.out_scale.stride[1] = 32 * a, p.out_scale.stride[2] = a;

  void* l2 = device_bytes(int64_t{128} << 20);
  const megamla_exec exec = MEGAMLA_EXEC_INIT;
  // The last run counts; before each, other bytes take the L2.
  for (int i = 0; i < 3; ++i) {
    must(cudaMemset(l2, i, size_t{128} << 20), "cudaMemset");
    clear_logs<<<256, 1>>>();
    if (const Status s = decode_attention(p, exec); !s.ok()) {
      std::fprintf(stderr, "%s\n", s.message().c_str());
      std::exit(1);
    }
    must(cudaDeviceSynchronize(), "decode_attention");
  }
  std::printf("T=%ld H=%ld window %d of %s, %ld of %s\n", static_cast<long>(tokens), static_cast<long>(heads), kWindow,
              format::name(static_cast<megamla_kv_format>(window.format)), static_cast<long>(topk),
              format::name(static_cast<megamla_kv_format>(compressed.format)));
  report();
  for (const megamla_tensor* t : {&p.q, &p.positions, &p.cos_sin, &p.attn_sink, &p.window_slots, &p.compressed_slots,
                                  &p.window_lens, &p.compressed_lens, &p.out, &p.out_scale}) {
    must(cudaFree(t->data), "cudaFree");
  }
  must(cudaFree(l2), "cudaFree");
}

}  // namespace
}  // namespace megamla::cuda

int main(int argc, char** argv) {
  using namespace megamla;
  const std::string tokens = argc > 1 ? argv[1] : "1,8,64,128,133,1024";
  const int64_t heads = argc > 2 ? std::atoll(argv[2]) : 64;
  const int64_t topk = argc > 3 ? std::atoll(argv[3]) : 512;
  const std::string kind = argc > 4 ? argv[4] : "nvfp4";
  const megamla_kv_format second = kind == "nvfp4"     ? MEGAMLA_KV_NVFP4_288
                                   : kind == "fp8_584" ? MEGAMLA_KV_FP8_584
                                                       : MEGAMLA_KV_FP8_528;
  const megamla_kv_format first = second == MEGAMLA_KV_FP8_584 ? second : MEGAMLA_KV_FP8_528;
  const int64_t bytes = (argc > 5 ? std::atoll(argv[5]) : 3000) * 1000000;
  const megamla_kv_cache window = cuda::make_pool(first, bytes / 3);
  const megamla_kv_cache compressed = cuda::make_pool(second, bytes / 3 * 2);
  for (size_t at = 0; at < tokens.size();) {
    const size_t end = std::min(tokens.find(',', at), tokens.size());
    cuda::trace_step(std::atoll(tokens.substr(at, end - at).c_str()), heads, topk, window, compressed);
    at = end + 1;
  }
  return 0;
}
