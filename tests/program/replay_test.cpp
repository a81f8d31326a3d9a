// The replay: scheduler and paged caches alone, then a short trace through a real layer.
#include "replay/replay.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "command.hpp"
#include "core/tensor.hpp"
#include "format/kv_record.hpp"
#include "format/page.hpp"
#include "io/checkpoint.hpp"
#include "io/trace.hpp"
#include "support/layer_batch.hpp"
#include "support/sanitizers.hpp"
#include "support/temp_folder.hpp"

namespace megamla::replay {
namespace {

io::TraceRequest traced(int64_t input, int64_t output, std::vector<int64_t> ids = {}) {
  return {0, input, output, std::move(ids)};
}

SchedulerLimits limits_for(const std::vector<Request>& requests, int64_t running) {
  SchedulerLimits limits;
  limits.max_batched_tokens = 256;
  limits.max_requests = running;
  int64_t longest = 0;
  for (const Request& r : requests) longest = std::max(longest, r.total());
  limits.window_blocks = running * Scheduler::window_blocks_for(longest, limits.window, limits.max_batched_tokens);
  limits.compressed_blocks = running * Scheduler::compressed_blocks_for(longest);
  return limits;
}

TEST(ReplayRequest, CapShortensInProportion) {
  const Request r = make_request(0, traced(6758, 500), 2048);
  EXPECT_EQ(r.prompt + r.output, 2048);
  EXPECT_EQ(r.output, 500 * 2048 / 7258);
  EXPECT_EQ(make_request(0, traced(100, 20), 2048).prompt, 100);
  EXPECT_EQ(make_request(0, traced(100000, 1), 64).output, 1);
  EXPECT_EQ(make_request(0, traced(1, 100000), 64).prompt, 1);
  EXPECT_EQ(make_request(0, traced(0, 0), 0).total(), 1);
}

TEST(ReplayRequest, BlockKeysNameTheWholePrefix) {
  const Request a = make_request(0, traced(1600, 1, {5, 6, 7}), 0);
  const Request b = make_request(1, traced(1600, 1, {5, 9, 7}), 0);
  ASSERT_EQ(a.block_keys.size(), 3U);
  EXPECT_EQ(a.block_keys[0], b.block_keys[0]);
  EXPECT_NE(a.block_keys[1], b.block_keys[1]);
  EXPECT_NE(a.block_keys[2], b.block_keys[2]) << "the same id after another prefix is another block";
}

// Every token is scheduled exactly once, decodes come first, tables have pages for the step and its window, and all
// pages come back.
TEST(Scheduler, RunsEveryTokenOnceWithinItsPages) {
  std::vector<Request> requests;
  for (int64_t i = 0; i < 20; ++i) {
    requests.push_back(make_request(
        i, traced(1 + i * 97 % 1500, 1 + i * 31 % 60, i % 3 == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{}),
        0));
  }
  for (Request& r : requests)
    r.block_keys.resize(std::min<size_t>(r.block_keys.size(), static_cast<size_t>(r.prompt / 512)));
  const SchedulerLimits limits = limits_for(requests, 5);
  std::map<int64_t, int64_t> totals;
  for (const Request& r : requests) totals[r.id] = r.total();
  Scheduler scheduler(std::move(requests), limits);
  std::map<int64_t, int64_t> done;
  for (std::vector<Scheduled> step = scheduler.next(); !step.empty(); step = scheduler.next()) {
    int64_t tokens = 0;
    bool prefills = false;
    std::set<int32_t> written;
    for (const Scheduled& s : step) {
      Request& r = *s.request;
      tokens += s.query;
      prefills |= r.prefilling();
      EXPECT_EQ(prefills, r.prefilling()) << "decodes first";
      if (!done.contains(r.id)) done[r.id] = r.reused;
      EXPECT_EQ(done[r.id], r.computed);
      const int64_t oldest = std::max<int64_t>(0, r.computed - limits.window + 1);
      for (int64_t p = oldest / kWindowPageTokens; p <= (r.computed + s.query - 1) / kWindowPageTokens; ++p) {
        ASSERT_NE(r.window_table[static_cast<size_t>(p)], kNoBlock) << "request " << r.id << " page " << p;
        if (p >= (r.computed + kWindowPageTokens - 1) / kWindowPageTokens) {
          EXPECT_TRUE(written.insert(r.window_table[static_cast<size_t>(p)]).second)
              << "a page written by two requests";
        }
      }
      for (int64_t p = 0; p <= (r.computed + s.query - 1) / kCompressedPageTokens; ++p) {
        ASSERT_NE(r.compressed_table[static_cast<size_t>(p)], kNoBlock);
      }
      done[r.id] += s.query;
    }
    EXPECT_LE(tokens, limits.max_batched_tokens);
    scheduler.complete(step);
  }
  EXPECT_EQ(done, totals);
  EXPECT_GT(scheduler.reused_tokens(), 0);
  scheduler.forget_prefixes();
  EXPECT_EQ(scheduler.window_blocks().in_use(), 0);
  EXPECT_EQ(scheduler.compressed_blocks().in_use(), 0);
}

class ReplayRun : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("megamla_replay_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  ReplayOptions options(const std::vector<io::TraceRequest>& trace) {
    ReplayOptions o;
    o.trace = (folder_ / "trace.jsonl").string();
    EXPECT_TRUE(io::write_trace(trace, o.trace).ok());
    o.verify_rate = 0.02;
    o.model.layers = {2};
    o.model.exec = MEGAMLA_EXEC_INIT;
    o.model.exec.device = MEGAMLA_DEVICE_CPU;
    o.model.limits.max_batched_tokens = 300;
    return o;
  }
  static ReplayResult run(const ReplayOptions& o) {
    return run_replay(o, [](const Progress&) {});
  }

