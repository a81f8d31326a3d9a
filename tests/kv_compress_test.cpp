// kv_compress against a model that keeps every row ever stored by request and position.
#include "megamla/kv_compress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "support/bad_input.hpp"
#include "support/paged_cache.hpp"
#include "support/tensor_buffer.hpp"

namespace megamla::test {
namespace {

constexpr megamla_tensor kAbsent = {nullptr, 0, 0, -1, 0, {}, {}};

void fill_random(const TensorBuffer& buffer, std::mt19937& random, float scale) {
  std::normal_distribution<float> normal;
  const int64_t rows = buffer.view().shape[0];
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t d = 0; d < buffer.view().shape[1]; ++d) buffer.at<float>(t, d) = normal(random) * scale;
  }
}

struct Step {
  TensorBuffer kv_score, token_to_req, positions, latent, written;

  Step(int64_t tokens, int64_t width, std::mt19937& random)
      : kv_score(MEGAMLA_F32, {tokens, width}, 3),
        token_to_req(MEGAMLA_I32, {tokens}),
        positions(MEGAMLA_I64, {tokens}),
        latent(MEGAMLA_BF16, {tokens, 512}, 7),
        written(MEGAMLA_U8, {tokens}) {
    fill_random(kv_score, random, 2);
  }
  int64_t tokens() const { return kv_score.view().shape[0]; }
};

struct Pool {
  TensorBuffer weight, state_block, state;

  Pool(int64_t requests, int64_t blocks, int64_t capacity, std::mt19937& random)
      : weight(MEGAMLA_BF16, {512}),
        state_block(MEGAMLA_I32, {requests}),
        state(MEGAMLA_F32, {blocks, capacity, 1024}) {
    std::normal_distribution<float> normal;
    for (int64_t d = 0; d < 512; ++d) weight.at<format::Bf16>(d) = format::to_bf16(normal(random));
    state.fill(-77.25F);
  }
};

megamla_kv_compress_params params_of(const Step& step, const Pool& pool, int32_t ratio) {
  megamla_kv_compress_params p;
  megamla_kv_compress_init(&p);
  p.compress_ratio = ratio;
  p.kv_score = step.kv_score;
  p.weight = pool.weight;
  p.latent = step.latent;
  p.written = step.written;
  if (ratio == 2) {
    p.token_to_req = step.token_to_req;
    p.positions = step.positions;
    p.state_block = pool.state_block;
    p.state = pool.state;
  }
  return p;
}

void run(const megamla_kv_compress_params& p, megamla_device device, int threads) {
  megamla_limits limits = MEGAMLA_LIMITS_INIT;
  limits.tokens = p.kv_score.shape[0];
  limits.num_threads = threads;
  int64_t bytes = -1;
  ASSERT_EQ(megamla_kv_compress_workspace_size(&limits, device, &bytes), MEGAMLA_OK) << megamla_last_error();
  Workspace workspace(bytes);
  megamla_exec exec = exec_on(device, threads);
  workspace.attach(exec);
  ASSERT_EQ(megamla_kv_compress(&p, &exec), MEGAMLA_OK) << megamla_last_error();
  EXPECT_TRUE(workspace.guards_intact());
}

std::vector<double> pooled_pair(const float* first, const float* second) {
  std::vector<double> pooled(512);
  for (size_t d = 0; d < 512; ++d) {
    const double a = std::exp(static_cast<double>(first[512 + d]));
    const double b = std::exp(static_cast<double>(second[512 + d]));
    pooled[d] = (first[d] * a + second[d] * b) / (a + b);
  }
  return pooled;
}

void expect_latent(const Step& step, int64_t t, const std::vector<double>& pooled, const TensorBuffer& weight) {
  double squares = 0;
  for (const double x : pooled) squares += x * x;
  const double factor = 1 / std::sqrt(squares / 512 + 1e-20);
  std::vector<double> wanted(512);
  double norm = 0;
  for (size_t d = 0; d < 512; ++d) {
    wanted[d] = pooled[d] * factor * to_float(weight.at<format::Bf16>(static_cast<int64_t>(d)));
    norm += wanted[d] * wanted[d];
  }
  const double rms = std::sqrt(norm / 512);
  for (size_t d = 0; d < 512; ++d) {
    const double got = to_float(step.latent.at<format::Bf16>(t, static_cast<int64_t>(d)));
    ASSERT_LE(std::abs(got - wanted[d]), 1.01 / 256 * std::abs(wanted[d]) + 1e-5 * rms + 1e-30)
        << "token " << t << " dim " << d;
  }
}

