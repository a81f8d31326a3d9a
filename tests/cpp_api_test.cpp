// The C++ layer over the C ABI: initialised structs, tensor builders, overloads, results, owned handles.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <type_traits>
#include <vector>

#include "megamla/megamla.hpp"

namespace mla = megamla::api;

namespace {

TEST(CppApi, StructsAreInitialisedAndAddNothing) {
  static_assert(std::is_base_of_v<megamla_decode_attention_params, mla::DecodeAttention>);
  static_assert(sizeof(mla::DecodeAttention) == sizeof(megamla_decode_attention_params));
  static_assert(sizeof(mla::Exec) == sizeof(megamla_exec) && sizeof(mla::Limits) == sizeof(megamla_limits));
  const mla::DecodeAttention p;
  EXPECT_EQ(p.struct_size, sizeof(megamla_decode_attention_params));
  EXPECT_FLOAT_EQ(p.softmax_scale, 1 / std::sqrt(512.0F));
  EXPECT_EQ(p.q.ndim, 0);
  EXPECT_EQ(mla::Exec(MEGAMLA_DEVICE_REFERENCE).device, MEGAMLA_DEVICE_REFERENCE);
  EXPECT_EQ(mla::Limits().struct_size, sizeof(megamla_limits));
  EXPECT_EQ(mla::LayerConfig().hidden_size, 5120);
}

TEST(CppApi, TensorsHaveCStrides) {
  std::array<float, 24> values{};
  const megamla_tensor t = mla::tensor(values.data(), {2, 3, 4});
  EXPECT_EQ(t.data, values.data());
  EXPECT_EQ(t.dtype, MEGAMLA_F32);
  EXPECT_EQ(t.ndim, 3);
  EXPECT_EQ(t.cuda_device, -1);
  EXPECT_EQ((std::array<int64_t, 3>{t.stride[0], t.stride[1], t.stride[2]}), (std::array<int64_t, 3>{12, 4, 1}));
  const std::array<int64_t, 3> constants{};
  EXPECT_EQ(mla::tensor(constants.data(), {3}).dtype, MEGAMLA_I64);
  const megamla_tensor bf16 = mla::tensor(static_cast<void*>(values.data()), {2, 8}, MEGAMLA_BF16, 1);
  EXPECT_EQ(bf16.dtype, MEGAMLA_BF16);
  EXPECT_EQ(bf16.cuda_device, 1);
  EXPECT_EQ(mla::with_strides(bf16, {1, 2}).stride[1], 2);
}

TEST(CppApi, TooManyDimensionsAreRefusedByTheOp) {
  std::array<float, 64> values{};
  mla::RopeTable p;
  p.cos_sin = mla::tensor(values.data(), {1, 1, 1, 1, 64});
  EXPECT_EQ(mla::run(p).code(), MEGAMLA_INVALID_ARGUMENT);
}

TEST(CppApi, AnOpRunsAndSaysWhoRanIt) {
  std::vector<int32_t> topk = {5, 0, -1, 3};
  std::vector<int32_t> request = {1, 0};
  std::vector<int32_t> table = {7, 8, 2, 9};
  std::vector<int32_t> slots(4, -7);
  std::vector<int32_t> lens(2, -7);
  mla::TopkToSlots p;
  p.topk = mla::tensor(topk.data(), {2, 2});
  p.token_to_req = mla::tensor(request.data(), {2});
  p.block_table = mla::tensor(table.data(), {2, 2});
  p.slots_per_page = 4;
  p.slots = mla::tensor(slots.data(), {2, 2});
  p.lens = mla::tensor(lens.data(), {2});
  const char* name = nullptr;
  int64_t bytes = -1;
  ASSERT_TRUE(mla::supports(p));
  ASSERT_TRUE(mla::implementation(p, MEGAMLA_DEVICE_CPU, &name));
  EXPECT_EQ(std::string(name).rfind("cpu", 0), 0U) << name;
  ASSERT_TRUE(mla::workspace_size<mla::TopkToSlots>(mla::Limits(), MEGAMLA_DEVICE_CPU, &bytes));
  EXPECT_EQ(bytes, 0);
  ASSERT_TRUE(mla::run(p, mla::Exec(MEGAMLA_DEVICE_CPU)));
  EXPECT_EQ(slots, (std::vector<int32_t>{9 * 4 + 1, 2 * 4, -1, 7 * 4 + 3}));
  EXPECT_EQ(lens, (std::vector<int32_t>{2, 1}));
}

TEST(CppApi, AResultKeepsItsMessage) {
  mla::RopeTable p;
  const mla::Result first = mla::run(p);
  p.theta = -1;
  const mla::Result second = mla::run(p);
  EXPECT_FALSE(first.ok());
  EXPECT_EQ(first.code(), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_EQ(first.message().rfind("rope_table: ", 0), 0U) << first.message();
  EXPECT_FALSE(second);
  EXPECT_EQ(mla::Result().message(), "");
}

TEST(CppApi, HandlesAreOwned) {
  mla::Layer layer;
  ASSERT_TRUE(mla::create(mla::LayerConfig(), MEGAMLA_DEVICE_CPU, &layer));
  ASSERT_NE(layer, nullptr);
  EXPECT_EQ(megamla_layer_get_role(layer.get()), MEGAMLA_ROLE_WINDOW_ONLY);
  mla::LayerConfig odd;
  odd.tp_size = 3;
  EXPECT_EQ(mla::create(odd, MEGAMLA_DEVICE_CPU, &layer).code(), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_EQ(layer, nullptr);
  alignas(256) static std::array<char, 1024> memory;
  mla::Workspace workspace;
  ASSERT_TRUE(mla::create(memory.data(), memory.size(), nullptr, nullptr, &workspace));
  EXPECT_EQ(megamla_workspace_bytes(workspace.get()), 1024);
}

}  // namespace
