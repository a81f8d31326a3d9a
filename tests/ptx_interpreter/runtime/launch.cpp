// Kernels: where nvcc's host code registers them, and how they are launched.
#include <fmt/format.h>

#include <cstring>
#include <map>
#include <mutex>

#include "../machine.hpp"
#include "runtime.hpp"

namespace ptx::runtime {
namespace {

// One translation unit's device code.
struct Binary {
  const void* fatbin = nullptr;
  std::shared_ptr<const Module> module;
  std::map<std::string, std::vector<uint8_t>> variables;

  void* variable(const std::string& name);
  void load();
};

struct Kernel {
  Binary* binary = nullptr;
  std::string name;
  std::shared_ptr<const Program> program;
  int most_dynamic_shared = 49152;
  bool any_cluster_size = false;
};

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Binary>> binaries;
  std::map<const void*, Kernel> kernels;
};
Registry& registry() {
  static auto* the_registry = new Registry;  // static objects register before and leave after everybody else
  return *the_registry;
}

// The headers of a fat binary and of an entry, as far as they are read here.
struct FatbinWrapper {
  uint32_t magic, version;
  const void* data;
  const void* file;
};
struct FatbinHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
};
struct FatbinEntry {
  uint16_t kind;  // 1: PTX, 2: machine code
  uint16_t version;
  uint32_t header_bytes;
  uint64_t bytes;
  uint32_t compressed_bytes;
};

std::string ptx_of(const void* wrapper) {
  const auto* header = static_cast<const FatbinHeader*>(static_cast<const FatbinWrapper*>(wrapper)->data);
  const auto* at = reinterpret_cast<const uint8_t*>(header) + header->header_bytes;
  const uint8_t* end = at + header->bytes;
  while (at < end) {
    FatbinEntry entry;
    std::memcpy(&entry, at, sizeof(entry));
    if (entry.kind == 1) {
      if (entry.compressed_bytes != 0) throw std::runtime_error("expected PTX that is not compressed: --no-compress");
      std::string text(reinterpret_cast<const char*>(at + entry.header_bytes), entry.bytes);
      text.resize(std::strlen(text.c_str()));
      return text;
    }
    at += entry.header_bytes + entry.bytes;
  }
  throw std::runtime_error("expected PTX in the fat binary: code=compute_90a");
}

void Binary::load() {
  if (module == nullptr) module = std::make_shared<Module>(ptx_of(fatbin));
}

void* Binary::variable(const std::string& name) {
  auto [found, is_new] = variables.try_emplace(name);
  if (is_new) {
    for (const Variable& v : module->variables()) {
      if (v.name != name) continue;
      found->second = v.initial;
      found->second.resize(static_cast<size_t>(v.bytes));
      Memory::device().add(found->second.data(), found->second.size());
    }
  }
  return found->second.data();
}

// The kernel of a host function, ready to run; nullptr: there is none.
Kernel* find_kernel(const void* function) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.kernels.find(function);
  if (found == r.kernels.end()) return nullptr;
  Kernel& k = found->second;
  if (k.program != nullptr) return &k;
  try {
    k.binary->load();
    k.program = assemble(k.binary->module, k.name, [&](const std::string& name) { return k.binary->variable(name); });
  } catch (const std::exception& error) {
    fmt::print(stderr, "PTX interpreter: {}: {}\n", demangled(k.name), error.what());
    return nullptr;
  }
  return &k;
}

cudaError_t error_of(Fault::Kind kind) {
  if (kind == Fault::Kind::kAddress) return cudaErrorIllegalAddress;
  return kind == Fault::Kind::kTimeout ? cudaErrorLaunchTimeout : cudaErrorIllegalInstruction;
}

cudaError_t run(const Launch& launch) {
  try {
    run_grid(launch);
    return cudaSuccess;
  } catch (const Fault& fault) {
    fmt::print(stderr, "PTX interpreter: {}\n", fault.what());
    return error_of(fault.kind);
  }
}

