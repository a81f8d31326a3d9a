// A C++ caller of the installed package: slots of compressed positions through a block table.
#include <megamla/index_ops.h>

#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

megamla_tensor view(std::vector<int32_t>& data, int64_t rows, int64_t columns) {
  megamla_tensor t{};
  t.data = data.data();
  t.dtype = MEGAMLA_I32;
  t.cuda_device = -1;
  t.ndim = columns > 0 ? 2 : 1;
  t.shape[0] = rows;
  t.shape[1] = columns;
  t.stride[0] = columns > 0 ? columns : 1;
  t.stride[1] = 1;
  return t;
}

}  // namespace

int main() {
  std::vector<int32_t> topk = {5, 0, -1, 3, 64, 1};  // position 64 lies beyond the table's two pages of 32
  std::vector<int32_t> request = {1, 0};
  std::vector<int32_t> table = {7, 8, 2, 9};
  std::vector<int32_t> slots(6, -7);
  std::vector<int32_t> lens(2, -7);

  megamla_topk_to_slots_params params;
  megamla_topk_to_slots_init(&params);
  params.topk = view(topk, 2, 3);
  params.token_to_req = view(request, 2, 0);
  params.block_table = view(table, 2, 2);
  params.slots_per_page = 32;
  params.slots = view(slots, 2, 3);
  params.lens = view(lens, 2, 0);

  if (megamla_topk_to_slots(&params, nullptr) != MEGAMLA_OK) {
    std::fprintf(stderr, "topk_to_slots: %s\n", megamla_last_error());
    return 1;
  }
  const std::vector<int32_t> expected_slots = {2 * 32 + 5, 2 * 32, -1, 7 * 32 + 3, -1, 7 * 32 + 1};
  const std::vector<int32_t> expected_lens = {2, 2};
  std::printf("MegaMLA %s: %s\n", megamla_version(), slots == expected_slots && lens == expected_lens ? "ok" : "wrong");
  return slots == expected_slots && lens == expected_lens ? 0 : 1;
}
