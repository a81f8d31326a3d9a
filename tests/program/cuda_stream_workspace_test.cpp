// Memory that a stream keeps: which calls get the same, which get none. Skipped on a machine without a GPU; a build
// without GPU kernels has nothing to test here.
#if MEGAMLA_HAVE_CUDA
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda/stream_workspace.hpp"
#include "support/device_mirror.hpp"

namespace megamla::cuda {
namespace {

constexpr int64_t kBytes = 1 << 20;

// More than any stream of this program has.
int64_t more_bytes() {
  static int64_t most = kBytes;
  return most += kBytes;
}

class Stream {
 public:
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  ~Stream() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  std::shared_ptr<void> workspace(int64_t bytes) const { return stream_workspace(0, stream_, bytes); }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// The streams that keep memory in this program: each test uses these, since a device has room for no others.
using Streams = std::array<Stream, kMostKeptStreams>;
const Streams& streams() {
  static const Streams& all = []() -> const Streams& {
    const auto& made = *new Streams;
    for (const Stream& stream : made) EXPECT_NE(stream.workspace(kBytes), nullptr);
    return made;
  }();
  return all;
}

class CudaStreamWorkspace : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = test::gpu_missing(); !missing.empty()) GTEST_SKIP() << missing;
  }
};

TEST_F(CudaStreamWorkspace, StaysTheSameUntilMoreIsNeeded) {
  const Stream& stream = streams()[0];
  const auto held = stream.workspace(kBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(held.get()) % 256, 0U);
  EXPECT_EQ(stream.workspace(kBytes), held);
  EXPECT_EQ(stream.workspace(1), held);
  const int64_t more = more_bytes();
  const auto grown = stream.workspace(more);
  ASSERT_NE(grown, nullptr);
  EXPECT_NE(grown, held);  // which whoever holds it may still use
  EXPECT_EQ(cudaMemsetAsync(held.get(), 1, kBytes, stream.get()), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(grown.get(), 2, static_cast<size_t>(more), stream.get()), cudaSuccess);
  EXPECT_EQ(stream.workspace(kBytes), grown);
}

TEST_F(CudaStreamWorkspace, IsAnotherForEachStreamAndForSoManyOnly) {
  for (const Stream& a : streams()) {
    for (const Stream& b : streams()) EXPECT_EQ(a.workspace(kBytes) == b.workspace(kBytes), &a == &b);
  }
  const Stream one_more;
  EXPECT_EQ(one_more.workspace(kBytes), nullptr);
  EXPECT_NE(streams()[1].workspace(kBytes), nullptr);
}

TEST_F(CudaStreamWorkspace, IsNeverTooMuch) {
  const Stream& stream = streams()[2];
  const auto held = stream.workspace(kBytes);
  EXPECT_EQ(stream.workspace(kMostKeptBytes + 1), nullptr);
  EXPECT_EQ(stream.workspace(kBytes), held);
}

TEST_F(CudaStreamWorkspace, IsNotForWhatIsCaptured) {
  const Stream& stream = streams()[3];
  const auto held = stream.workspace(kBytes);
  ASSERT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(stream.workspace(kBytes), nullptr);
  EXPECT_NE(streams()[0].workspace(more_bytes()), nullptr);  // of a stream beside it, although that has to grow
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(stream.workspace(kBytes), held);
}

TEST_F(CudaStreamWorkspace, OfManyThreadsAtOnce) {
  const int64_t begin = more_bytes();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, begin] {
      for (int64_t n = 1; n <= 40; ++n) {
        const Stream& stream = streams()[static_cast<size_t>(n % 2)];
        const int64_t bytes = begin + n * 4096 * (1 + t % 2);
        const auto held = stream.workspace(bytes);
        ASSERT_NE(held, nullptr);
        ASSERT_EQ(cudaMemsetAsync(held.get(), t, static_cast<size_t>(bytes), stream.get()), cudaSuccess);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace megamla::cuda
#endif
