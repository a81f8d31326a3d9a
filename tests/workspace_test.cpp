// Workspace: head views, the retained tail, growth and the lock (contract section 13).
#include "megamla/workspace.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace {

struct Destroy {
  void operator()(megamla_workspace* w) const { megamla_workspace_destroy(w); }
};
using Handle = std::unique_ptr<megamla_workspace, Destroy>;

struct Memory {
  explicit Memory(size_t bytes) : begin(static_cast<char*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256))) {}
  ~Memory() { std::free(begin); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  char* begin;
};

Handle make(void* buffer, int64_t bytes, megamla_workspace_grow_fn grow = nullptr, void* context = nullptr) {
  megamla_workspace* w = nullptr;
  EXPECT_EQ(megamla_workspace_create(buffer, bytes, grow, context, &w), MEGAMLA_OK) << megamla_last_error();
  return Handle(w);
}

bool intact(megamla_workspace* w, uint64_t key, int64_t bytes, void** span = nullptr) {
  void* pointer = nullptr;
  int32_t kept = -1;
  EXPECT_EQ(megamla_workspace_retained(w, key, bytes, &pointer, &kept), MEGAMLA_OK) << megamla_last_error();
  if (span != nullptr) *span = pointer;
  return kept == 1;
}

megamla_status head(megamla_workspace* w, std::vector<int64_t> bytes, std::vector<void*>* views = nullptr) {
  std::vector<void*> pointers(bytes.size());
  const megamla_status status =
      megamla_workspace_head(w, bytes.data(), static_cast<int64_t>(bytes.size()), pointers.data());
  if (views != nullptr) *views = pointers;
  return status;
}

TEST(Workspace, ViewsAreRoundedUpTo256Bytes) {
  Memory memory(4096);
  const Handle w = make(memory.begin, 4096);
  std::vector<void*> views;
  ASSERT_EQ(head(w.get(), {1, 256, 257, 0, 8}, &views), MEGAMLA_OK);
  EXPECT_EQ(views, (std::vector<void*>{memory.begin, memory.begin + 256, memory.begin + 512, memory.begin + 1024,
                                       memory.begin + 1024}));
}

TEST(Workspace, RetainedSpanIsTheTail) {
  Memory memory(4096);
  const Handle w = make(memory.begin, 4096);
  void* span = nullptr;
  EXPECT_FALSE(intact(w.get(), 7, 1000, &span));
  EXPECT_EQ(span, memory.begin + 4096 - 1024);
  EXPECT_TRUE(intact(w.get(), 7, 1000));
  EXPECT_TRUE(intact(w.get(), 7, 1024)) << "the same rounded size is the same span";
  EXPECT_FALSE(intact(w.get(), 8, 1000)) << "another key";
  EXPECT_FALSE(intact(w.get(), 8, 2000)) << "another size";
  EXPECT_TRUE(intact(w.get(), 8, 2000));
}

TEST(Workspace, HeadThatReachesIntoTheSpanLosesIt) {
  Memory memory(4096);
  const Handle w = make(memory.begin, 4096);
  intact(w.get(), 7, 1024);
  ASSERT_EQ(head(w.get(), {3072}), MEGAMLA_OK);
  EXPECT_TRUE(intact(w.get(), 7, 1024)) << "a head that ends where the span begins leaves it";
  ASSERT_EQ(head(w.get(), {3073}), MEGAMLA_OK);
  EXPECT_FALSE(intact(w.get(), 7, 1024));
}

TEST(Workspace, MovedBufferLosesTheSpan) {
  Memory first(4096);
  Memory second(8192);
  const Handle w = make(first.begin, 4096);
  intact(w.get(), 7, 1024);
  ASSERT_EQ(megamla_workspace_bind(w.get(), second.begin, 8192), MEGAMLA_OK);
  EXPECT_FALSE(intact(w.get(), 7, 1024));
}

TEST(Workspace, LargerRequestNamesBothSizes) {
  Memory memory(1024);
  const Handle w = make(memory.begin, 1024);
  EXPECT_EQ(megamla_workspace_reserve(w.get(), 5000), MEGAMLA_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(std::string(megamla_last_error()), "workspace: expected at least 5000 bytes, got 1024");
  EXPECT_EQ(megamla_workspace_required(w.get()), 5000);
  EXPECT_EQ(head(w.get(), {2000}), MEGAMLA_WORKSPACE_TOO_SMALL);
}

void* grow(void* context, void*, int64_t bytes) {
  auto* memories = static_cast<std::vector<std::unique_ptr<Memory>>*>(context);
  memories->push_back(std::make_unique<Memory>(static_cast<size_t>(bytes)));
  return memories->back()->begin;
}

TEST(Workspace, GrowsUntilItIsLocked) {
  std::vector<std::unique_ptr<Memory>> memories;
  const Handle w = make(nullptr, 0, grow, &memories);
  ASSERT_EQ(megamla_workspace_reserve(w.get(), 3000), MEGAMLA_OK) << megamla_last_error();
  EXPECT_EQ(megamla_workspace_bytes(w.get()), 3000);
  megamla_workspace_lock(w.get());
  EXPECT_EQ(megamla_workspace_reserve(w.get(), 3000), MEGAMLA_OK);
  EXPECT_EQ(megamla_workspace_reserve(w.get(), 3001), MEGAMLA_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(std::string(megamla_last_error()),
            "workspace: expected at least 3001 bytes, got 3000 (locked: it may not grow any more)");
  EXPECT_EQ(memories.size(), 1U);
}

TEST(Workspace, BadArgumentsAreRefused) {
  Memory memory(1024);
  megamla_workspace* w = nullptr;
  EXPECT_EQ(megamla_workspace_create(memory.begin + 1, 512, nullptr, nullptr, &w), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_EQ(megamla_workspace_create(nullptr, 512, nullptr, nullptr, &w), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_EQ(megamla_workspace_create(memory.begin, -1, nullptr, nullptr, &w), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_EQ(megamla_workspace_create(memory.begin, 512, nullptr, nullptr, nullptr), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_EQ(w, nullptr);
  const Handle good = make(memory.begin, 1024);
  EXPECT_EQ(megamla_workspace_reserve(good.get(), -1), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_EQ(head(good.get(), {-1}), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_EQ(head(good.get(), {INT64_MAX / 2, INT64_MAX / 2}), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_EQ(megamla_workspace_head(good.get(), nullptr, 1, nullptr), MEGAMLA_INVALID_ARGUMENT);
  int32_t kept = 0;
  void* pointer = nullptr;
  EXPECT_EQ(megamla_workspace_retained(good.get(), 1, INT64_MAX, &pointer, &kept), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_EQ(megamla_workspace_reserve(nullptr, 1), MEGAMLA_INVALID_ARGUMENT);
}

}  // namespace
