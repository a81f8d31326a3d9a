// kv_insert, kv_gather, kv_compress, page_layout_scores.
#include "fuzz/compare.hpp"
#include "fuzz/op_call.hpp"
#include "fuzz/targets.hpp"

namespace megamla::fuzz {
namespace {

megamla_kv_format any_format(Choices& c) {
  return c.one_of({MEGAMLA_KV_FP8_528, MEGAMLA_KV_NVFP4_288, MEGAMLA_KV_FP8_584});
}

// Equal values, any NaN for a NaN. raw: latents that may be NaN, whose sign is not for this library to keep.
void compare_records(const megamla_kv_insert_params& p, bool raw, const Snapshot& reference, const Snapshot& cpu) {
  const auto kind = static_cast<megamla_kv_format>(p.cache.format);
  const auto decode = [&](const Snapshot& snapshot, int64_t slot, float* row) {
    const auto bytes = format::slot_bytes(p.cache, slot);
    format::decode_row(kind, snapshot.of(bytes.data), snapshot.of(bytes.scale), row);
  };
  for (int64_t slot = 0; slot < format::num_slots(p.cache); ++slot) {
    float theirs[format::kHeadDim];
    float mine[format::kHeadDim];
    decode(reference, slot, theirs);
    decode(cpu, slot, mine);
    for (int d = 0; d < format::kHeadDim; ++d) {
      const bool equal = mine[d] == theirs[d] || (std::isnan(mine[d]) && std::isnan(theirs[d]));
      require(equal || (raw && mine[d] == -theirs[d]), "kv_insert: slot {} dim {}: reference {}, cpu {}", slot, d,
              theirs[d], mine[d]);
    }
  }
  if (present(p.skipped_rows)) {
    const auto skipped = [&](const Snapshot& snapshot) { return at<int64_t>(snapshot.of(p.skipped_rows), 0); };
    require(skipped(reference) == skipped(cpu), "kv_insert: reference skips {} rows, cpu {}", skipped(reference),
            skipped(cpu));
  }
}

void kv_insert(Choices& c) {
  OpCall<api::KvInsert> call("kv_insert", c);
  Views& v = call.views;
  auto& p = call.params;
  const int64_t tokens = c.in(0, 12);
  const int64_t positions = c.in(0, 40);
  p.writer = c.coin() ? MEGAMLA_WRITER_COMPRESSED : MEGAMLA_WRITER_WINDOW;
  p.compress_ratio = c.one_of({1, 2});
  p.cache = v.cache(any_format(c), Use::kOutput);
  const bool raw = c.rarely();
  p.latent = raw ? v.tensor(MEGAMLA_BF16, {tokens, 512}, 1, Use::kInput)  // any bits: NaN, infinities
                 : v.values(MEGAMLA_BF16, {tokens, 512}, 1);
  const bool rotated = c.coin();
  if (rotated) p.cos_sin = v.values(MEGAMLA_F32, {positions, 64}, 1);
  if (rotated || p.writer == MEGAMLA_WRITER_COMPRESSED || c.coin()) {
    p.positions = v.integers(c.coin() ? MEGAMLA_I64 : MEGAMLA_I32, {tokens}, 0, -1, positions);
  }
  p.slot_mapping =
      v.integers(MEGAMLA_I64, {std::max<int64_t>(tokens + c.in(-2, 2), 0)}, 0, -1, format::num_slots(p.cache));
  if (c.coin()) p.skipped_rows = v.tensor(MEGAMLA_I64, {1}, 0, Use::kOutput);
  call.inputs({&p.latent, &p.positions, &p.cos_sin, &p.slot_mapping});
  call.outputs({&p.skipped_rows});
  call.output(&p.cache);
  call.run([raw](const auto& params, const Snapshot& reference, const Snapshot& cpu) {
    compare_records(params, raw, reference, cpu);
  });
}

void kv_gather(Choices& c) {
  OpCall<api::KvGather> call("kv_gather", c);
  Views& v = call.views;
  auto& p = call.params;
  const int64_t requests = c.in(0, 4);
  const int64_t columns = c.in(0, 6);
  // The reference decodes what the CPU decodes, whatever the bytes are.
  p.cache = v.cache(any_format(c), c.coin() ? Use::kOutput : Use::kInput);
  const int64_t rows = columns * p.cache.page_size;
  p.seq_lens = v.integers(MEGAMLA_I32, {requests}, 0, -1, rows + 2);
  if (c.coin()) p.gather_lens = v.integers(MEGAMLA_I32, {requests}, 0, -1, rows + 2);
  p.block_table = v.integers(MEGAMLA_I32, {requests, columns}, 1, -1, p.cache.num_pages);
  p.offset = c.in(0, 4);
  p.out = v.tensor(MEGAMLA_BF16, {requests, c.in(0, 70), 512}, 2, Use::kOutput);
  call.inputs({&p.seq_lens, &p.gather_lens, &p.block_table});
  call.outputs({&p.out});
  call.input(&p.cache);
  call.run([](const auto& params, const Snapshot& reference, const Snapshot& cpu) {
    expect_near("kv_gather: out", params.out, reference, cpu, 0, 0);  // any NaN for a NaN
  });
}

// Positions as a step has them; the random ones before did not follow each other.
void consecutive_positions(Views& v, megamla_kv_compress_params& p, int64_t requests) {
  int64_t next[4] = {};
  for (int64_t& position : next) position = v.random(0, 20);
  for (int64_t t = 0; t < p.kv_score.shape[0]; ++t) {
    const int64_t request = at<int32_t>(p.token_to_req, t);
    if (request < 0 || request >= requests) continue;
    const int64_t position = next[request]++;
    if (p.positions.dtype == MEGAMLA_I64) {
      at<int64_t>(p.positions, t) = position;
    } else {
      at<int32_t>(p.positions, t) = static_cast<int32_t>(position);
    }
  }
}

void kv_compress(Choices& c) {
  OpCall<api::KvCompress> call("kv_compress", c);
  Views& v = call.views;
  auto& p = call.params;
  const int64_t tokens = c.in(0, 20);
  p.compress_ratio = c.one_of({2, 1});
  p.kv_score = v.values(MEGAMLA_F32, {tokens, p.compress_ratio == 2 ? 1024 : 512}, 1);
  p.weight = v.values(MEGAMLA_BF16, {512}, 0);
  if (p.compress_ratio == 2) {
    const int64_t requests = c.in(0, 4);
    const int64_t blocks = c.in(0, 5);
    p.token_to_req = v.integers(MEGAMLA_I32, {tokens}, 0, -1, requests);
    p.positions = v.integers(c.coin() ? MEGAMLA_I64 : MEGAMLA_I32, {tokens}, 0, -1, 30);
    p.state_block = v.integers(MEGAMLA_I32, {requests}, 0, -1, blocks);
    p.state = v.values(MEGAMLA_F32, {blocks, c.one_of<int64_t>({8, 16}), 1024}, 0);
    if (c.coin()) consecutive_positions(v, p, requests);
  }
  p.latent = v.tensor(MEGAMLA_BF16, {tokens, 512}, 1, Use::kOutput);
  if (c.coin()) p.written = v.tensor(MEGAMLA_U8, {tokens}, 0, Use::kOutput);
  call.inputs({&p.kv_score, &p.weight, &p.token_to_req, &p.positions, &p.state_block});
  call.outputs({&p.state, &p.latent, &p.written});
  call.limits([](const auto& params) {
    megamla_limits limits{};
    limits.tokens = params.kv_score.shape[0];
    return limits;
  });
  call.run([](const auto& params, const Snapshot& reference, const Snapshot& cpu) {
    expect_near("kv_compress: latent", params.latent, reference, cpu, 1e-6, 1.0 / 128);
    expect_near("kv_compress: state", params.state, reference, cpu, 0, 0);
    expect_same("kv_compress: written", params.written, reference, cpu);
  });
}

// A host function: no implementations to compare, so its own promises are checked.
void page_layout_scores(Choices& c) {
  Views v(c);
  megamla_kv_cache cache = v.cache(any_format(c), c.coin() ? Use::kInput : Use::kOutput);
  const int64_t last = format::num_slots(cache) - 1;
  if (c.rarely()) cache.num_pages = c.number();
  if (c.rarely()) cache.page_size = c.number();
  if (c.rarely()) cache.page_stride = c.number();
  if (c.rarely()) cache.format = static_cast<int32_t>(c.number());
  cache.layout = static_cast<int32_t>(c.number());  // does not matter
  int64_t count = c.in(0, 9);
  const megamla_tensor slots = v.integers(MEGAMLA_I64, {count}, 0, 0, std::max<int64_t>(last, 0));
  if (c.rarely()) count = -1;
  if (!is_backed(cache)) return;
  double planar = -7;
  double interleaved = -7;
  int32_t likely = -7;
  const Snapshot before;
  const megamla_status status =
      megamla_page_layout_scores(&cache, data<const int64_t>(slots), count, &planar, &interleaved, &likely);
  expect_unchanged(before, "page_layout_scores", "a question");
  if (status != MEGAMLA_OK) return require(planar == -7 && likely == -7, "page_layout_scores: refused and written");
  for (const double share : {planar, interleaved}) {
    require(share >= 0 && share <= 1, "page_layout_scores: a share of {}", share);
  }
  require(likely >= -1 && likely <= MEGAMLA_PAGE_INTERLEAVED, "page_layout_scores: layout {}", likely);
  require(likely < 0 || (likely == MEGAMLA_PAGE_PLANAR) == (planar > interleaved),
          "page_layout_scores: layout {}: {} {}", likely, planar, interleaved);
}

}  // namespace

void cache_ops(std::span<const uint8_t> decisions) {
  GuardedMemory::instance().reset();
  Choices c(decisions);
  constexpr void (*kOps[])(Choices&) = {kv_insert, kv_gather, kv_compress, page_layout_scores};
  kOps[c.byte() % std::size(kOps)](c);
}

}  // namespace megamla::fuzz
