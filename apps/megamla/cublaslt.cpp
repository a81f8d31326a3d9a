#include "cublaslt.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <type_traits>

#include "command.hpp"
#include "gpu.hpp"

namespace megamla::app::cublaslt {
namespace {

// The few declarations of cublasLt.h that are used here, as CUDA 12 and 13 have them. Handles are opaque, 0 is success.
using Handle = void*;
constexpr int kTypeF32 = 0;
constexpr int kTypeBf16 = 14;
constexpr int kComputeF32 = 68;
constexpr int kTransposed = 1;
constexpr int kDescTransposeA = 3;
constexpr int kLayoutBatchCount = 5;
constexpr int kLayoutBatchStride = 6;
constexpr int kPreferenceWorkspace = 1;
struct Algorithm {
  uint64_t data[8];
};
struct Choice {
  Algorithm algorithm;
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};

constexpr int64_t kWorkspace = int64_t{32} << 20;

struct Library {
  Library();
  void* handle = nullptr;
  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*desc_create)(Handle*, int compute, int scale) = nullptr;
  int (*desc_set)(Handle, int attribute, const void*, size_t) = nullptr;
  int (*desc_destroy)(Handle) = nullptr;
  int (*layout_create)(Handle*, int type, uint64_t rows, uint64_t columns, int64_t pitch) = nullptr;
  int (*layout_set)(Handle, int attribute, const void*, size_t) = nullptr;
  int (*layout_destroy)(Handle) = nullptr;
  int (*preference_create)(Handle*) = nullptr;
  int (*preference_set)(Handle, int attribute, const void*, size_t) = nullptr;
  int (*preference_destroy)(Handle) = nullptr;
  int (*choose)(Handle, Handle desc, Handle a, Handle b, Handle c, Handle d, Handle preference, int wanted, Choice*,
                int* found) = nullptr;
  int (*multiply)(Handle, Handle desc, const void* alpha, const void* a, Handle, const void* b, Handle,
                  const void* beta, const void* c, Handle, void* d, Handle, const Algorithm*, void* workspace,
                  size_t workspace_bytes, CUstream_st*) = nullptr;
};

Library::Library() {
  const char* chosen = std::getenv("MEGAMLA_CUBLASLT");
  std::string tried;
  for (const char* file : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    if (chosen != nullptr) file = chosen;
    handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);  // stays open as long as the process
    if (handle != nullptr) break;
    tried = dlerror();
  }
  if (handle == nullptr) {
    throw InputError(
        fmt::format("--peer: expected cuBLASLt (MEGAMLA_CUBLASLT names its file, libcublasLt.so.13), got: {}", tried));
  }
  const auto find = [this](const char* name, auto& function) {
    void* symbol = dlsym(handle, name);
    if (symbol == nullptr)
      throw InputError(fmt::format("--peer: expected the function {} in cuBLASLt, got none", name));
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  find("cublasLtCreate", create);
  find("cublasLtDestroy", destroy);
  find("cublasLtMatmulDescCreate", desc_create);
  find("cublasLtMatmulDescSetAttribute", desc_set);
  find("cublasLtMatmulDescDestroy", desc_destroy);
  find("cublasLtMatrixLayoutCreate", layout_create);
  find("cublasLtMatrixLayoutSetAttribute", layout_set);
  find("cublasLtMatrixLayoutDestroy", layout_destroy);
  find("cublasLtMatmulPreferenceCreate", preference_create);
  find("cublasLtMatmulPreferenceSetAttribute", preference_set);
  find("cublasLtMatmulPreferenceDestroy", preference_destroy);
  find("cublasLtMatmulAlgoGetHeuristic", choose);
  find("cublasLtMatmul", multiply);
}

const Library& library() {
  static const Library opened;
  return opened;
}

void check(const char* call, int status) {
  if (status != 0) throw InputError(fmt::format("--peer: {}: status {}", call, status));
}

template <class T>
void set(int (*function)(Handle, int, const void*, size_t), Handle handle, int attribute, T value) {
  check("a cuBLASLt attribute", function(handle, attribute, &value, sizeof(value)));
}

}  // namespace

// In cuBLASLt's column-major words: y^T = w x^T, where w is a transposed [in, out], for each group.
struct Product::Plan {
  explicit Plan(const Shape& s) : lib(library()) {
    check("cublasLtCreate", lib.create(&handle));
    check("cublasLtMatmulDescCreate", lib.desc_create(&desc, kComputeF32, kTypeF32));
    set(lib.desc_set, desc, kDescTransposeA, int32_t{kTransposed});
    make_layout(&w, s.groups, s.in, s.out, s.in, s.in * s.out);
    make_layout(&x, s.groups, s.in, s.tokens, s.groups * s.in, s.in);
    make_layout(&y, s.groups, s.out, s.tokens, s.groups * s.out, s.out);
    check("cublasLtMatmulPreferenceCreate", lib.preference_create(&preference));
    set(lib.preference_set, preference, kPreferenceWorkspace, uint64_t{kWorkspace});
    int found = 0;
    check("cublasLtMatmulAlgoGetHeuristic", lib.choose(handle, desc, w, x, y, y, preference, 1, &choice, &found));
    if (found != 1) throw InputError("--peer: cuBLASLt knows no kernel for this shape");
    workspace = gpu::allocate(kWorkspace);
  }
  ~Plan() {
    gpu::release(workspace);
    for (Handle layout : {w, x, y}) (void)lib.layout_destroy(layout);
    (void)lib.preference_destroy(preference);
    (void)lib.desc_destroy(desc);
    (void)lib.destroy(handle);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  void make_layout(Handle* layout, int64_t groups, int64_t rows, int64_t columns, int64_t pitch, int64_t stride) const {
    check("cublasLtMatrixLayoutCreate",
          lib.layout_create(layout, kTypeBf16, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), pitch));
    set(lib.layout_set, *layout, kLayoutBatchCount, static_cast<int32_t>(groups));
    set(lib.layout_set, *layout, kLayoutBatchStride, stride);
  }

  const Library& lib;
  Handle handle = nullptr, desc = nullptr, w = nullptr, x = nullptr, y = nullptr, preference = nullptr;
  Choice choice{};
  void* workspace = nullptr;
};

Product::Product(const Shape& shape) : plan_(std::make_unique<Plan>(shape)) {}
Product::~Product() = default;

void Product::run(const void* x, const void* weight, void* y) const {
  const Plan& p = *plan_;
  const float alpha = 1;
  const float beta = 0;
  check("cublasLtMatmul",
        p.lib.multiply(p.handle, p.desc, &alpha, weight, p.w, x, p.x, &beta, y, p.y, y, p.y, &p.choice.algorithm,
                       p.workspace, static_cast<size_t>(kWorkspace), gpu::stream()));
}

}  // namespace megamla::app::cublaslt