void expect_untouched(const Step& step, int64_t t) {
  for (int64_t d = 0; d < 512; ++d) ASSERT_EQ(step.latent.at<uint16_t>(t, d), 0xa5a5) << "token " << t;
}

using Row = std::vector<float>;

// Ratio 2 over several steps, with rejected tokens and steps longer than the ring.
class Conversation {
 public:
  Conversation(std::mt19937& random, int64_t capacity) : random_(random), pool_(kRequests, 7, capacity, random) {
    pool_.state_block.assign<int32_t>({4, 2, 6, 1});
  }

  void step(int64_t longest, bool interleaved) {
    std::vector<std::pair<int32_t, int64_t>> tokens;
    for (int32_t r = 0; r < kRequests; ++r) {
      int64_t& next = next_[static_cast<size_t>(r)];
      next -= std::min(next, static_cast<int64_t>(random_() % 4));  // rejected: their positions come again
      const int64_t count = static_cast<int64_t>(random_() % static_cast<uint64_t>(longest + 1));
      for (int64_t i = 0; i < count; ++i) tokens.emplace_back(r, next++);
      if (random_() % 2 == 0) tokens.emplace_back(random_() % 2 == 0 ? -1 : kRequests, 3);  // padding
    }
    if (interleaved) {
      std::stable_sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    }
    Step step(static_cast<int64_t>(tokens.size()), 1024, random_);
    for (size_t t = 0; t < tokens.size(); ++t) {
      step.token_to_req.at<int32_t>(static_cast<int64_t>(t)) = tokens[t].first;
      step.positions.at<int64_t>(static_cast<int64_t>(t)) = tokens[t].second;
    }
    const std::vector<float> state = pool_.state.values<float>();
    std::vector<std::vector<uint8_t>> runs;
    for (const megamla_device device : kDevices) {
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(device_name(device));
        pool_.state.assign(state);
        step.latent.refill();
        step.written.refill();
        run(params_of(step, pool_, 2), device, threads);
        check(step);
        runs.push_back(step.latent.bytes());
      }
    }
    EXPECT_TRUE(runs[0] == runs[1] && runs[2] == runs[3]) << "the number of threads shows";
    remember(step);
    for (int64_t block = 0; block < 7; ++block) {
      for (int64_t row = 0; row < pool_.state.view().shape[1]; ++row) check_state(block, row);
    }
  }

 private:
  static constexpr int32_t kRequests = 4;

  bool is_real(const Step& step, int64_t t) const {
    const int32_t request = step.token_to_req.at<int32_t>(t);
    return request >= 0 && request < kRequests;
  }
  // The newest row of a position: of this step, else of an earlier one.
  Row newest(const Step& step, int32_t request, int64_t position) const {
    for (int64_t t = 0; t < step.tokens(); ++t) {
      if (step.token_to_req.at<int32_t>(t) == request && step.positions.at<int64_t>(t) == position) return row(step, t);
    }
    return rows_.at({request, position});
  }
  static Row row(const Step& step, int64_t t) {
    const float* begin = &step.kv_score.at<const float>(t, 0);
    return Row(begin, begin + 1024);
  }
  void check(const Step& step) const {
    EXPECT_TRUE(step.latent.guards_intact() && step.written.guards_intact() && pool_.state.guards_intact());
    for (int64_t t = 0; t < step.tokens(); ++t) {
      const int64_t position = step.positions.at<int64_t>(t);
      const bool closes = is_real(step, t) && position % 2 == 1;
      ASSERT_EQ(step.written.at<uint8_t>(t), closes ? 1 : 0) << "token " << t;
      if (!closes) {
        expect_untouched(step, t);
        continue;
      }
      const Row first = newest(step, step.token_to_req.at<int32_t>(t), position - 1);
      expect_latent(step, t, pooled_pair(first.data(), &step.kv_score.at<const float>(t, 0)), pool_.weight);
    }
  }
  void remember(const Step& step) {
    const int64_t capacity = pool_.state.view().shape[1];
    for (int64_t t = 0; t < step.tokens(); ++t) {
      if (!is_real(step, t)) continue;
      const int32_t request = step.token_to_req.at<int32_t>(t);
      const int64_t position = step.positions.at<int64_t>(t);
      rows_[{request, position}] = row(step, t);
      stored_[{pool_.state_block.at<int32_t>(request), position % capacity}] = row(step, t);
    }
  }
  void check_state(int64_t block, int64_t row) const {
    const auto stored = stored_.find({block, row});
    const Row wanted = stored == stored_.end() ? Row(1024, -77.25F) : stored->second;
    ASSERT_TRUE(same_bytes(&pool_.state.at<float>(block, row, 0), wanted.data(), 4096)) << block << " " << row;
  }

  std::mt19937& random_;
  Pool pool_;
  std::vector<int64_t> next_ = std::vector<int64_t>(kRequests);
  std::map<std::pair<int64_t, int64_t>, Row> rows_;    // by request and position
  std::map<std::pair<int64_t, int64_t>, Row> stored_;  // by block and ring row
};

