// Bad arguments, one at a time: each is refused with a message that names it, and no output changes.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "support/tensor_buffer.hpp"

namespace megamla::test {

template <class Params>
class BadInput {
 public:
  using Call = megamla_status (*)(const Params*, const megamla_exec*);

  // `good` is a valid call that needs no more workspace than given; `outputs` are the buffers it may write.
  BadInput(std::string op, Call call, const Params& good, std::vector<const TensorBuffer*> outputs,
           int64_t workspace_bytes = 0)
      : op_(std::move(op)), call_(call), good_(good), outputs_(std::move(outputs)), workspace_(workspace_bytes) {
    for (const megamla_device device : kDevices) {
      const megamla_exec exec = exec_with_workspace(device);
      EXPECT_EQ(call_(&good_, &exec), MEGAMLA_OK)
          << op_ << " on " << device_name(device) << ": " << megamla_last_error();
    }
    refused("params", "NULL", nullptr);
    Params broken = good_;
    broken.struct_size = 3;
    refused("params.struct_size", "a size of 3", &broken);
  }

  // The spoilt parameters are refused for `argument`.
  void expect(const std::string& argument, const std::string& what, const std::function<void(Params&)>& spoil) {
    Params p = good_;
    spoil(p);
    refused(argument, what, &p);
  }

  // Everything that is wrong with a tensor whatever its meaning. Dimensions from contiguous_from on are dense.
  void tensor(const std::string& name, megamla_tensor Params::*field, bool required, int contiguous_from) {
    const megamla_tensor& good = good_.*field;
    if (required) expect(name, name + " absent", [=](Params& p) { p.*field = {nullptr, 0, 0, -1, 0, {}, {}}; });
    expect(name, name + " of dtype 99", [=](Params& p) { (p.*field).dtype = 99; });
    expect(name, name + " of rank 4", [=](Params& p) {
      megamla_tensor& t = p.*field;
      for (; t.ndim < 4; ++t.ndim) t.shape[t.ndim] = t.stride[t.ndim] = 1;
    });
    expect(name, name + " without memory", [=](Params& p) { (p.*field).data = nullptr; });
    if (megamla_dtype_size(static_cast<megamla_dtype>(good.dtype)) > 1) {
      expect(name, name + " misaligned", [=](Params& p) { (p.*field).data = static_cast<char*>((p.*field).data) + 1; });
    }
    expect(name, name + " in GPU memory", [=](Params& p) { (p.*field).cuda_device = 0; });
    for (int d = 0; d < good.ndim; ++d) {
      expect(name, name + " of negative shape", [=](Params& p) { (p.*field).shape[d] = -1; });
      if (good.shape[d] < 2) continue;
      expect(name, name + " of negative stride", [=](Params& p) { (p.*field).stride[d] = -8; });
      expect(name, name + " beyond 64 bits", [=](Params& p) { (p.*field).stride[d] = INT64_MAX / 4; });
      if (d >= contiguous_from) expect(name, name + " not dense", [=](Params& p) { (p.*field).stride[d] *= 2; });
    }
  }

  // An output: rows that overlap each other, and memory shared with each of `others`.
  void output(const std::string& name, megamla_tensor Params::*field,
              const std::vector<megamla_tensor Params::*>& others) {
    if ((good_.*field).ndim > 1 && (good_.*field).shape[0] > 1) {
      expect(name, name + " with overlapping rows", [=](Params& p) { (p.*field).stride[0] = 0; });
    }
    for (const auto other : others) {
      if (!present(good_.*other)) continue;
      Params p = good_;
      (p.*other).data = (p.*field).data;  // the output's memory as the input: nothing but the overlap is wrong
      refused("", name + " over another tensor", &p, "overlapping memory");
    }
  }

  void cache(const std::string& name, megamla_kv_cache Params::*field) {
    const auto bad = [&](const char* what, const std::function<void(megamla_kv_cache&)>& spoil) {
      expect(name, name + what, [&](Params& p) { spoil(p.*field); });
    };
    bad(" absent", [](megamla_kv_cache& c) { c.format = MEGAMLA_KV_NONE; });
    bad(" of format 9", [](megamla_kv_cache& c) { c.format = 9; });
    bad(" of layout 2", [](megamla_kv_cache& c) { c.layout = 2; });
    bad(" of fp8_584 interleaved", [](megamla_kv_cache& c) {
      c.format = MEGAMLA_KV_FP8_584;
      c.layout = MEGAMLA_PAGE_INTERLEAVED;
    });
    bad(" without memory", [](megamla_kv_cache& c) { c.data = nullptr; });
    bad(" misaligned", [](megamla_kv_cache& c) { c.data = static_cast<char*>(c.data) + 8; });
    bad(" in GPU memory", [](megamla_kv_cache& c) { c.cuda_device = 0; });
    bad(" of -1 pages", [](megamla_kv_cache& c) { c.num_pages = -1; });
    bad(" of page size 0", [](megamla_kv_cache& c) { c.page_size = 0; });
    bad(" of page size 2^31", [](megamla_kv_cache& c) { c.page_size = int64_t{1} << 31; });
    bad(" of 2^31 slots", [](megamla_kv_cache& c) { c.num_pages = (int64_t{1} << 31) / c.page_size + 1; });
    bad(" with pages that overlap", [](megamla_kv_cache& c) { c.page_stride -= 16; });
    bad(" of odd stride", [](megamla_kv_cache& c) { c.page_stride += 8; });
    bad(" beyond 64 bits", [](megamla_kv_cache& c) { c.page_stride = INT64_MAX - 15; });
  }

 private:
  megamla_exec exec_with_workspace(megamla_device device) {
    megamla_exec exec = exec_on(device);
    workspace_.attach(exec);
    return exec;
  }

  void refused(const std::string& argument, const std::string& what, const Params* p,
               const std::string& detail = ", got ") {
    for (const megamla_device device : kDevices) {
      SCOPED_TRACE(op_ + " on " + device_name(device) + " given " + what);
      std::vector<std::vector<uint8_t>> before;
      for (const TensorBuffer* buffer : outputs_) before.push_back(buffer->bytes());
      const megamla_exec exec = exec_with_workspace(device);
      EXPECT_EQ(call_(p, &exec), MEGAMLA_INVALID_ARGUMENT);
      const std::string message = megamla_last_error();
      const std::string wanted = argument.empty() ? op_ + ": " : op_ + ": " + argument;
      EXPECT_EQ(message.compare(0, wanted.size(), wanted), 0) << message << "\n instead of " << wanted << "...";
      EXPECT_NE(message.find(": expected "), std::string::npos) << message;
      EXPECT_NE(message.find(detail), std::string::npos) << message;
      for (size_t i = 0; i < outputs_.size(); ++i)
        EXPECT_TRUE(outputs_[i]->bytes() == before[i]) << "output " << i << " was written";
    }
  }

  std::string op_;
  Call call_;
  Params good_;
  std::vector<const TensorBuffer*> outputs_;
  Workspace workspace_;
};

}  // namespace megamla::test
