#include <string_view>

#include "check/runners.hpp"

namespace megamla::check {
namespace {

struct Entry {
  std::string_view op;
  Runner runner;
};

constexpr Entry kRunners[] = {
    {"cast", run_cast},
    {"combine_topk_swa", run_combine_topk_swa},
    {"compress", run_compress},
    {"compressed_slot_mapping", run_compressed_slot_mapping},
    {"decode", run_decode},
    {"decode_slice", run_decode},
    {"gather", run_gather},
    {"global_topk", run_global_topk},
    {"kv_decode", run_kv_decode},
    {"kv_encode", run_kv_encode},
    {"kv_insert", run_kv_insert},
    {"layer", run_layer},
    {"mxfp8_quant", run_mxfp8_quant},
    {"o_proj", run_o_proj},
    {"pad_q", run_pad_q},
    {"permute_o", run_permute_o},
    {"permute_q", run_permute_q},
    {"permute_wo_a", run_permute_wo_a},
    {"permute_wq_b", run_permute_wq_b},
    {"prefill", run_prefill},
    {"prefill_chunk_plan", run_prefill_chunk_plan},
    {"rope_tables", run_rope_tables},
    {"split_batch", run_split_batch},
    {"swa_metadata", run_swa_metadata},
};

}  // namespace

Runner find_runner(const std::string& op) {
  for (const Entry& entry : kRunners) {
    if (entry.op == op) return entry.runner;
  }
  return nullptr;
}

std::vector<std::string> known_ops() {
  std::vector<std::string> ops;
  for (const Entry& entry : kRunners) ops.emplace_back(entry.op);
  return ops;
}

}  // namespace megamla::check
