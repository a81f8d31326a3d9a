// decode_attention over random slots of large pools; prefill_attention over gathered rows.
#include <algorithm>
#include <map>
#include <random>

#include "bench/bench.hpp"
#include "check/kv_formats.hpp"
#include "command.hpp"
#include "core/tensor.hpp"
#include "format/chunked.hpp"
#include "format/page.hpp"
#include "megamla/decode_attention.h"
#include "megamla/prefill_attention.h"

namespace megamla::bench {
namespace {

constexpr int64_t kDims = 512;
constexpr int64_t kPositions = 4096;
constexpr int64_t kRows = 16384;  // that the keys of a prefill chunk come from

// q.k and p.v over every head: two products of 512 dims per key.
double attention_flops(int64_t tokens, int64_t heads, double keys) {
  return 4.0 * static_cast<double>(tokens) * static_cast<double>(heads) * keys * kDims;
}

struct Common {
  megamla_tensor q, positions, cos_sin, sink, out, out_scale;
};

Common make_common(app::Arena& arena, int64_t tokens, int64_t heads, const std::string& output) {
  Common c;
  c.q = arena.tensor(MEGAMLA_BF16, {tokens, heads, kDims});
  fill_bf16(c.q.data, tokens * heads * kDims, 11);
  c.positions = arena.tensor(MEGAMLA_I64, {tokens});
  for (int64_t t = 0; t < tokens; ++t) at<int64_t>(c.positions, t) = t % kPositions;
  c.cos_sin = arena.tensor(MEGAMLA_F32, {kPositions, 64});
  std::fill_n(data<float>(c.cos_sin), kPositions * 64, 0.70710678F);
  c.sink = arena.tensor(MEGAMLA_F32, {heads});
  if (output == "bf16") {
    c.out = arena.tensor(MEGAMLA_BF16, {tokens, heads, kDims});
    return c;
  }
  const int64_t a = format::round_up(tokens, 4);
  c.out = arena.tensor(MEGAMLA_F8_E4M3, {tokens, heads / 8, 4096});
  c.out_scale = arena.tensor(MEGAMLA_I32, {tokens, heads / 8, 32});
  c.out_scale.data = arena.bytes(heads / 8 * 32 * a * 4);
  c.out_scale.stride[0] = 1;
  c.out_scale.stride[1] = 32 * a;
  c.out_scale.stride[2] = a;
  return c;
}

template <class Params>
void set_common(Params& p, const Common& c, const std::string& output) {
  p.q = c.q;
  p.q_layout = MEGAMLA_Q_CHUNKED;
  p.positions = c.positions;
  p.cos_sin = c.cos_sin;
  p.attn_sink = c.sink;
  p.output = output == "bf16" ? MEGAMLA_OUTPUT_BF16 : MEGAMLA_OUTPUT_FP8_PAIR;
  p.out = c.out;
  p.out_scale = c.out_scale;
}

// A pool whose block stride is the page padded as engines pad it.
megamla_kv_cache make_pool(app::Arena& arena, int64_t bytes, const std::string& name, int64_t page_size,
                           uint64_t seed) {
  megamla_kv_cache c{};
  const megamla_kv_format kind = check::kv_format(name);
  c.format = kind;
  c.cuda_device = arena.cuda_device();
  c.page_size = page_size;
  c.page_stride = format::round_up(c.page_size * format::record_bytes(kind), format::page_alignment(kind));
  c.num_pages = bytes / c.page_stride;
  c.data = arena.bytes(c.num_pages * c.page_stride);
  fill_cache(c, seed);
  return c;
}

// Slots in [begin, end).
void fill_random(const megamla_tensor& t, int64_t begin, int64_t end, std::mt19937_64& random) {
  std::uniform_int_distribution<int32_t> any(static_cast<int32_t>(begin), static_cast<int32_t>(end - 1));
  for (int64_t i = 0; i < t.shape[0] * t.shape[1]; ++i) data<int32_t>(t)[i] = any(random);
}
megamla_tensor random_slots(app::Arena& arena, int64_t rows, int64_t width, int64_t begin, int64_t end,
                            std::mt19937_64& random) {
  const megamla_tensor t = arena.tensor(MEGAMLA_I32, {rows, width});
  fill_random(t, begin, end, random);
  return t;
}

// A window as a request has it: consecutive positions, in pages that lie anywhere in the pool.
megamla_tensor window_slots_of(app::Arena& arena, int64_t rows, int64_t width, const megamla_kv_cache& cache,
                               std::mt19937_64& random) {
  const megamla_tensor t = arena.tensor(MEGAMLA_I32, {rows, width});
  std::uniform_int_distribution<int64_t> any_page(0, cache.num_pages - 1);
  std::uniform_int_distribution<int64_t> any_row(0, cache.page_size - 1);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t page = any_page(random);
    int64_t in_page = any_row(random);
    for (int64_t i = 0; i < width; ++i, ++in_page) {
      if (in_page == cache.page_size) {
        in_page = 0;
        page = any_page(random);
      }
      at<int32_t>(t, row, i) = static_cast<int32_t>(page * cache.page_size + in_page);
    }
  }
  return t;
}

struct Pools {
  explicit Pools(const Options& o)
      : arena(o.device()),
        window(make_pool(arena, pool_bytes(o), o.window_format, 32, 1)),
        compressed(make_pool(arena, pool_bytes(o), o.topk_format, 64, 2)) {}
  // `compressed_keys`: on average.
  double key_bytes(int64_t window_keys, double compressed_keys) const {
    const auto record = [](const megamla_kv_cache& c) {
      return static_cast<double>(format::record_bytes(static_cast<megamla_kv_format>(c.format)));
    };
    return static_cast<double>(window_keys) * record(window) + compressed_keys * record(compressed);
  }

