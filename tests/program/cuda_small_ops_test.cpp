// The other small ops on a GPU against the reference: the same bytes everywhere, also where nothing may be written.
// Skipped on a machine without a GPU that the kernels run on.
#include <algorithm>

#include "format/chunked.hpp"
#include "support/gpu_problem.hpp"

namespace megamla::test {
namespace {

TEST_F(CudaOps, IndexTransforms) {
  // Requests of one token, of five, of many, of none; rows that begin at a multiple of 16 bytes, or not.
  struct Step {
    int64_t tokens, requests;
    int64_t padding;  // 0: of the rows, and none behind the last request
  };
  for (const auto& [tokens, requests, padding] : std::vector<Step>{{0, 0, 1},
                                                                   {1, 1, 1},
                                                                   {17, 9, 1},
                                                                   {500, 60, 1},
                                                                   {500, 100, 0},
                                                                   {4000, 4000, 0},
                                                                   {9000, 20000, 1},
                                                                   {131072, any(1, 90), 1}}) {
    SCOPED_TRACE(std::to_string(tokens) + " tokens of " + std::to_string(requests) + " requests");
    Problem problem;
    const int64_t columns = 40;
    const megamla_tensor table = problem.tensor(MEGAMLA_I32, {requests, columns}, padding);
    fill<int32_t>(table, [&] { return static_cast<int32_t>(any(-1, 5000)); });
    const megamla_tensor starts = problem.tensor(MEGAMLA_I32, {requests + 1});
    const megamla_tensor seq_lens = problem.tensor(MEGAMLA_I32, {requests});
    const megamla_tensor gather_lens = problem.tensor(MEGAMLA_I32, {requests});
    for (int64_t r = 0; r <= requests; ++r) {
      const int64_t owned = tokens - padding * (tokens / 20);
      at<int32_t>(starts, r) = static_cast<int32_t>(requests == 0 ? 0 : owned * r / requests);
    }
    for (int64_t r = 0; r < requests; ++r) {
      const int64_t query = at<int32_t>(starts, r + 1) - at<int32_t>(starts, r);
      at<int32_t>(seq_lens, r) = static_cast<int32_t>(query + any(-1, 1200));
      at<int32_t>(gather_lens, r) = static_cast<int32_t>(query + any(0, 127));
    }

    api::TopkToSlots slots;
    slots.topk = problem.tensor(MEGAMLA_I32, {tokens, (tokens > 1000 ? 24 : 132) + padding}, 3 * padding);
    fill<int32_t>(slots.topk, [&] { return static_cast<int32_t>(any(-2, 1300)); });
    slots.token_to_req = problem.tensor(MEGAMLA_I32, {tokens});
    fill<int32_t>(slots.token_to_req, [&] { return static_cast<int32_t>(any(-1, requests)); });
    slots.is_valid_token = problem.tensor(MEGAMLA_U8, {tokens});
    fill<uint8_t>(slots.is_valid_token, [&] { return static_cast<uint8_t>(any(0, 3)); });
    slots.block_table = table;
    slots.slots_per_page = 32;
    slots.num_pages = 4990;
    slots.slots = problem.tensor(MEGAMLA_I32, {tokens, slots.topk.shape[1]}, 2 * padding);
    slots.lens = problem.tensor(MEGAMLA_I32, {tokens});
    problem.check(slots);

    api::CombineTopkSwa combine;
    combine.topk = slots.topk;
    combine.query_start_loc = starts;
    combine.seq_lens = seq_lens;
    combine.gather_lens = gather_lens;
    combine.window = 100;
    combine.compress_ratio = static_cast<int32_t>(any(0, 2));
    combine.n = 1200;
    combine.m = 1500;
    combine.indices =
        problem.tensor(MEGAMLA_I32, {tokens, format::round_up(combine.topk.shape[1] + combine.window, 128)}, padding);
    combine.lens = problem.tensor(MEGAMLA_I32, {tokens});
    problem.check(combine);

    api::SwaMetadata swa;
    swa.query_start_loc = starts;
    swa.seq_lens = seq_lens;
    swa.slot_mapping = problem.tensor(MEGAMLA_I64, {tokens});
    fill<int64_t>(swa.slot_mapping, [&] { return any(-1, 4); });
    swa.block_table = table;
    swa.replay_start = problem.tensor(MEGAMLA_I32, {requests});
    fill<int32_t>(swa.replay_start, [&] { return static_cast<int32_t>(any(-5, 900)); });
    swa.num_decodes = requests / 2;
    swa.causal = static_cast<int32_t>(tokens % 2);
    swa.is_valid_token = problem.tensor(MEGAMLA_U8, {tokens});
    swa.token_to_req = problem.tensor(MEGAMLA_I32, {tokens - tokens / 30});
    swa.decode_swa_indices = problem.tensor(MEGAMLA_I32, {tokens / 2, 60 + padding}, 3 * padding);
    swa.decode_swa_lens = problem.tensor(MEGAMLA_I32, {tokens});
    swa.prefill_gather_lens = problem.tensor(MEGAMLA_I32, {requests - swa.num_decodes});
    problem.check(swa);
  }
}

TEST_F(CudaOps, RmsNorm) {
  for (const megamla_dtype dtype : {MEGAMLA_BF16, MEGAMLA_F32}) {
    for (const int64_t width : {1, 7, 512, 1280, 5120}) {
      for (const int64_t padding : {0, 3}) {
        SCOPED_TRACE(std::to_string(width) + " " + megamla_dtype_name(dtype));
        Problem problem;
        api::RmsNorm p;
        const int64_t rows = any(0, 300);
        p.x = problem.tensor(dtype, {rows, width}, padding);
        std::normal_distribution<float> normal;
        if (dtype == MEGAMLA_F32) fill<float>(p.x, [&] { return normal(random_); });
        if (dtype == MEGAMLA_BF16) fill_bf16(p.x, random_);
        p.weight = problem.tensor(MEGAMLA_BF16, {width});
        fill_bf16(p.weight, random_);
        p.y = problem.tensor(MEGAMLA_BF16, {rows, width}, padding);
        problem.check(p);
      }
    }
  }
}

// Positions that do not follow each other in memory. The two mathematical libraries' doubles round to the same floats.
TEST_F(CudaOps, RopeTable) {
  constexpr int64_t kApart = 3;
  for (const bool fp32_angles : {false, true}) {
    for (const int64_t rows : {0, 1, 100}) {
      SCOPED_TRACE(rows);
      Problem problem;
      api::RopeTable p;
      p.theta = 160000;
      p.factor = 16;
      p.angles = fp32_angles ? MEGAMLA_ROPE_FP32 : MEGAMLA_ROPE_EXACT;
      p.positions = problem.tensor(MEGAMLA_I64, {rows * kApart});
      fill<int64_t>(p.positions, [&] { return any(0, 1048575); });
      p.positions.shape[0] = rows;
      p.positions.stride[0] = kApart;
      p.cos_sin = problem.tensor(MEGAMLA_F32, {rows, 64}, 1);
      problem.check(p);
    }
  }
}

TEST_F(CudaOps, KvCompressOneTokenAGroup) {
  for (const int64_t tokens : {0, 1, 200}) {
    Problem problem;
    api::KvCompress p;
    p.kv_score = problem.tensor(MEGAMLA_F32, {tokens, 512}, 3);
    std::normal_distribution<float> normal;
    fill<float>(p.kv_score, [&] { return normal(random_); });
    p.weight = problem.tensor(MEGAMLA_BF16, {512});
    fill_bf16(p.weight, random_);
    p.latent = problem.tensor(MEGAMLA_BF16, {tokens, 512}, 5);
    p.written = problem.tensor(MEGAMLA_U8, {tokens});
    problem.check(p);
  }
}

// Calls longer and shorter than the ring, requests one after the other and in turn, padding, skipped requests.
TEST_F(CudaOps, KvCompressPairs) {
  for (const bool in_turn : {false, true}) {
    for (const int64_t per_request : {1, 2, 7, 40}) {
      SCOPED_TRACE(per_request);
      constexpr int64_t kRequests = 9;
      Problem problem;
      const int64_t tokens = kRequests * per_request + 5;
      api::KvCompress p;
      p.compress_ratio = 2;
      p.kv_score = problem.tensor(MEGAMLA_F32, {tokens, 1024}, per_request % 2 == 0 ? 4 : 3);
      std::normal_distribution<float> normal;
      fill<float>(p.kv_score, [&] { return normal(random_); });
      p.weight = problem.tensor(MEGAMLA_BF16, {512});
      fill_bf16(p.weight, random_);
      p.token_to_req = problem.tensor(MEGAMLA_I32, {tokens});
      p.positions = problem.tensor(MEGAMLA_I64, {tokens});
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t request = in_turn ? t % kRequests : t / per_request;
        const int64_t index = in_turn ? t / kRequests : t % per_request;
        const bool padding = t >= kRequests * per_request;
        at<int32_t>(p.token_to_req, t) = padding ? -1 : static_cast<int32_t>(request);
        at<int64_t>(p.positions, t) = 3 * request + index;
      }
      p.state_block = problem.tensor(MEGAMLA_I32, {kRequests});
      for (int64_t r = 0; r < kRequests; ++r) at<int32_t>(p.state_block, r) = static_cast<int32_t>(r == 4 ? 0 : r + 1);
      p.state = problem.tensor(MEGAMLA_F32, {kRequests, 8, 1024});  // the last request's block is out of range
      fill<float>(p.state, [&] { return normal(random_); });
      p.latent = problem.tensor(MEGAMLA_BF16, {tokens, 512}, 5);
      p.written = problem.tensor(MEGAMLA_U8, {tokens});
      problem.check(p);
    }
  }
}

TEST_F(CudaOps, OutputCast) {
  for (const megamla_dtype dtype : {MEGAMLA_BF16, MEGAMLA_F32}) {
    for (const int64_t tokens : {0, 1, 5, 130}) {
      for (const int64_t padding : {0, 3}) {
        std::normal_distribution<float> normal;
        const auto values = [&](const megamla_tensor& t) {
          if (dtype == MEGAMLA_BF16) return fill_bf16(t, random_);
          fill<float>(t,
                      [&] { return random_() % 50 == 0 ? 0 : std::ldexp(normal(random_), int(random_() % 60) - 40); });
        };
        SCOPED_TRACE(std::to_string(tokens) + " " + megamla_dtype_name(dtype));
        Problem pair;
        api::OutputCast p;
        const int64_t groups = any(1, 3);
        const int64_t a = format::round_up(tokens, 4) + 4;
        p.in = pair.tensor(dtype, {tokens, 8 * groups, 512}, padding);
        values(p.in);
        p.out = pair.tensor(MEGAMLA_F8_E4M3, {tokens, groups, 4096});
        const megamla_tensor words = pair.tensor(MEGAMLA_I32, {groups, 32, a});
        p.out_scale = api::with_strides(api::tensor(words.data, {tokens, groups, 32}, MEGAMLA_I32, words.cuda_device),
                                        {1, 32 * a, a});
        pair.check(p);

        Problem mxfp8;
        api::OutputCast q;
        q.target = MEGAMLA_CAST_MXFP8;
        const int64_t columns = 32 * any(1, 40);
        q.in = mxfp8.tensor(dtype, {tokens, columns}, padding);
        values(q.in);
        q.out = mxfp8.tensor(MEGAMLA_F8_E4M3, {tokens, columns});
        q.out_scale = mxfp8.tensor(MEGAMLA_F8_E8M0, {format::f8_128x4_size(tokens, columns / 32)});
        mxfp8.check(q);
      }
    }
  }
}

TEST_F(CudaOps, PermuteWeights) {
  const auto bytes = [&](const megamla_tensor& t) {
    const int64_t count = t.shape[0] * t.stride[0] * megamla_dtype_size(static_cast<megamla_dtype>(t.dtype));
    for (int64_t i = 0; i < count; ++i) data<uint8_t>(t)[i] = static_cast<uint8_t>(random_());
  };
  for (const megamla_dtype dtype : {MEGAMLA_U8, MEGAMLA_BF16, MEGAMLA_F32, MEGAMLA_I64}) {
    for (const megamla_permute_kind kind :
         {MEGAMLA_PERMUTE_Q, MEGAMLA_PERMUTE_PAD_Q, MEGAMLA_PERMUTE_O, MEGAMLA_PERMUTE_O_CHUNKS}) {
      Problem problem;
      api::PermuteWeights p;
      p.kind = kind;
      const int64_t width = kind == MEGAMLA_PERMUTE_O ? 4096 : kind == MEGAMLA_PERMUTE_O_CHUNKS ? 128 : 512;
      const int64_t heads = any(1, 9);
      p.in = problem.tensor(dtype, {any(0, 5), heads, width});
      bytes(p.in);
      p.out = problem.tensor(dtype, {p.in.shape[0], kind == MEGAMLA_PERMUTE_PAD_Q ? heads + 5 : heads, width});
      problem.check(p);
    }
  }
  Problem query;
  api::PermuteWeights p;
  p.kind = MEGAMLA_PERMUTE_WQ_B;
  p.in = query.tensor(MEGAMLA_F8_E4M3, {3 * 512, 160});
  p.in_scale = query.tensor(MEGAMLA_F8_E8M0, {3 * 16, 5});
  bytes(p.in);
  bytes(p.in_scale);
  p.out = query.tensor(MEGAMLA_F8_E4M3, {3 * 512, 160});
  p.out_scale = query.tensor(MEGAMLA_F8_E8M0, {3 * 512, 5});
  p.out_scale_packed = query.tensor(MEGAMLA_I32, {2, 3 * 512});
  query.check(p);

  Problem output;
  api::PermuteWeights q;
  q.kind = MEGAMLA_PERMUTE_WO_A;
  q.in = output.tensor(MEGAMLA_F8_E4M3, {2 * 64, 4096});
  q.in_scale = output.tensor(MEGAMLA_F8_E8M0, {4, 128});
  bytes(q.in);
  bytes(q.in_scale);
  q.out = output.tensor(MEGAMLA_F8_E4M3, {2, 64, 4096});
  q.out_scale = output.tensor(MEGAMLA_F8_E8M0, {2, 64, 128});
  q.out_scale_packed = output.tensor(MEGAMLA_I32, {2, 32, 64});
  output.check(q);
}

TEST(CudaDevice, WithoutAGpuTheOpSaysWhatIsMissing) {
  bool there = true;
  try {
    app::gpu::require();
  } catch (const app::InputError&) {
    there = false;
  }
  if (there) GTEST_SKIP() << "there is a GPU";
  float x[8] = {};
  api::RmsNorm p;
  p.x = api::tensor(x, {1, 2}, MEGAMLA_F32, 0);
  p.weight = api::tensor(x + 2, {2}, MEGAMLA_BF16, 0);
  p.y = api::tensor(x + 4, {1, 2}, MEGAMLA_BF16, 0);
  const api::Result refused = api::run(p);
  EXPECT_EQ(refused.code(), MEGAMLA_UNSUPPORTED);
#if MEGAMLA_HAVE_CUDA
  EXPECT_NE(refused.message().find("rms_norm: device: expected a GPU of compute capability 9.0"), std::string::npos)
      << refused.message();
#else
  EXPECT_NE(refused.message().find("this build has no implementation for device cuda"), std::string::npos)
      << refused.message();
#endif
}

}  // namespace
}  // namespace megamla::test