TEST(KvCompress, StepsWithRejectedTokens) {
  std::mt19937 random(31);
  for (int round = 0; round < 4; ++round) {
    Conversation conversation(random, 8);
    for (int step = 0; step < 6; ++step) conversation.step(step == 0 ? 11 : 5, step % 2 == 1);
  }
}

TEST(KvCompress, StepsLongerThanTheRing) {
  std::mt19937 random(32);
  Conversation conversation(random, 16);
  for (int step = 0; step < 4; ++step) conversation.step(70, step % 2 == 1);
}

TEST(KvCompress, Ratio1NormalisesEveryToken) {
  std::mt19937 random(33);
  Pool pool(1, 1, 8, random);
  Step step(23, 512, random);
  for (int64_t d = 0; d < 512; ++d) step.kv_score.at<float>(5, d) = 0;  // no division by zero
  for (int64_t d = 0; d < 512; ++d) step.kv_score.at<float>(6, d) *= 1e-30F;
  for (const megamla_device device : kDevices) {
    step.latent.refill();
    run(params_of(step, pool, 1), device, 3);
    for (int64_t t = 0; t < 23; ++t) {
      const float* x = &step.kv_score.at<const float>(t, 0);
      expect_latent(step, t, std::vector<double>(x, x + 512), pool.weight);
      EXPECT_EQ(step.written.at<uint8_t>(t), 1);
    }
    EXPECT_TRUE(step.latent.guards_intact() && step.written.guards_intact());
  }
}

TEST(KvCompress, ScoresOfAnySizeGiveWeightsBetween0And1) {
  std::mt19937 random(34);
  Pool pool(1, 2, 8, random);
  pool.state_block.fill<int32_t>(1);
  Step step(2, 1024, random);
  step.token_to_req.fill<int32_t>(0);
  step.positions.assign<int64_t>({0, 1});
  const float scores[] = {0, 1e-3F, 3, 40, 87, 88, 120, 1e4F, 3e38F, -3e38F, -100, -1e-30F};
  for (int64_t d = 0; d < 512; ++d) {
    step.kv_score.at<float>(0, 512 + d) = scores[d % 12];
    step.kv_score.at<float>(1, 512 + d) = scores[(d / 12) % 12];
  }
  std::vector<double> pooled(512);
  for (int64_t d = 0; d < 512; ++d) {
    const double difference =
        static_cast<double>(step.kv_score.at<float>(1, 512 + d)) - step.kv_score.at<float>(0, 512 + d);
    const double second = 1 / (1 + std::exp(-difference));
    pooled[static_cast<size_t>(d)] =
        step.kv_score.at<float>(0, d) * (1 - second) + step.kv_score.at<float>(1, d) * second;
  }
  for (const megamla_device device : kDevices) {
    step.latent.refill();
    run(params_of(step, pool, 2), device, 1);
    expect_latent(step, 1, pooled, pool.weight);
  }
}

// Tokens without a place in the state change nothing; the same on every implementation, in any order of tokens.
TEST(KvCompress, HostileTokens) {
  std::mt19937 random(35);
  for (int round = 0; round < 60; ++round) {
    Pool pool(5, 4, 8, random);
    const int32_t blocks[] = {0, -1, 4, INT32_MAX, 1, 2, 3, 3};
    for (int64_t r = 0; r < 5; ++r) pool.state_block.at<int32_t>(r) = blocks[random() % 8];
    Step step(24, 1024, random);
    const int32_t requests[] = {-1, 5, INT32_MAX, INT32_MIN, 0, 1, 2, 3, 4};
    const int64_t positions[] = {-1, INT64_MIN, INT64_MAX, (int64_t{1} << 32) + 1, 0, 1, 2, 3, 8, 9, 10, 17};
    for (int64_t t = 0; t < 24; ++t) {
      step.token_to_req.at<int32_t>(t) = requests[random() % 9];
      step.positions.at<int64_t>(t) = positions[random() % 12];
    }
    run(params_of(step, pool, 2), MEGAMLA_DEVICE_REFERENCE, 1);
    const std::vector<float> state = pool.state.values<float>();
    const std::vector<uint8_t> written = step.written.bytes();
    const std::vector<format::Bf16> latent = step.latent.values<format::Bf16>();
    EXPECT_EQ(std::count(state.begin(), state.begin() + 8 * 1024, -77.25F), 8 * 1024) << "the null block";
    for (int64_t t = 0; t < 24; ++t) {
      const int32_t request = step.token_to_req.at<int32_t>(t);
      const bool placed = request >= 0 && request < 5 && step.positions.at<int64_t>(t) >= 0 &&
                          pool.state_block.at<int32_t>(request) > 0 && pool.state_block.at<int32_t>(request) < 4;
      ASSERT_EQ(step.written.at<uint8_t>(t), placed && step.positions.at<int64_t>(t) % 2 == 1 ? 1 : 0);
      if (step.written.at<uint8_t>(t) == 0) expect_untouched(step, t);
    }
    pool.state.fill(-77.25F);
    step.latent.refill();
    step.written.refill();
    run(params_of(step, pool, 2), MEGAMLA_DEVICE_CPU, 3);
    EXPECT_TRUE(pool.state.values<float>() == state);
    EXPECT_TRUE(step.written.bytes() == written);
    for (size_t i = 0; i < latent.size(); ++i) {
      const float want = to_float(latent[i]);
      ASSERT_NEAR(to_float(step.latent.as<format::Bf16>()[i]), want, std::abs(want) / 100 + 1e-4);
    }
  }
}

