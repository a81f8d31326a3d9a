// A call of an op on a GPU, held against the reference byte for byte. For tests/program: the buffers are the program's.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "arena.hpp"
#include "command.hpp"
#include "core/tensor.hpp"
#include "format/bf16.hpp"
#include "gpu.hpp"
#include "megamla/megamla.hpp"
#include "op_views.hpp"
#include "support/paged_cache.hpp"

namespace megamla::test {

class CudaOps : public testing::Test {
 protected:
  void SetUp() override {
    try {
      app::gpu::require();
    } catch (const app::InputError& error) {
      GTEST_SKIP() << "no GPU: " << error.what();
    }
  }

  int64_t any(int64_t low, int64_t high) {  // inclusive
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  std::mt19937_64 random_{17};
};

// The buffers of one call. Rows may lie further apart than they are wide, and begin anywhere.
class Problem {
 public:
  megamla_tensor tensor(megamla_dtype dtype, std::initializer_list<int64_t> shape, int64_t row_padding = 0) {
    megamla_tensor t = host_tensor(nullptr, dtype, shape);
    if (t.ndim > 1) t.stride[0] += row_padding;
    const int64_t bytes = t.shape[0] * t.stride[0] * megamla_dtype_size(dtype);
    t.data = buffer(bytes, 0xa5);
    t.cuda_device = arena_.cuda_device();
    return t;
  }
  megamla_kv_cache cache(CacheKind kind, int64_t pages, int64_t page_size, int64_t gap) {
    megamla_kv_cache c = describe_cache(kind, nullptr, pages, page_size, gap);
    char* memory = buffer(pages * c.page_stride, 0x6b);
    c.data = memory;
    c.cuda_device = arena_.cuda_device();
    return c;
  }

  // Runs the call on the GPU; tensors then hold what it left.
  template <class Params>
  void run(const Params& on_gpu) {
    megamla_exec exec = MEGAMLA_EXEC_INIT;
    exec.device = MEGAMLA_DEVICE_CUDA;
    exec.stream = app::gpu::stream();
    const Params placed = app::placed(on_gpu, arena_);
    arena_.upload();
    const api::Result ran = api::run(placed, exec);
    ASSERT_TRUE(ran) << ran.message();
    arena_.download();
  }

  // Runs the call on the GPU and by the reference, from the same bytes, and compares every buffer.
  template <class Params>
  void check(const Params& on_gpu) {
    const std::vector<std::vector<char>> before = contents();
    ASSERT_NO_FATAL_FAILURE(run(on_gpu));
    const std::vector<std::vector<char>> got = contents();

    for (size_t i = 0; i < buffers_.size(); ++i) std::memcpy(buffers_[i].data, before[i].data(), before[i].size());
    Params on_host = on_gpu;
    ops::for_each_view(on_host, [](auto& view) { view.cuda_device = -1; });
    const api::Result expected = api::run(on_host, api::Exec(MEGAMLA_DEVICE_REFERENCE));
    ASSERT_TRUE(expected) << expected.message();
    for (size_t i = 0; i < buffers_.size(); ++i) compare(i, got[i]);
  }

 private:
  struct Buffer {
    char* data;
    int64_t bytes;
  };

  char* buffer(int64_t bytes, uint8_t fill) {
    buffers_.push_back({static_cast<char*>(arena_.bytes(bytes, fill)), bytes});
    return buffers_.back().data;
  }
  std::vector<std::vector<char>> contents() const {
    std::vector<std::vector<char>> all;
    for (const Buffer& b : buffers_) all.emplace_back(b.data, b.data + b.bytes);
    return all;
  }
  void compare(size_t i, const std::vector<char>& got) const {
    const Buffer& b = buffers_[i];
    if (got.empty() || std::memcmp(got.data(), b.data, got.size()) == 0) return;
    const auto differing = std::mismatch(got.begin(), got.end(), b.data).first - got.begin();
    ADD_FAILURE() << "buffer " << i << " of " << b.bytes << " bytes, byte " << differing << ": expected "
                  << int{static_cast<uint8_t>(b.data[differing])} << ", got "
                  << int{static_cast<uint8_t>(got[static_cast<size_t>(differing)])};
  }

  app::Arena arena_{MEGAMLA_DEVICE_CUDA};
  std::vector<Buffer> buffers_;
};

template <class T>
void fill(const megamla_tensor& t, const std::function<T()>& value) {
  const int64_t width = t.ndim > 1 ? t.stride[0] : 1;
  for (int64_t i = 0; i < t.shape[0] * width; ++i) data<T>(t)[i] = value();
}
inline void fill_bf16(const megamla_tensor& t, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  fill<uint16_t>(
      t, [&] { return format::to_bf16(normal(random) * std::ldexp(1.0F, static_cast<int>(random() % 24) - 12)).bits; });
}
inline void fill_table(const megamla_tensor& cos_sin) {
  for (int64_t r = 0; r < cos_sin.shape[0]; ++r) {
    for (int64_t j = 0; j < 32; ++j) {
      at<float>(cos_sin, r, j) = static_cast<float>(std::cos(0.37 * static_cast<double>(r * j)));
      at<float>(cos_sin, r, 32 + j) = static_cast<float>(std::sin(0.37 * static_cast<double>(r * j)));
    }
  }
}

}  // namespace megamla::test
