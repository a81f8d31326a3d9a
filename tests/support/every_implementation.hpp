// One test for every implementation that an op's dispatcher lists: the reference, each variant of the CPU, each GPU
// kernel. A GPU implementation needs nothing of a test: its memory goes there and back around the call.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ops/op.hpp"
#include "ops/views.hpp"
#include "support/device_mirror.hpp"
#include "support/tensor_buffer.hpp"

namespace megamla::test {

inline void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

// Runs one implementation on memory of the tests, with exactly the workspace that it asks for.
template <class Params>
Status run_implementation(const ops::Implementation<Params>& implementation, const Params& params, int threads = 2) {
  const ops::Op<Params>& op = ops::op_of(&params);
  megamla_limits limits = op.limits_of(params);
  limits.struct_size = sizeof(limits);
  limits.num_threads = threads;
  const int64_t bytes = implementation.workspace_size(limits);
  megamla_exec exec = exec_on(implementation.device, threads);
  if (implementation.device != MEGAMLA_DEVICE_CUDA) {
    Workspace workspace(bytes);
    workspace.attach(exec);
    Status status = ops::run_implementation(op, implementation, params, exec);
    EXPECT_TRUE(workspace.guards_intact()) << implementation.name;
    return status;
  }
  DeviceMirror gpu;
  Params there = params;
  ops::for_each_view(there, [&](auto& view) { gpu.take(view); });
  exec.workspace = gpu.allocate(std::max<int64_t>(bytes, 1));
  exec.workspace_bytes = bytes;
  Status status = ops::run_implementation(op, implementation, there, exec);
  gpu.give_back();
  return status;
}

// By the truth that results are held against.
template <class Params>
Status run_reference(const Params& params) {
  for (const auto& implementation : ops::op_of(&params).implementations) {
    if (implementation.device == MEGAMLA_DEVICE_REFERENCE) return run_implementation(implementation, params);
  }
  return unsupported("no reference");
}

// Fixture of tests of one op, parameterised over its implementations: MEGAMLA_EVERY_IMPLEMENTATION(fixture).
template <class Params>
class EveryImplementation : public ::testing::TestWithParam<const ops::Implementation<Params>*> {
 public:
  using Implementation = ops::Implementation<Params>;

  static const ops::Op<Params>& op() { return ops::op_of(static_cast<const Params*>(nullptr)); }
  // NULL stands for a GPU where the build has no kernel of the op: its tests say so instead of vanishing.
  static std::vector<const Implementation*> all() {
    std::vector<const Implementation*> list;
    bool cuda = false;
    for (const Implementation& implementation : op().implementations) {
      list.push_back(&implementation);
      cuda |= implementation.device == MEGAMLA_DEVICE_CUDA;
    }
    if (!cuda) list.push_back(nullptr);
    return list;
  }
  static std::string label(const ::testing::TestParamInfo<const Implementation*>& info) {
    std::string name = info.param == nullptr ? "cuda" : info.param->name;
    std::replace_if(
        name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
    return name;
  }

 protected:
  void SetUp() override {
    if (this->GetParam() == nullptr) GTEST_SKIP() << op().name << ": no CUDA implementation in this build";
    if (device() == MEGAMLA_DEVICE_CUDA && !gpu_missing().empty())
      GTEST_SKIP() << this->GetParam()->name << ": " << gpu_missing();
  }

  megamla_device device() const { return this->GetParam()->device; }
  bool on_gpu() const { return device() == MEGAMLA_DEVICE_CUDA; }
  Status run(const Params& params, int threads = 2) const {
    return run_implementation(*this->GetParam(), params, threads);
  }
  // Why this implementation leaves the case to another one of its device; empty if it does not. No device may be left
  // without one that takes the case.
  std::string left_to_another(const Params& params) const {
    const Status covers = this->GetParam()->supports(params);
    if (covers.ok()) return "";
    bool taken = false;
    for (const Implementation& other : op().implementations)
      taken |= other.device == device() && other.supports(params).ok();
    EXPECT_TRUE(taken) << "no implementation on " << ops::device_name(device())
                       << " takes this case: " << covers.message();
    return std::string(this->GetParam()->name) + " does not take this case: " + covers.message();
  }
};

}  // namespace megamla::test

// Ends a test whose case the implementation leaves to another one.
#define MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(params) \
  if (const std::string why = left_to_another(params); !why.empty()) GTEST_SKIP() << why

#define MEGAMLA_EVERY_IMPLEMENTATION(fixture) \
  INSTANTIATE_TEST_SUITE_P(On, fixture, ::testing::ValuesIn(fixture::all()), fixture::label)