TEST(KvCompress, MoreTokensThanAGridDimensionAndStateBeyond32BitOffsets) {
  std::mt19937 random(36);
  constexpr int64_t kTokens = 66002;
  constexpr int64_t kBlocks = 140000;  // of 32 KiB
  Pool pool(1, 1, 8, random);
  Step one(1, 1024, random);
  const SparseMemory state(kBlocks * 8 * 4096);
  ASSERT_TRUE(state.ok());
  pool.state_block.fill<int32_t>(kBlocks - 1);
  TensorBuffer requests(MEGAMLA_I32, {kTokens});
  TensorBuffer positions(MEGAMLA_I32, {kTokens});
  TensorBuffer latent(MEGAMLA_BF16, {kTokens, 512});
  requests.fill<int32_t>(0);
  std::iota(positions.as<int32_t>(), positions.as<int32_t>() + kTokens, 0);
  megamla_kv_compress_params p = params_of(one, pool, 2);
  p.kv_score.shape[0] = kTokens;
  p.kv_score.stride[0] = 0;  // the same row for all
  p.token_to_req = requests;
  p.positions = positions;
  p.latent = latent;
  p.written = kAbsent;
  p.state = host_tensor(state.data(), MEGAMLA_F32, {kBlocks, 8, 1024});
  for (const megamla_device device : kDevices) {
    latent.refill();
    float* ring = &at<float>(p.state, kBlocks - 1, 0, 0);
    std::fill_n(ring, 8 * 1024, 0.0F);
    run(p, device, 0);
    for (int64_t t = 3; t < kTokens; t += 2) {
      ASSERT_EQ(std::memcmp(&latent.at<uint16_t>(t, 0), &latent.at<uint16_t>(1, 0), 1024), 0) << t;
      ASSERT_EQ(latent.at<uint16_t>(t - 1, 0), 0xa5a5);
    }
    for (int64_t row = 0; row < 8; ++row) {
      EXPECT_TRUE(same_bytes(ring + row * 1024, one.kv_score.as<float>(), 4096));
    }
    EXPECT_TRUE(all_zero(static_cast<const uint8_t*>(state.data()) + (kBlocks - 2) * 8 * 4096, 8 * 4096));
  }
}

TEST(KvCompress, NoTokens) {
  std::mt19937 random(37);
  Pool pool(2, 3, 8, random);
  pool.state_block.fill<int32_t>(1);
  const std::vector<uint8_t> state = pool.state.bytes();
  for (const megamla_device device : kDevices) {
    const Step pairs(0, 1024, random);
    run(params_of(pairs, pool, 2), device, 2);
    const Step singles(0, 512, random);
    run(params_of(singles, pool, 1), device, 2);
  }
  EXPECT_TRUE(pool.state.bytes() == state);
}

