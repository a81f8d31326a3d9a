// Kernels written as PTX text, for the interpreter's own tests.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "ptx_interpreter/machine.hpp"

namespace ptx::test {

// Memory that a kernel may touch.
template <class T>
class Device {
 public:
  explicit Device(size_t count) : data_(static_cast<T*>(Memory::device().allocate(count * sizeof(T)))), count_(count) {}
  explicit Device(const std::vector<T>& values) : Device(values.size()) {
    std::copy(values.begin(), values.end(), data_);
  }
  ~Device() { Memory::device().release(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  T* data() const { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  std::vector<T> values() const { return {data_, data_ + count_}; }
  operator uint64_t() const { return reinterpret_cast<uint64_t>(data_); }

 private:
  T* data_;
  size_t count_;
};

struct Shape {
  uint32_t blocks = 1;
  uint32_t threads = 32;
  uint32_t cluster = 1;
  uint32_t shared = 0;
  bool overlaps = false;
};

// Around a body: registers r0 .. (b32), d0 .. (b64), f0 .. (f32), p0 .. (pred), h0 .. (b16), and the parameters, 64
// bits each, in %d0, %d1, ..; %r0: the thread.
inline std::string entry(const std::string& body, size_t params) {
  std::string text = ".version 9.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 shared[];\n";
  text += ".visible .entry kernel(";
  for (size_t i = 0; i < params; ++i) text += fmt::format("{}.param .u64 p{}", i == 0 ? "" : ", ", i);
  text += ")\n{\n.reg .b32 %r<64>;\n.reg .b64 %d<64>;\n.reg .f32 %f<64>;\n.reg .pred %p<16>;\n.reg .b16 %h<32>;\n";
  text += ".reg .f64 %e<16>;\n";
  for (size_t i = 0; i < params; ++i) text += fmt::format("ld.param.u64 %d{}, [p{}];\n", i, i);
  return text + "mov.u32 %r0, %tid.x;\n" + body + "\nret;\n}\n";
}

// Runs it; the fault's text, or nothing.
inline std::string run_text(const std::string& text, const Shape& shape, const std::vector<uint64_t>& params,
                            uint64_t seed = 0, bool races = false) {
  try {
    Launch launch;
    launch.program = assemble(std::make_shared<Module>(text), "kernel", [](const std::string&) { return nullptr; });
    launch.grid[0] = shape.blocks;
    launch.block[0] = shape.threads;
    launch.cluster[0] = shape.cluster;
    launch.dynamic_shared = shape.shared;
    launch.overlaps = shape.overlaps;
    launch.params.resize(params.size() * 8);
    std::memcpy(launch.params.data(), params.data(), launch.params.size());
    Cluster cluster(launch, seed, races);
    for (uint32_t i = 0; i < shape.blocks / shape.cluster; ++i) cluster.run(i);
    return "";
  } catch (const std::exception& fault) {
    return fault.what();
  }
}
inline std::string run_body(const std::string& body, const Shape& shape, const std::vector<uint64_t>& params,
                            uint64_t seed = 0, bool races = false) {
  return run_text(entry(body, params.size()), shape, params, seed, races);
}

}  // namespace ptx::test