  std::filesystem::path folder_;
};

TEST_F(ReplayRun, TraceWithSharedPrefixHoldsItsBounds) {
  const ReplayResult r = run(options({traced(540, 3, {1, 2}), traced(700, 4, {1, 3}), traced(9, 5)}));
  EXPECT_EQ(r.requests, 3);
  EXPECT_EQ(r.reused_tokens + r.prefill_tokens, 540 + 700 + 9);
  EXPECT_EQ(r.reused_tokens, 512) << "the second request comes in the step that completes the first block";
  EXPECT_EQ(r.decode_tokens, 2 + 3 + 4);
  EXPECT_EQ(r.window_blocks_left, 0);
  EXPECT_EQ(r.compressed_blocks_left, 0);
  EXPECT_EQ(r.kv_bytes_per_token, 144);
  EXPECT_TRUE(r.worst.holds) << r.worst.first_failure;
  EXPECT_GT(r.worst.rows, 6);
  EXPECT_EQ(r.worst.longest_context, 703);
}

// Requests that share a prefix, decode together and are cut into steps give the bits that each gives alone.
TEST_F(ReplayRun, EveryRowIsTheSameAlone) {
  // Two at a time; the pool, made for the two longest, has room for the prefix that the first leaves to the third.
  ReplayOptions o = options({traced(540, 3, {1, 2}), traced(9, 12), traced(700, 4, {1, 3}), traced(900, 2)});
  o.max_requests = 2;
  o.verify_rate = 0;
  o.compare_alone = true;
  const ReplayResult r = run(o);
  EXPECT_EQ(r.alone.rows, r.prefill_tokens + r.decode_tokens);
  EXPECT_GT(r.reused_tokens, 0);
  EXPECT_EQ(r.alone.differing, 0) << r.alone.first_difference;
  EXPECT_EQ(r.window_blocks_left + r.compressed_blocks_left, 0);
#if !MEGAMLA_ADDRESS_SANITIZER && !MEGAMLA_THREAD_SANITIZER
  // A sanitizer holds freed memory back, and its own records grow: there the resident size is not the program's.
  EXPECT_LE(r.last_rss_bytes, r.half_way_rss_bytes + (16 << 20)) << "growth in the second half";
#endif
  EXPECT_GT(r.half_way_rss_bytes, r.weight_bytes);
}

// Every row of a narrow model, on each device.
class ReplayOn : public test::LayerOn {};
MEGAMLA_LAYER_ON_EACH_DEVICE(ReplayOn);

TEST_P(ReplayOn, EveryRowOfANarrowModelHoldsItsBounds) {
  const test::TempFolder folder;
  ReplayOptions o;
  o.trace = folder.file("trace.jsonl");
  ASSERT_TRUE(io::write_trace({traced(40, 6), traced(21, 5), traced(9, 7)}, o.trace).ok());
  o.model.weights = folder.file("checkpoint");
  o.model.layers = {2, 3, 20};
  ASSERT_TRUE(io::write_seeded_checkpoint(test::narrow_model(), o.model.layers, 7, o.model.weights).ok());
  o.verify_rate = 1;
  o.model.limits.max_batched_tokens = 48;
  o.model.exec = MEGAMLA_EXEC_INIT;
  o.model.exec.device = device();
  if (device() == MEGAMLA_DEVICE_CUDA) o.model.exec.stream = app::gpu::stream();
  const ReplayResult r = run_replay(o, [](const Progress&) {});
  EXPECT_TRUE(r.worst.holds) << r.worst.first_failure;
  EXPECT_EQ(r.worst.rows, 3 * (r.prefill_tokens + r.decode_tokens));
  EXPECT_EQ(r.window_blocks_left + r.compressed_blocks_left, 0);
  EXPECT_EQ(r.graph_replays > 0, device() == MEGAMLA_DEVICE_CUDA);
}

TEST(KeptRecords, StayWhenTheirCacheIsOverwritten) {
  for (const megamla_kv_format kind : {MEGAMLA_KV_FP8_528, MEGAMLA_KV_NVFP4_288}) {
    constexpr int64_t kSlots = 4;  // of a page
    constexpr int64_t kPages = 3;
    const int64_t stride = format::round_up(format::page_bytes(kind, kSlots), 16);
    std::vector<char> pool(static_cast<size_t>(kPages * stride));
    for (size_t i = 0; i < pool.size(); ++i) pool[i] = static_cast<char>(i * 31 + i / 251);
    const std::vector<char> before = pool;
    megamla_kv_cache cache{pool.data(), kPages, stride, kSlots, kind, MEGAMLA_PAGE_PLANAR, -1, 0};
    KeptRecords kept(cache);
    kept.begin_step();
    const std::vector<int64_t> slots = {11, 0, 6};
    std::vector<int32_t> places;
    for (const int64_t slot : slots) places.push_back(kept.keep(slot));
    EXPECT_EQ(kept.keep(0), places[1]) << "one copy for all rows of a step";
    std::fill(pool.begin(), pool.end(), char{0});
    for (size_t i = 0; i < slots.size(); ++i) {
      cache.data = const_cast<char*>(before.data());
      const auto expected = format::slot_bytes(cache, slots[i]);
      const auto got = format::slot_bytes(kept.view(), places[i]);
      EXPECT_EQ(std::memcmp(got.data, expected.data, static_cast<size_t>(format::data_bytes(kind))), 0);
      EXPECT_EQ(std::memcmp(got.scale, expected.scale, static_cast<size_t>(format::scale_bytes(kind))), 0);
    }
    kept.begin_step();
    EXPECT_NE(kept.keep(0), places[1]) << "a later step's record is another one";
  }
}

TEST(RowHashes, FindTheRowThatDiffers) {
  std::vector<Request> requests = {make_request(0, traced(2, 1), 0), make_request(1, traced(3, 1), 0)};
  RowHashes a(requests, 2);
  RowHashes b(requests, 2);
  std::vector<uint16_t> rows(5 * 6);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint16_t>(i);
  const std::vector<Scheduled> step = {{&requests[0], 2}, {&requests[1], 3}};
  const megamla_tensor y = host_tensor(rows.data(), MEGAMLA_BF16, {5, 6});
  for (RowHashes* hashes : {&a, &b}) {
    for (const int64_t layer : {0, 1}) hashes->note(layer, step, y);
  }
  Comparison same;
  a.compare(b, 1, &same);
  EXPECT_EQ(same.rows, 6);
  EXPECT_EQ(same.differing, 0);
  rows[4 * 6 + 5] ^= 1U;  // one bit in the last element of request 1's last row
  b.note(1, step, y);
  Comparison changed;
  a.compare(b, 0, &changed);
  a.compare(b, 1, &changed);
  EXPECT_EQ(changed.rows, 10);
  EXPECT_EQ(changed.differing, 1);
  EXPECT_EQ(changed.first_difference, "request 1, position 2, layer 1 of the list");
}

TEST_F(ReplayRun, CheckpointGivesTheSeededFigures) {
  ReplayOptions o = options({traced(40, 3)});
  const ReplayResult seeded = run(o);
  o.model.weights = (folder_ / "checkpoint").string();
  ASSERT_TRUE(io::write_seeded_checkpoint(io::deepseek_v41_flash(), {2}, o.model.seed, o.model.weights).ok());
  const ReplayResult stored = run(o);
  EXPECT_EQ(seeded.worst.y_l2, stored.worst.y_l2);
  EXPECT_EQ(seeded.worst.y_element, stored.worst.y_element);
  EXPECT_TRUE(stored.worst.holds);
}

TEST_F(ReplayRun, BadOptionsNameWhatIsWrong) {
  const auto message = [](const ReplayOptions& o) {
    try {
      run(o);
    } catch (const app::InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  ReplayOptions o = options({traced(4, 2)});
  o.model.layers = {3};
  EXPECT_NE(message(o).find("reads the compressed rows of layer 2"), std::string::npos) << message(o);
  o.model.layers = {99};
  EXPECT_NE(message(o).find("expected ids in [0, 42], got 99"), std::string::npos) << message(o);
  o.model.layers = {2, 2};
  EXPECT_NE(message(o).find("expected ascending ids, got 2 behind 2"), std::string::npos) << message(o);
  o.model.layers = {3, 2};
  EXPECT_NE(message(o).find("expected ascending ids, got 2 behind 3"), std::string::npos) << message(o);
  o.model.layers = {2};
  o.verify_rate = std::nan("");
  EXPECT_NE(message(o).find("--verify: expected a share in [0, 1], got nan"), std::string::npos) << message(o);
  o.verify_rate = 0.02;
  o.model.kv_dtype = "fp7";
  EXPECT_NE(message(o).find("'fp7'"), std::string::npos) << message(o);
  o.model.kv_dtype = "auto";
  o.model.weights = (folder_ / "nothing").string();
  EXPECT_NE(message(o).find("config.json"), std::string::npos) << message(o);
  o.model.weights.clear();
  o.model.exec.device = MEGAMLA_DEVICE_CUDA;
  EXPECT_NE(message(o), "") << "no silent fallback";
  o.trace = (folder_ / "missing.jsonl").string();
  EXPECT_NE(message(o).find("missing.jsonl"), std::string::npos);
}

}  // namespace
}  // namespace megamla::replay
