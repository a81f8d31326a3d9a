#include "cpu/gemm.hpp"

#include <omp.h>

#include <map>
#include <oneapi/dnnl/dnnl.hpp>

#include "cpu/simd/level.hpp"

namespace megamla::cpu {
namespace {

using dnnl::memory;

// oneDNN threads inside a primitive unless told otherwise. The setting belongs to the calling task, so it is put back.
class SingleThreaded {
 public:
  SingleThreaded() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~SingleThreaded() { omp_set_num_threads(before_); }
  SingleThreaded(const SingleThreaded&) = delete;
  SingleThreaded& operator=(const SingleThreaded&) = delete;

 private:
  int before_;
};

// Once, before oneDNN first looks at the processor; too late where the process has used oneDNN itself.
void limit_isa() {
#if defined(__x86_64__)
  static const bool done = [] {
    if (simd_limit() == SimdLevel::kAvx2) dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2);
    if (simd_limit() == SimdLevel::kPlain) dnnl::set_max_cpu_isa(dnnl::cpu_isa::sse41);
    return true;
  }();
  static_cast<void>(done);
#endif
}

const dnnl::engine& engine() {
  static const dnnl::engine instance = [] {
    limit_isa();
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return instance;
}

struct Primitive {
  memory::desc a, b, c;
  dnnl::matmul matmul;
};

Primitive make_primitive(const Gemm& g) {
  const auto type = g.type == GemmType::kBf16 ? memory::data_type::bf16 : memory::data_type::f32;
  Primitive p;
  p.a = memory::desc({g.m, g.k}, type, memory::dims{g.lda, 1});
  p.b = memory::desc({g.k, g.n}, type, g.b_transposed ? memory::dims{1, g.ldb} : memory::dims{g.ldb, 1});
  p.c = memory::desc({g.m, g.n}, memory::data_type::f32, memory::dims{g.ldc, 1});
#if DNNL_VERSION_MAJOR >= 3
  p.matmul = dnnl::matmul(dnnl::matmul::primitive_desc(engine(), p.a, p.b, p.c));
#else
  p.matmul = dnnl::matmul(dnnl::matmul::primitive_desc(dnnl::matmul::desc(p.a, p.b, p.c), engine()));
#endif
  return p;
}

// Per thread, since a primitive with its own scratchpad runs on one thread at a time.
std::map<Gemm, Primitive>& primitives() {
  thread_local std::map<Gemm, Primitive> cache;
  return cache;
}

const Primitive& primitive_for(const Gemm& g) {
  constexpr size_t kMaxCached = 256;  // odd shapes would otherwise pile up code for the life of the thread
  std::map<Gemm, Primitive>& cache = primitives();
  const auto found = cache.find(g);
  if (found != cache.end()) return found->second;
  if (cache.size() >= kMaxCached) cache.clear();
  return cache.emplace(g, make_primitive(g)).first->second;
}

}  // namespace

GemmType native_gemm_type() {
  static const GemmType type = [] {
    limit_isa();
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    constexpr auto kBf16 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
    return (isa & kBf16) == kBf16 ? GemmType::kBf16 : GemmType::kF32;
  }();
  return type;
}

const char* gemm_name(GemmType type) { return type == GemmType::kBf16 ? "onednn_bf16" : "onednn_f32"; }

Status run_gemm(const Gemm& shape, const void* a, const void* b, float* c) {
  if (shape.m == 0 || shape.n == 0) return {};
  try {
    const SingleThreaded scope;
    const Primitive& p = primitive_for(shape);
    thread_local dnnl::stream stream(engine());
    p.matmul.execute(stream, {{DNNL_ARG_SRC, memory(p.a, engine(), const_cast<void*>(a))},
                              {DNNL_ARG_WEIGHTS, memory(p.b, engine(), const_cast<void*>(b))},
                              {DNNL_ARG_DST, memory(p.c, engine(), c)}});
    stream.wait();
    return {};
  } catch (const dnnl::error& error) {
    return runtime_error("oneDNN matmul {} x {} x {}: {}", shape.m, shape.n, shape.k, error.what());
  }
}

int64_t cached_gemms() { return static_cast<int64_t>(primitives().size()); }

}  // namespace megamla::cpu
