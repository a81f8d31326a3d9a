// Host functions: plans, the built-in top-k, output pairs, a layer's configuration, the workspace. There are no
// implementations to compare, so their own promises are checked.
#include "fuzz/targets/host_functions.hpp"

#include <numeric>
#include <vector>

#include "fuzz/finding.hpp"
#include "fuzz/snapshot.hpp"
#include "fuzz/spoil.hpp"

namespace megamla::fuzz {

void split_batch(Choices& c) {
  Views v(c);
  const int64_t requests = c.in(0, 12);
  const megamla_tensor lens = v.integers(MEGAMLA_I32, {requests}, 0, 0, 5);
  const int64_t threshold = c.rarely() ? c.number() : c.in(1, 4);
  megamla_batch_split split{-7, -7, -7, -7};
  const megamla_status status = megamla_split_batch(data<int32_t>(lens), requests, threshold, &split);
  if (status != MEGAMLA_OK) {
    require(split.num_decodes == -7 && split.num_prefill_tokens == -7, "split_batch: refused and written");
    return;
  }
  const int64_t tokens = std::accumulate(data<int32_t>(lens), data<int32_t>(lens) + requests, int64_t{0});
  require(split.num_decodes + split.num_prefills == requests, "split_batch: {} decodes and {} prefills of {}",
          split.num_decodes, split.num_prefills, requests);
  require(split.num_decode_tokens + split.num_prefill_tokens == tokens, "split_batch: tokens are lost");
}

void prefill_chunk_plan(Choices& c) {
  Views v(c);
  const int64_t requests = c.in(0, 12);
  const megamla_tensor seq_lens = v.integers(MEGAMLA_I32, {requests}, 0, 0, 100);
  const megamla_tensor query_lens = v.integers(MEGAMLA_I32, {requests}, 0, 0, 50);
  const Block chunks = GuardedMemory::instance().take(requests * static_cast<int64_t>(sizeof(megamla_prefill_chunk)),
                                                      alignof(megamla_prefill_chunk), kUnwritten);
  api::PrefillChunkPlan p;
  p.seq_lens = data<int32_t>(seq_lens);
  p.query_lens = data<int32_t>(query_lens);
  p.num_requests = requests;
  int64_t* const numbers[] = {&p.compress_ratio, &p.has_compressed, &p.chunk_size,
                              &p.window,         &p.max_model_len,  &p.max_num_batched_tokens};
  for (int64_t* number : numbers) *number = c.in(0, 2);
  p.window = c.in(1, 128);
  p.max_model_len = c.in(0, 2000);
  p.max_num_batched_tokens = c.in(0, 100);
  if (c.rarely()) *numbers[c.byte() % std::size(numbers)] = c.number();
  int64_t count = -7;
  if (megamla_prefill_chunk_plan(&p, reinterpret_cast<megamla_prefill_chunk*>(chunks.begin), &count) != MEGAMLA_OK) {
    require(count == -7, "prefill_chunk_plan: refused and written");
    return;
  }
  int64_t next = 0;
  for (int64_t i = 0; i < count; ++i) {
    megamla_prefill_chunk chunk{};
    std::memcpy(&chunk, chunks.begin + i * static_cast<int64_t>(sizeof(chunk)), sizeof(chunk));
    require(chunk.start == next && chunk.end > next && chunk.n >= 0 && chunk.m >= chunk.n,
            "prefill_chunk_plan: chunk {} is [{}, {}) after {}, n {}, m {}", i, chunk.start, chunk.end, next, chunk.n,
            chunk.m);
    next = chunk.end;
  }
  require(next == requests, "prefill_chunk_plan: {} of {} requests are in chunks", next, requests);
}

void compressed_slot_mapping(Choices& c) {
  Views v(c);
  const int64_t requests = c.in(0, 4);
  int64_t tokens = 0;
  megamla_tensor query_start_loc = start_locations(v, requests, 5, &tokens);
  megamla_tensor seq_lens = v.integers(MEGAMLA_I32, {requests}, 0, 0, 60);
  megamla_tensor block_table = v.integers(MEGAMLA_I32, {requests, c.in(0, 8)}, 1, -1, 9);
  megamla_tensor slot_mapping = v.tensor(MEGAMLA_I64, {tokens + c.in(0, 3)}, 0, Use::kOutput);
  const int64_t states = c.rarely() ? c.number() : c.in(1, 9);
  megamla_tensor* const all[] = {&query_start_loc, &seq_lens, &block_table, &slot_mapping};
  if (c.rarely()) all[c.byte() % std::size(all)]->shape[c.byte() % 2] = c.number();
  if (c.rarely()) all[c.byte() % std::size(all)]->stride[c.byte() % 2] = c.number();
  if (c.rarely()) all[c.byte() % std::size(all)]->data = all[c.byte() % std::size(all)]->data;
  if (!std::all_of(std::begin(all), std::end(all), [](const auto* t) { return is_backed(*t); })) return;
  const Snapshot before;
  if (megamla_compressed_slot_mapping(&query_start_loc, &seq_lens, &block_table, states, &slot_mapping) == MEGAMLA_OK) {
    return;
  }
  expect_unchanged(before, "compressed_slot_mapping");
}

void builtin_topk(Choices& c) {
  Views v(c);
  const int64_t tokens = c.in(0, 12);
  const int64_t width = c.in(0, 20);
  const int64_t ratio = c.rarely() ? c.number() : c.in(1, 2);
  megamla_tensor positions = v.integers(c.coin() ? MEGAMLA_I64 : MEGAMLA_I32, {tokens}, 1, -1, 60);
  megamla_tensor topk = v.tensor(MEGAMLA_I32, {tokens, width}, 2, Use::kOutput);
  for (megamla_tensor* t : {&positions, &topk}) {
    if (c.rarely()) spoil_word(c, *t);
    if (!is_backed(*t)) return;
  }
  const Snapshot before;
  if (megamla_builtin_topk(&positions, ratio, &topk) != MEGAMLA_OK) return expect_unchanged(before, "builtin_topk");
  for (int64_t t = 0; t < topk.shape[0]; ++t) {
    const int64_t position = index_at(positions, t);
    const int64_t keys = position < 0 ? 0 : std::min<int64_t>(position, INT32_MAX - 1) / ratio + 1;
    int64_t newest = -1;
    for (int64_t k = 0; k < topk.shape[1]; ++k) {
      const int64_t key = at<int32_t>(topk, t, k);
      require(key < keys && (key == -1 || key > newest), "builtin_topk: {} after {} of {} keys", key, newest, keys);
      newest = key < 0 ? INT32_MAX : key;
    }
  }
}

// The views of a pair lie in its bytes, and so do those of a slice.
void output_pair(Choices& c) {
  const int64_t tokens = c.rarely() ? c.number() : c.in(0, 9);
  const int64_t groups = c.rarely() ? c.number() : c.in(0, 16);
  const int64_t bytes = megamla_output_pair_bytes(tokens, groups);
  if (bytes > GuardedMemory::kCapacity) return;
  const Block block = GuardedMemory::instance().take(std::max<int64_t>(bytes, 0), 16, kUnwritten);
  megamla_tensor data{};
  megamla_tensor scale{};
  const megamla_status made = megamla_output_pair_views(block.begin, tokens, groups, -1, &data, &scale);
  require((made == MEGAMLA_OK) == (bytes >= 0), "output_pair: {} tokens of {} groups have {} bytes", tokens, groups,
          bytes);
  if (made != MEGAMLA_OK) return;
  require(is_backed(data) && is_backed(scale), "output_pair: views beyond its {} bytes", bytes);
  if (c.rarely()) spoil_word(c, data);
  if (c.rarely()) spoil_word(c, scale);
  const int64_t begin = c.rarely() ? c.number() : c.in(0, 9);
  const int64_t end = c.rarely() ? c.number() : c.in(0, 9);
  megamla_tensor data_slice{};
  megamla_tensor scale_slice{};
  if (megamla_output_pair_slice(&data, &scale, begin, end, &data_slice, &scale_slice) != MEGAMLA_OK) return;
  require(data_slice.shape[0] == end - begin && scale_slice.shape[0] == end - begin, "output_pair: a slice of {} rows",
          data_slice.shape[0]);
  if (!is_backed(data) || !is_backed(scale)) return;
  require(is_backed(data_slice) && is_backed(scale_slice), "output_pair: rows {} to {} beyond the pair", begin, end);
}

// is_supported and create agree; sizes are no negative numbers.
void layer_config(Choices& c) {
  api::LayerConfig config;
  config.compress_ratio = c.in(0, 2);
  config.layer_id = c.in(0, 3);
  config.kv_source_layer = c.in(0, 3);
  config.window_format = static_cast<int32_t>(c.in(0, 3));
  config.compressed_format = static_cast<int32_t>(c.in(0, 3));
  config.tp_size = c.one_of<int64_t>({1, 2, 3, 8});
  config.tp_rank = c.in(0, 7);
  config.quantize_z = static_cast<int32_t>(c.in(0, 1));
  for (int64_t i = c.in(0, 3); i > 0; --i) spoil_word(c, config);
  if (config.struct_size > sizeof(config)) config.struct_size = sizeof(config);
  for (const megamla_device device : {MEGAMLA_DEVICE_REFERENCE, MEGAMLA_DEVICE_CPU}) {
    const megamla_status supported = megamla_layer_is_supported(&config, device);
    api::Layer layer;
    const api::Result created = api::create(config, device, &layer);
    require(created.code() == supported && created.ok() == (layer != nullptr), "layer: supported {}, create says: {}",
            static_cast<int>(supported), created.message());
    megamla_layer_can_quantize_z(&config);
    megamla_layer_small_step_support(&config, device);
    if (!created.ok()) continue;
    const int64_t threads = c.rarely() ? c.number() : c.in(0, 4);
    int64_t bytes = -7;
    const megamla_status sized = megamla_layer_workspace_size(layer.get(), device, threads, &bytes);
    require(sized == MEGAMLA_OK ? bytes >= 0 : bytes == -7, "layer: a workspace of {} bytes", bytes);
    require(megamla_layer_weight_bytes(layer.get()) == 0 && megamla_layer_is_loaded(layer.get()) != MEGAMLA_OK,
            "layer: weights that nobody has loaded");
  }
}

// Views lie in the buffer, apart from each other; a retained span survives what the contract says and nothing else.
void workspace(Choices& c) {
  constexpr int64_t kAlignment = 256;
  const Block block = GuardedMemory::instance().take(c.in(0, 9) * 1024 + c.in(0, 300), kAlignment, kUnwritten);
  api::Workspace made;
  const int64_t claimed = c.rarely() ? c.number() : block.bytes;
  if (!api::create(block.begin, claimed, nullptr, nullptr, &made).ok()) return;
  if (claimed > block.bytes) return;
  uint64_t key = 0;
  int64_t kept = 0;  // bytes of the span that must be intact, 0: none
  const auto aligned = [](int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  for (int64_t step = c.in(0, 12); step > 0; --step) {
    if (c.rarely()) megamla_workspace_lock(made.get());
    if (c.coin()) {
      int64_t sizes[3];
      void* views[3] = {};
      for (int64_t& size : sizes) size = c.rarely() ? c.number() : c.in(0, 2000);
      const int64_t count = c.in(0, 3);
      if (megamla_workspace_head(made.get(), sizes, count, views) != MEGAMLA_OK) continue;
      int64_t offset = 0;
      for (int64_t i = 0; i < count; ++i) {
        require(views[i] == block.begin + offset, "workspace: view {} lies elsewhere", i);
        offset += aligned(sizes[i]);
      }
      require(offset <= claimed, "workspace: views of {} bytes in {}", offset, claimed);
      if (offset > claimed - kept) kept = 0;
      continue;
    }
    const uint64_t wanted = c.byte() % 2;
    const int64_t bytes = c.rarely() ? c.number() : c.in(0, 3) * 500;
    void* span = nullptr;
    int32_t intact = -7;
    if (megamla_workspace_retained(made.get(), wanted, bytes, &span, &intact) != MEGAMLA_OK) continue;
    const auto* begin = static_cast<const uint8_t*>(span);
    require(begin >= block.begin && begin + aligned(bytes) <= block.begin + claimed, "workspace: a span beyond it");
    const bool same = kept > 0 && kept == aligned(bytes) && key == wanted;
    require((intact == 1) == same, "workspace: span of {} bytes, intact {}", bytes, intact);
    key = wanted;
    kept = aligned(bytes);
  }
}

}  // namespace megamla::fuzz