TEST(KvCompress, WorkspaceTooSmallIsNamedAndNothingWritten) {
  std::mt19937 random(38);
  Pool pool(1, 2, 8, random);
  pool.state_block.fill<int32_t>(1);
  Step step(4, 1024, random);
  step.token_to_req.fill<int32_t>(0);
  step.positions.assign<int64_t>({0, 1, 2, 3});
  const megamla_kv_compress_params p = params_of(step, pool, 2);
  const std::vector<uint8_t> state = pool.state.bytes();
  megamla_exec exec = exec_on(MEGAMLA_DEVICE_CPU);
  Workspace workspace(64);
  workspace.attach(exec);
  EXPECT_EQ(megamla_kv_compress(&p, &exec), MEGAMLA_WORKSPACE_TOO_SMALL);
  EXPECT_NE(std::string(megamla_last_error()).find("kv_compress: exec.workspace: expected at least"), std::string::npos)
      << megamla_last_error();
  EXPECT_TRUE(pool.state.bytes() == state);
  int64_t before = 0;
  for (int64_t tokens = 0; tokens < 300; ++tokens) {  // a size for many tokens serves fewer
    megamla_limits limits = MEGAMLA_LIMITS_INIT;
    limits.tokens = tokens;
    int64_t bytes = 0;
    ASSERT_EQ(megamla_kv_compress_workspace_size(&limits, MEGAMLA_DEVICE_CPU, &bytes), MEGAMLA_OK);
    EXPECT_GE(bytes, before);
    before = bytes;
  }
}

// The reference needs no workspace, so its calls and the CPU's are refused by the same validation.
TEST(KvCompress, BadArguments) {
  using P = megamla_kv_compress_params;
  std::mt19937 random(39);
  Pool pool(2, 3, 8, random);
  pool.state_block.fill<int32_t>(1);
  Step step(3, 1024, random);
  step.token_to_req.fill<int32_t>(0);
  step.positions.assign<int64_t>({0, 1, 2});
  BadInput<P> bad("kv_compress", megamla_kv_compress, params_of(step, pool, 2),
                  {&step.latent, &step.written, &pool.state}, 4096);
  bad.tensor("kv_score", &P::kv_score, true, 1);
  bad.tensor("weight", &P::weight, true, 0);
  bad.tensor("token_to_req", &P::token_to_req, true, 0);
  bad.tensor("positions", &P::positions, true, 0);
  bad.tensor("state_block", &P::state_block, true, 0);
  bad.tensor("state", &P::state, true, 0);
  bad.tensor("latent", &P::latent, true, 1);
  bad.tensor("written", &P::written, false, 0);
  const std::vector<megamla_tensor P::*> inputs = {&P::kv_score, &P::weight, &P::token_to_req, &P::positions,
                                                   &P::state_block};
  bad.output("latent", &P::latent, inputs);
  bad.output("latent", &P::latent, {&P::state, &P::written});
  bad.output("state", &P::state, inputs);
  bad.output("written", &P::written, inputs);
  bad.expect("compress_ratio", "0", [](P& p) { p.compress_ratio = 0; });
  bad.expect("compress_ratio", "3", [](P& p) { p.compress_ratio = 3; });
  bad.expect("eps", "negative", [](P& p) { p.eps = -1; });
  bad.expect("eps", "NaN", [](P& p) { p.eps = std::nanf(""); });
  bad.expect("kv_score", "the width of ratio 1", [](P& p) { p.kv_score.shape[1] = 512; });
  bad.expect("weight", "256 values", [](P& p) { p.weight.shape[0] = 256; });
  bad.expect("token_to_req", "two tokens of three", [](P& p) { p.token_to_req.shape[0] = 2; });
  bad.expect("positions", "four tokens of three", [](P& p) { p.positions.shape[0] = 4; });
  bad.expect("state capacity", "4", [](P& p) {
    p.state.shape[1] = 4;
    p.state.stride[0] = 4096;
  });
  bad.expect("state capacity", "12", [](P& p) {
    p.state.shape[0] = 1;
    p.state.shape[1] = 12;
  });
  bad.expect("state", "rows of 512", [](P& p) { p.state.shape[2] = 512; });
  bad.expect("latent", "two tokens of three", [](P& p) { p.latent.shape[0] = 2; });
  bad.expect("written", "two tokens of three", [](P& p) { p.written.shape[0] = 2; });
  const auto ratio_1 = [](P& p) {
    p.compress_ratio = 1;
    p.kv_score.shape[1] = 512;
    p.token_to_req = p.positions = p.state_block = p.state = kAbsent;
  };
  for (const auto& [name, field] : std::map<std::string, megamla_tensor P::*>{{"token_to_req", &P::token_to_req},
                                                                              {"positions", &P::positions},
                                                                              {"state_block", &P::state_block},
                                                                              {"state", &P::state}}) {
    const megamla_tensor state_tensor = params_of(step, pool, 2).*field;
    bad.expect(name, "state tensors with ratio 1", [&, f = field](P& p) {
      ratio_1(p);
      p.*f = state_tensor;
    });
  }
}

}  // namespace
}  // namespace megamla::test