cudaError_t check(const Launch& l, const Kernel& k) {
  const Program& p = *l.program;
  uint64_t threads = 1;
  uint64_t cluster = 1;
  constexpr uint32_t kMostBlocks[] = {0x7fffffff, 65535, 65535};
  for (int d = 0; d < 3; ++d) {
    threads *= l.block[d];
    cluster *= l.cluster[d];
    if (l.grid[d] == 0 || l.grid[d] > kMostBlocks[d] || l.block[d] == 0 || l.cluster[d] == 0) {
      return cudaErrorInvalidConfiguration;
    }
    if (l.grid[d] % l.cluster[d] != 0) return cudaErrorInvalidClusterSize;
  }
  if (threads > 1024 || threads > static_cast<uint64_t>(p.max_threads)) return cudaErrorInvalidConfiguration;
  if (p.exact_threads && threads != static_cast<uint64_t>(p.max_threads)) return cudaErrorInvalidConfiguration;
  if (cluster > (k.any_cluster_size ? 16U : 8U)) return cudaErrorInvalidClusterSize;
  if (l.dynamic_shared > static_cast<uint32_t>(k.most_dynamic_shared)) return cudaErrorInvalidValue;
  return p.dynamic_begin + l.dynamic_shared > kMostSharedOfBlock ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t launch_kernel(const void* function, const cudaLaunchConfig_t& config, void** args) {
  Kernel* k = find_kernel(function);
  if (k == nullptr) return cudaErrorInvalidDeviceFunction;
  auto launch = std::make_shared<Launch>();
  launch->program = k->program;
  const auto set = [](uint32_t(&to)[3], dim3 from) { to[0] = from.x, to[1] = from.y, to[2] = from.z; };
  set(launch->grid, config.gridDim);
  set(launch->block, config.blockDim);
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    const auto& cluster = attribute.val.clusterDim;
    if (attribute.id == cudaLaunchAttributeClusterDimension) set(launch->cluster, {cluster.x, cluster.y, cluster.z});
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization)
      launch->overlaps = attribute.val.programmaticStreamSerializationAllowed != 0;
  }
  launch->dynamic_shared = static_cast<uint32_t>(config.dynamicSmemBytes);
  if (const cudaError_t error = check(*launch, *k); error != cudaSuccess) return error;
  const Program& p = *k->program;
  launch->params.resize(static_cast<size_t>(p.param_bytes));
  for (size_t i = 0; i < p.params.size(); ++i) {
    std::memcpy(launch->params.data() + p.param_offsets[i], args[i], static_cast<size_t>(p.params[i].bytes));
  }
  return submit(config.stream, [launch] { return run(*launch); });
}

struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;  // of <<< >>>

}  // namespace

cudaError_t kernel_facts(const void* function, KernelFacts* facts) {
  const Kernel* k = find_kernel(function);
  if (k == nullptr) return cudaErrorInvalidDeviceFunction;
  facts->static_shared = static_cast<int>(k->program->static_shared);
  facts->most_threads = k->program->max_threads;
  facts->local_bytes = static_cast<int>(k->program->local_bytes);
  facts->most_cluster = k->any_cluster_size ? 16 : 8;
  return cudaSuccess;
}

}  // namespace ptx::runtime

using namespace ptx::runtime;

extern "C" {

cudaError_t CUDARTAPI cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  Kernel* k = find_kernel(function);
  if (k == nullptr) return report(cudaErrorInvalidDeviceFunction);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    const int most = kMostSharedOfBlock - static_cast<int>(k->program->static_shared);
    if (value < 0 || value > most) return report(cudaErrorInvalidValue);
    k->most_dynamic_shared = value;
  }
  if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) k->any_cluster_size = value != 0;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** args) {
  return report(launch_kernel(function, *config, args));
}
cudaError_t CUDARTAPI cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** args, size_t shared,
                                       cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  return report(launch_kernel(function, config, args));
}

// What nvcc's host code calls.
cudaError_t CUDARTAPI __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t CUDARTAPI __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args, size_t shared,
                                         cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, args, shared, stream);
}
unsigned CUDARTAPI __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t CUDARTAPI __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const Configuration c = configurations.back();
  configurations.pop_back();
  *grid = c.grid;
  *block = c.block;
  *shared = c.shared;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  return cudaSuccess;
}
void** CUDARTAPI __cudaRegisterFatBinary(void* wrapper) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.binaries.push_back(std::make_unique<Binary>());
  r.binaries.back()->fatbin = wrapper;
  return reinterpret_cast<void**>(r.binaries.back().get());
}
void CUDARTAPI __cudaRegisterFatBinaryEnd(void**) {}
void CUDARTAPI __cudaUnregisterFatBinary(void**) {}
char CUDARTAPI __cudaInitModule(void**) { return 0; }
void CUDARTAPI __cudaRegisterFunction(void** binary, const char* function, char*, const char* name, int, uint3*, uint3*,
                                      dim3*, dim3*, int*) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  Kernel& k = r.kernels[function];
  k.binary = reinterpret_cast<Binary*>(binary);
  k.name = name;
}
void CUDARTAPI __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

}  // extern "C"
