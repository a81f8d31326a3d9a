// Arguments at the edges of 64 bits, empty tensors whose strides and memory mean nothing, numbers that no enumeration
// has: accepted or refused as the contract says, without arithmetic that overflows (the sanitizer build judges that).
#include <gtest/gtest.h>

#include <array>
#include <climits>
#include <string>

#include "megamla/megamla.hpp"

namespace megamla::test {
namespace {

constexpr int64_t kHuge = INT64_MAX - 31;

const megamla_device kDevices[] = {MEGAMLA_DEVICE_REFERENCE, MEGAMLA_DEVICE_CPU};

// Extents that no memory has; a stride is only looked at where it is taken.
megamla_tensor huge(megamla_tensor t, int dimension) {
  t.shape[dimension] = INT64_MAX;
  return t;
}

// No memory, and strides whose products leave 64 bits.
megamla_tensor empty(megamla_dtype dtype, std::initializer_list<int64_t> shape) {
  megamla_tensor t = api::tensor(static_cast<void*>(nullptr), shape, dtype);
  for (int d = 0; d < t.ndim; ++d) t.stride[d] = kHuge;
  return t;
}

TEST(OddArguments, ExtentsWhoseProductLeaves64Bits) {
  std::array<int32_t, 8> memory{};
  api::TopkToSlots p;
  p.topk = api::tensor(memory.data(), {1, 2});
  p.token_to_req = api::tensor(memory.data(), {1});
  p.block_table = api::tensor(memory.data(), {2, 1});
  p.slots = api::tensor(memory.data() + 4, {1, 2});
  p.lens = api::tensor(memory.data() + 6, {1});
  for (const megamla_device device : kDevices) {
    EXPECT_TRUE(api::supports(p, device)) << megamla_last_error();
    for (int dimension = 0; dimension < 2; ++dimension) {
      api::TopkToSlots odd = p;
      odd.topk = huge(odd.topk, dimension);
      EXPECT_EQ(api::supports(odd, device).code(), MEGAMLA_INVALID_ARGUMENT);
      odd = p;
      odd.topk.shape[0] = INT64_MAX / 2;
      odd.topk.shape[1] = INT64_MAX / 2;
      EXPECT_EQ(api::supports(odd, device).code(), MEGAMLA_INVALID_ARGUMENT);
      odd = p;
      odd.block_table = huge(odd.block_table, dimension);
      EXPECT_EQ(api::supports(odd, device).code(), MEGAMLA_INVALID_ARGUMENT);
    }
  }
}

TEST(OddArguments, ListsWithoutColumnsNeedNoMemory) {
  std::array<int32_t, 3> requests{0, 1, 0};
  std::array<int32_t, 3> lens{7, 7, 7};
  api::TopkToSlots p;
  p.topk = empty(MEGAMLA_I32, {3, 0});
  p.token_to_req = api::tensor(requests.data(), {3});
  p.block_table = empty(MEGAMLA_I32, {2, 0});
  p.slots = empty(MEGAMLA_I32, {3, 0});
  p.lens = api::tensor(lens.data(), {3});
  for (const megamla_device device : kDevices) {
    lens.fill(7);
    EXPECT_TRUE(api::run(p, api::Exec(device))) << megamla_last_error();
    EXPECT_EQ(lens, (std::array<int32_t, 3>{0, 0, 0}));
    // The same with memory: its rows are no nearer for that.
    p.topk.data = p.slots.data = requests.data();
    p.block_table.data = requests.data();
    EXPECT_TRUE(api::run(p, api::Exec(device))) << megamla_last_error();
    p.topk.data = p.slots.data = p.block_table.data = nullptr;
  }
}

TEST(OddArguments, SlotMappingWithoutPages) {
  std::array<int32_t, 2> starts{0, 2};
  std::array<int32_t, 1> seq_lens{2};
  std::array<int64_t, 2> slots{7, 7};
  const megamla_tensor start_locations = api::tensor(starts.data(), {2});
  const megamla_tensor lens = api::tensor(seq_lens.data(), {1});
  const megamla_tensor table = empty(MEGAMLA_I32, {1, 0});
  const megamla_tensor out = api::tensor(slots.data(), {2});
  EXPECT_EQ(megamla_compressed_slot_mapping(&start_locations, &lens, &table, 4, &out), MEGAMLA_OK);
  EXPECT_EQ(slots, (std::array<int64_t, 2>{-1, -1}));
}

TEST(OddArguments, CastsOfNothing) {
  api::OutputCast p;
  p.target = MEGAMLA_CAST_MXFP8;
  for (const int64_t rows : {int64_t{3}, int64_t{1} << 31}) {
    p.in = empty(MEGAMLA_BF16, {rows, 0});
    p.out = empty(MEGAMLA_F8_E4M3, {rows, 0});
    p.out_scale = empty(MEGAMLA_F8_E8M0, {0});
    for (const megamla_device device : kDevices) {
      EXPECT_TRUE(api::run(p, api::Exec(device))) << megamla_last_error();
    }
  }
  p.in.shape[0] = p.out.shape[0] = INT64_MAX;  // rounding it up to 128 would leave 64 bits
  for (const megamla_device device : kDevices) {
    EXPECT_EQ(api::supports(p, device).code(), MEGAMLA_INVALID_ARGUMENT);
  }
}

// As many rows as the type can count, and none of them has an element: nothing to walk over.
TEST(OddArguments, PermutationsOfNothing) {
  for (const int kind : {MEGAMLA_PERMUTE_Q, MEGAMLA_PERMUTE_PAD_Q, MEGAMLA_PERMUTE_O, MEGAMLA_PERMUTE_O_CHUNKS}) {
    const int64_t width = kind == MEGAMLA_PERMUTE_O ? 4096 : kind == MEGAMLA_PERMUTE_O_CHUNKS ? 128 : 512;
    api::PermuteWeights p;
    p.kind = kind;
    p.in = empty(MEGAMLA_U8, {kHuge, 0, width});
    p.out = empty(MEGAMLA_U8, {kHuge, 0, width});
    for (const megamla_device device : kDevices) {
      EXPECT_TRUE(api::run(p, api::Exec(device))) << megamla_last_error();
    }
  }
  api::PermuteWeights p;
  p.kind = MEGAMLA_PERMUTE_WQ_B;
  constexpr int64_t kRows = int64_t{1} << 61;
  p.in = empty(MEGAMLA_F8_E4M3, {kRows, 0});
  p.in_scale = empty(MEGAMLA_F8_E8M0, {kRows / 32, 0});
  p.out = empty(MEGAMLA_F8_E4M3, {kRows, 0});
  p.out_scale = empty(MEGAMLA_F8_E8M0, {kRows, 0});
  for (const megamla_device device : kDevices) {
    EXPECT_TRUE(api::run(p, api::Exec(device))) << megamla_last_error();
  }
}

// A view whose last byte would lie behind the end of the address space.
TEST(OddArguments, MemoryThatWraps) {
  const auto pointer = [](uintptr_t address) { return reinterpret_cast<void*>(address); };  // NOLINT: never followed
  megamla_tensor pair{};
  megamla_tensor scale{};
  EXPECT_EQ(megamla_output_pair_views(pointer(UINTPTR_MAX - 15), 4, 8, -1, &pair, &scale), MEGAMLA_INVALID_ARGUMENT);
  ASSERT_EQ(megamla_output_pair_views(pointer(4096), 4, 8, -1, &pair, &scale), MEGAMLA_OK);
  megamla_tensor pair_slice{};
  megamla_tensor scale_slice{};
  ASSERT_EQ(megamla_output_pair_slice(&pair, &scale, 1, 3, &pair_slice, &scale_slice), MEGAMLA_OK);
  megamla_tensor odd = pair;
  odd.data = pointer(UINTPTR_MAX - 17);
  EXPECT_EQ(megamla_output_pair_slice(&odd, &scale, 1, 3, &pair_slice, &scale_slice), MEGAMLA_INVALID_ARGUMENT);
  odd = scale;
  odd.data = pointer(UINTPTR_MAX - 15);
  EXPECT_EQ(megamla_output_pair_slice(&pair, &odd, 1, 3, &pair_slice, &scale_slice), MEGAMLA_INVALID_ARGUMENT);
  // One token: its stride is never taken, nor is it for a slice of none.
  ASSERT_EQ(megamla_output_pair_views(pointer(4096), 1, 8, -1, &pair, &scale), MEGAMLA_OK);
  pair.stride[0] = scale.stride[0] = kHuge;
  ASSERT_EQ(megamla_output_pair_slice(&pair, &scale, 1, 1, &pair_slice, &scale_slice), MEGAMLA_OK);
  EXPECT_EQ(pair_slice.shape[0], 0);

  std::array<uint8_t, 512> memory{};
  megamla_kv_cache cache{};
  cache.data = pointer(UINTPTR_MAX - 255);
  cache.format = MEGAMLA_KV_FP8_528;
  cache.num_pages = 2;
  cache.page_size = 1;
  cache.page_stride = 528;
  cache.cuda_device = -1;
  std::array<int32_t, 1> one{1};
  api::KvGather gather;
  gather.cache = cache;
  gather.seq_lens = api::tensor(one.data(), {1});
  gather.block_table = api::tensor(one.data(), {1, 1});
  gather.out = api::tensor(static_cast<void*>(memory.data()), {1, 0, 512}, MEGAMLA_BF16);
  for (const megamla_device device : kDevices) {
    EXPECT_EQ(api::supports(gather, device).code(), MEGAMLA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(megamla_last_error()).find("below 2^64"), std::string::npos) << megamla_last_error();
  }
}

TEST(OddArguments, FewerDecodesThanNone) {
  std::array<int32_t, 2> starts{0, 1};
  std::array<int32_t, 4> numbers{};
  std::array<int64_t, 1> mapping{};
  std::array<uint8_t, 1> valid{};
  api::SwaMetadata p;
  p.query_start_loc = api::tensor(starts.data(), {2});
  p.seq_lens = api::tensor(numbers.data(), {1});
  p.slot_mapping = api::tensor(mapping.data(), {1});
  p.block_table = api::tensor(numbers.data(), {1, 1});
  p.is_valid_token = api::tensor(valid.data(), {1});
  p.token_to_req = api::tensor(numbers.data() + 1, {1});
  p.decode_swa_indices = api::tensor(numbers.data() + 2, {1, 1});
  p.decode_swa_lens = api::tensor(numbers.data() + 3, {1});
  p.prefill_gather_lens = empty(MEGAMLA_I32, {0});
  p.num_decodes = 1;
  for (const megamla_device device : kDevices) {
    EXPECT_TRUE(api::supports(p, device)) << megamla_last_error();
    for (const int64_t decodes : {INT64_MIN, int64_t{-1}, int64_t{2}, INT64_MAX}) {
      api::SwaMetadata odd = p;
      odd.num_decodes = decodes;
      EXPECT_EQ(api::supports(odd, device).code(), MEGAMLA_INVALID_ARGUMENT);
    }
  }
}

// A call that is accepted has a workspace size: both know the same bounds.
TEST(OddArguments, ListsWiderThanASizeQueryTakes) {
  constexpr int64_t kWide = (int64_t{1} << 31) + 1;
  alignas(16) std::array<uint8_t, 1024> page{};
  api::DecodeAttention p;
  p.q = empty(MEGAMLA_BF16, {0, 8, 512});
  p.window.format = MEGAMLA_KV_FP8_528;
  p.window.page_size = 1;
  p.window.page_stride = 528;
  p.window.num_pages = 1;
  p.window.cuda_device = -1;
  p.window.data = page.data();
  p.compressed = p.window;
  p.output = MEGAMLA_OUTPUT_F32;
  p.out = empty(MEGAMLA_F32, {0, 8, 512});
  p.window_slots = empty(MEGAMLA_I32, {0, 128});
  p.compressed_slots = empty(MEGAMLA_I32, {0, 512});
  api::PrefillAttention prefill;
  prefill.q = p.q;
  prefill.kv = empty(MEGAMLA_BF16, {0, 512});
  prefill.indices = empty(MEGAMLA_I32, {0, 640});
  prefill.output = MEGAMLA_OUTPUT_F32;
  prefill.out = p.out;
  for (const megamla_device device : kDevices) {
    EXPECT_TRUE(api::supports(p, device)) << megamla_last_error();
    EXPECT_TRUE(api::supports(prefill, device)) << megamla_last_error();
    api::DecodeAttention odd = p;
    odd.window_slots = empty(MEGAMLA_I32, {0, kWide});
    EXPECT_EQ(api::supports(odd, device).code(), MEGAMLA_INVALID_ARGUMENT);
    odd = p;
    odd.compressed_slots = empty(MEGAMLA_I32, {0, kWide});
    EXPECT_EQ(api::supports(odd, device).code(), MEGAMLA_INVALID_ARGUMENT);
    api::PrefillAttention wide = prefill;
    wide.indices = empty(MEGAMLA_I32, {0, kWide});
    EXPECT_EQ(api::supports(wide, device).code(), MEGAMLA_INVALID_ARGUMENT);
  }
}

TEST(OddArguments, RanksWhoseProductLeaves64Bits) {
  api::LayerConfig config;
  for (const int64_t rank : {int64_t{1} << 60, INT64_MAX / 32 * 32, (int64_t{1} << 24) + 32}) {
    config.o_lora_rank = rank;
    EXPECT_EQ(megamla_layer_can_quantize_z(&config), MEGAMLA_INVALID_ARGUMENT) << rank;
    EXPECT_EQ(megamla_layer_is_supported(&config, MEGAMLA_DEVICE_CPU), MEGAMLA_INVALID_ARGUMENT) << rank;
  }
}

TEST(OddArguments, FormatsThatAreNone) {
  for (const int32_t format : {-1, 4, 744146190, INT32_MIN, INT32_MAX}) {
    api::KvGather p;
    p.cache.format = format;
    EXPECT_EQ(api::supports(p, MEGAMLA_DEVICE_CPU).code(), MEGAMLA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(megamla_last_error()).find(std::to_string(format)), std::string::npos)
        << megamla_last_error();
  }
}

}  // namespace
}  // namespace megamla::test