  Inputs arena;
  megamla_kv_cache window, compressed;
};

// decode_attention over the pools, with a list of slots for each set of inputs.
struct PagedCall {
  PagedCall(const Options& o, Pools& pools, int64_t heads, int64_t token_count, int64_t topk)
      : arena(&pools.arena), exec(o.exec), tokens(token_count) {
    set_common(params, make_common(arena, tokens, heads, o.output), o.output);
    params.window = pools.window;
    params.compressed = pools.compressed;
    megamla_limits limits{};
    limits.tokens = tokens;
    limits.heads = heads;
    limits.window_width = o.window;
    limits.compressed_width = topk;
    take_workspace(arena, exec, megamla_decode_attention_workspace_size, limits);
  }

  Row time(const Options& o) {
    const auto choose = [&](int i) {
      params.window_slots = slice(window_slots, i * tokens, (i + 1) * tokens);
      params.compressed_slots = slice(compressed_slots, i * tokens, (i + 1) * tokens);
      if (present(compressed_lens)) {
        params.window_lens = slice(window_lens, i * tokens, (i + 1) * tokens);
        params.compressed_lens = slice(compressed_lens, i * tokens, (i + 1) * tokens);
      }
    };
    choose(0);
    Row row;
    row.implementation = implementation(params, exec);
    const auto call = [&](int i) {
      choose(i);
      run_op(arena, params, exec);
    };
    time_beside_gemms(o, sets, call, row);
    return row;
  }

  app::Arena arena;
  megamla_exec exec;
  int64_t tokens;
  api::DecodeAttention params;
  int sets = 0;
  megamla_tensor window_slots{}, compressed_slots{};  // [sets * tokens, width]
  megamla_tensor window_lens{}, compressed_lens{};    // [sets * tokens]; absent: the widths
};

// Gives the call lengths; how many compressed keys a token then has on average.
double fill_lengths(const Options& o, int64_t topk, PagedCall& call, std::mt19937_64& random) {
  if (o.lengths == "none") return static_cast<double>(topk);
  const int64_t rows = call.sets * call.tokens;
  call.window_lens = call.arena.tensor(MEGAMLA_I32, {rows});
  std::fill_n(data<int32_t>(call.window_lens), rows, static_cast<int32_t>(o.window));
  call.compressed_lens = call.arena.tensor(MEGAMLA_I32, {rows});
  std::uniform_int_distribution<int32_t> any(o.lengths == "full" ? static_cast<int32_t>(topk) : 1,
                                             static_cast<int32_t>(topk));
  double sum = 0;
  for (int64_t row = 0; row < rows; ++row) sum += data<int32_t>(call.compressed_lens)[row] = any(random);
  return sum / static_cast<double>(rows);
}

// The op's name in a record: rows of other modes are no rows of decode_attention's cells.
std::string decode_name(const Options& o) {
  std::string name = "decode_attention";
  if (o.lengths != "none") name += "/" + o.lengths + "_lengths";
  if (o.batch_invariant) name += "/batch_invariant";
  return name;
}

}  // namespace

void bench_decode_attention(const Options& o, const Emit& emit) {
  Pools pools(o);
  std::mt19937_64 random(7);
  for (const int64_t heads : o.heads) {
    for (const int64_t topk : o.topk) {
      for (const int64_t tokens : o.tokens) {
        PagedCall call(o, pools, heads, tokens, topk);
        call.params.batch_invariant = o.batch_invariant ? 1 : 0;
        double key_bytes = static_cast<double>(tokens) * pools.key_bytes(o.window, static_cast<double>(topk));
        call.sets = input_sets(o, key_bytes);
        call.window_slots = window_slots_of(call.arena, call.sets * tokens, o.window, pools.window, random);
        call.compressed_slots =
            random_slots(call.arena, call.sets * tokens, topk, 0, format::num_slots(pools.compressed), random);
        const double keys = fill_lengths(o, topk, call, random);
        key_bytes *= pools.key_bytes(o.window, keys) / pools.key_bytes(o.window, static_cast<double>(topk));
        Row row = call.time(o);
        row.cell = {{"op", decode_name(o)},         {"heads", heads},    {"tokens", tokens},
                    {"window", o.window},           {"topk", topk},      {"window_format", o.window_format},
                    {"topk_format", o.topk_format}, {"output", o.output}};
        if (o.lengths != "none") row.cell["keys"] = static_cast<double>(o.window) + keys;
        row.flops = attention_flops(tokens, heads, static_cast<double>(o.window) + keys);
        row.bytes = key_bytes + static_cast<double>(tokens * heads * kDims * 3);
        emit(std::move(row));
      }
    }
  }
}

namespace {

void bench_gathered(const Options& o, const Emit& emit) {
  Inputs pools(o.device());
  const int64_t row_sets = kColdBytes / (kRows * kDims * 2) + 1;
  std::mt19937_64 random(7);
  std::vector<megamla_tensor> rows;
  for (int64_t i = 0; i < row_sets; ++i) {
    rows.push_back(pools.tensor(MEGAMLA_BF16, {kRows, kDims}));
    fill_bf16(rows.back().data, kRows * kDims, static_cast<uint64_t>(i));
  }
  std::map<int64_t, double> gather_us;  // by tokens: what filling these rows from the caches takes
  for (const int64_t tokens : o.tokens) {
    gather_us[tokens] = 1e6 * (time_gather(o, o.topk_format, kRows).median() +
                               time_gather(o, o.window_format, tokens + o.window - 1).median());
  }
  for (const int64_t heads : o.heads) {
    for (const int64_t topk : o.topk) {
      for (const int64_t tokens : o.tokens) {
        app::Arena arena(&pools);
        megamla_exec exec = o.exec;
        const int64_t keys = o.window + topk;
        megamla_prefill_attention_params p;
        megamla_prefill_attention_init(&p);
        set_common(p, make_common(arena, tokens, heads, o.output), o.output);
        const double row_bytes = static_cast<double>(std::min(kRows, tokens * keys)) * kDims * 2;
        const int sets = input_sets(o, row_bytes);
        const megamla_tensor indices = random_slots(arena, sets * tokens, keys, 0, kRows, random);
        p.kv = rows[0];
        p.indices = slice(indices, 0, tokens);
        megamla_limits limits{};
        limits.tokens = tokens;
        limits.heads = heads;
        limits.compressed_width = keys;
        take_workspace(arena, exec, megamla_prefill_attention_workspace_size, limits);
        Row row;
        row.cell = {{"op", "prefill_attention"},
                    {"heads", heads},
                    {"tokens", tokens},
                    {"topk", keys},
                    {"path", "gathered"},
                    {"output", o.output},
                    {"gather_us", gather_us[tokens]}};
        row.implementation = implementation(p, exec);
        row.flops = attention_flops(tokens, heads, static_cast<double>(keys));
        row.bytes = row_bytes + static_cast<double>(tokens * heads * kDims * 3);  // each row once, q and output
        const auto call = [&](int i) {
          p.kv = rows[static_cast<size_t>(i % row_sets)];
          p.indices = slice(indices, i * tokens, (i + 1) * tokens);
          run_op(arena, p, exec);
        };
        time_beside_gemms(o, sets, call, row);
        emit(std::move(row));
      }
    }
  }
}

// Straight from the pages: the decode op on a chunk of consecutive tokens, whose windows overlap and whose compressed
// keys lie within kRows slots.
void bench_paged(const Options& o, const Emit& emit) {
  Pools pools(o);
  std::mt19937_64 random(7);
  for (const int64_t heads : o.heads) {
    for (const int64_t topk : o.topk) {
      for (const int64_t tokens : o.tokens) {
        PagedCall call(o, pools, heads, tokens, topk);
        const int64_t compressed_rows = std::min(kRows, tokens * topk);
        const double row_bytes = pools.key_bytes(tokens + o.window, static_cast<double>(compressed_rows));
        call.sets = input_sets(o, row_bytes);
        call.window_slots = call.arena.tensor(MEGAMLA_I32, {call.sets * tokens, o.window});
        call.compressed_slots = call.arena.tensor(MEGAMLA_I32, {call.sets * tokens, topk});
        for (int64_t i = 0; i < call.sets; ++i) {
          const int64_t first = i * (tokens + o.window) % (format::num_slots(pools.window) - tokens - o.window + 1);
          for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t w = 0; w < o.window; ++w)
              at<int32_t>(call.window_slots, i * tokens + t, w) = static_cast<int32_t>(first + t + w);
          }
          const int64_t begin = i * kRows % (format::num_slots(pools.compressed) - kRows + 1);
          fill_random(slice(call.compressed_slots, i * tokens, (i + 1) * tokens), begin, begin + kRows, random);
        }
        Row row = call.time(o);
        row.cell = {{"op", "prefill_attention"},
                    {"heads", heads},
                    {"tokens", tokens},
                    {"topk", o.window + topk},
                    {"path", "paged"},
                    {"output", o.output},
                    {"window_format", o.window_format},
                    {"topk_format", o.topk_format}};
        row.flops = attention_flops(tokens, heads, static_cast<double>(o.window + topk));
        row.bytes = row_bytes + static_cast<double>(tokens * heads * kDims * 3);
        emit(std::move(row));
      }
    }
  }
}

}  // namespace

void bench_prefill_attention(const Options& o, const Emit& emit) {
  for (const std::string& path : o.paths) path == "paged" ? bench_paged(o, emit) : bench_gathered(o, emit);
}

}  // namespace megamla::bench
