#include "megamla/index_ops.h"

#include "cpu/index_ops.hpp"
#include "cuda/index_ops.hpp"
#include "format/chunked.hpp"
#include "ops/check_apart.hpp"
#include "ops/op.hpp"
#include "reference/index_ops.hpp"

namespace megamla::ops {
namespace {

constexpr int64_t kAny = Validator::kAny;
constexpr auto kWrite = Validator::Access::kWrite;
constexpr int64_t kMaxWidth = int64_t{1} << 30;  // of a list: lengths are int32

Status validate(const megamla_topk_to_slots_params& p, int32_t cuda_device) {
  Validator v("topk_to_slots", cuda_device);
  v.tensor("topk", p.topk, {MEGAMLA_I32}, {kAny, kAny}, 1);
  if (!v.ok()) return v.status();
  const int64_t n = p.topk.shape[0];
  const int64_t width = p.topk.shape[1];
  v.range("topk width", width, 0, kMaxWidth);
  v.tensor("token_to_req", p.token_to_req, {MEGAMLA_I32}, {n}, 0);
  v.optional_tensor("is_valid_token", p.is_valid_token, {MEGAMLA_U8}, {n}, 0);
  v.tensor("block_table", p.block_table, {MEGAMLA_I32}, {kAny, kAny}, 1);
  v.range("slots_per_page", p.slots_per_page, 1, INT32_MAX);
  v.range("num_pages", p.num_pages, 0, INT32_MAX);
  v.tensor("slots", p.slots, {MEGAMLA_I32}, {n, width}, 1, kWrite);
  v.tensor("lens", p.lens, {MEGAMLA_I32}, {n}, 0, kWrite);
  check_apart(v, {{"slots", &p.slots}, {"lens", &p.lens}},
              {{"topk", &p.topk},
               {"token_to_req", &p.token_to_req},
               {"is_valid_token", &p.is_valid_token},
               {"block_table", &p.block_table}});
  return v.status();
}

Status validate(const megamla_combine_topk_swa_params& p, int32_t cuda_device) {
  Validator v("combine_topk_swa", cuda_device);
  v.tensor("topk", p.topk, {MEGAMLA_I32}, {kAny, kAny}, 1);
  v.tensor("seq_lens", p.seq_lens, {MEGAMLA_I32}, {kAny}, 0);
  if (!v.ok()) return v.status();
  const int64_t rows = p.topk.shape[0];
  const int64_t requests = p.seq_lens.shape[0];
  v.range("topk width", p.topk.shape[1], 0, kMaxWidth);
  v.tensor("query_start_loc", p.query_start_loc, {MEGAMLA_I32}, {requests + 1}, 0);
  v.tensor("gather_lens", p.gather_lens, {MEGAMLA_I32}, {requests}, 0);
  v.range("window", p.window, 1, kMaxWidth);
  v.range("compress_ratio", p.compress_ratio, 0, 2);
  v.range("m", p.m, 0, INT32_MAX / std::max<int64_t>(requests, 1));  // indices into the workspace are int32
  v.range("n", p.n, 0, p.m);
  if (!v.ok()) return v.status();
  const int64_t width = format::round_up(p.topk.shape[1] + p.window, 128);
  v.tensor("indices", p.indices, {MEGAMLA_I32}, {rows, width}, 1, kWrite);
  v.tensor("lens", p.lens, {MEGAMLA_I32}, {rows}, 0, kWrite);
  check_apart(v, {{"indices", &p.indices}, {"lens", &p.lens}},
              {{"topk", &p.topk},
               {"query_start_loc", &p.query_start_loc},
               {"seq_lens", &p.seq_lens},
               {"gather_lens", &p.gather_lens}});
  return v.status();
}

Status validate(const megamla_swa_metadata_params& p, int32_t cuda_device) {
  Validator v("swa_metadata", cuda_device);
  v.tensor("seq_lens", p.seq_lens, {MEGAMLA_I32}, {kAny}, 0);
  v.tensor("slot_mapping", p.slot_mapping, {MEGAMLA_I64}, {kAny}, 0);
  if (!v.ok()) return v.status();
  const int64_t requests = p.seq_lens.shape[0];
  const int64_t tokens = p.slot_mapping.shape[0];
  v.range("tokens", tokens, 0, INT32_MAX);
  v.tensor("query_start_loc", p.query_start_loc, {MEGAMLA_I32}, {requests + 1}, 0);
  v.tensor("block_table", p.block_table, {MEGAMLA_I32}, {requests, kAny}, 1);
  v.optional_tensor("replay_start", p.replay_start, {MEGAMLA_I32}, {requests}, 0);
  v.range("page_size", p.page_size, 1, INT32_MAX);
  v.range("num_pages", p.num_pages, 0, INT32_MAX);
  v.range("window", p.window, 1, kMaxWidth);
  v.range("num_decodes", p.num_decodes, 0, requests);
  if (!v.ok()) return v.status();
  v.range("causal", p.causal, 0, 1);
  v.range("reserved", p.reserved, 0, 0);
  v.tensor("is_valid_token", p.is_valid_token, {MEGAMLA_U8}, {tokens}, 0, kWrite);
  v.tensor("token_to_req", p.token_to_req, {MEGAMLA_I32}, {kAny}, 0, kWrite);
  v.tensor("decode_swa_indices", p.decode_swa_indices, {MEGAMLA_I32}, {kAny, kAny}, 1, kWrite);
  if (v.ok()) {
    v.range("decode_swa_indices rows", p.decode_swa_indices.shape[0], 0, tokens);
    v.range("decode_swa_indices width", p.decode_swa_indices.shape[1], 0, kMaxWidth);
  }
  v.tensor("decode_swa_lens", p.decode_swa_lens, {MEGAMLA_I32}, {tokens}, 0, kWrite);
  v.tensor("prefill_gather_lens", p.prefill_gather_lens, {MEGAMLA_I32}, {requests - p.num_decodes}, 0, kWrite);
  check_apart(v,
              {{"is_valid_token", &p.is_valid_token},
               {"token_to_req", &p.token_to_req},
               {"decode_swa_indices", &p.decode_swa_indices},
               {"decode_swa_lens", &p.decode_swa_lens},
               {"prefill_gather_lens", &p.prefill_gather_lens}},
              {{"query_start_loc", &p.query_start_loc},
               {"seq_lens", &p.seq_lens},
               {"slot_mapping", &p.slot_mapping},
               {"block_table", &p.block_table},
               {"replay_start", &p.replay_start}});
  return v.status();
}

template <class Params>
megamla_limits limits_of(const Params&) {
  return {};
}
int32_t memory_of(const megamla_topk_to_slots_params& p) { return p.topk.cuda_device; }
int32_t memory_of(const megamla_combine_topk_swa_params& p) { return p.topk.cuda_device; }
int32_t memory_of(const megamla_swa_metadata_params& p) { return p.seq_lens.cuda_device; }

constexpr Implementation<megamla_topk_to_slots_params> kTopkToSlotsImplementations[] = {
    {"cpu.topk_to_slots", MEGAMLA_DEVICE_CPU, supports_all, no_workspace, cpu::topk_to_slots},
    {"reference.topk_to_slots", MEGAMLA_DEVICE_REFERENCE, supports_all, no_workspace, reference::topk_to_slots},
#if MEGAMLA_HAVE_CUDA
    {"cuda.topk_to_slots", MEGAMLA_DEVICE_CUDA, supports_all, no_workspace, cuda::topk_to_slots},
#endif
};
constexpr Op<megamla_topk_to_slots_params> kTopkToSlots{"topk_to_slots", validate, limits_of, memory_of,
                                                        kTopkToSlotsImplementations};

constexpr Implementation<megamla_combine_topk_swa_params> kCombineTopkSwaImplementations[] = {
    {"cpu.combine_topk_swa", MEGAMLA_DEVICE_CPU, supports_all, no_workspace, cpu::combine_topk_swa},
    {"reference.combine_topk_swa", MEGAMLA_DEVICE_REFERENCE, supports_all, no_workspace, reference::combine_topk_swa},
#if MEGAMLA_HAVE_CUDA
    {"cuda.combine_topk_swa", MEGAMLA_DEVICE_CUDA, supports_all, no_workspace, cuda::combine_topk_swa},
#endif
};
constexpr Op<megamla_combine_topk_swa_params> kCombineTopkSwa{"combine_topk_swa", validate, limits_of, memory_of,
                                                              kCombineTopkSwaImplementations};

constexpr Implementation<megamla_swa_metadata_params> kSwaMetadataImplementations[] = {
    {"cpu.swa_metadata", MEGAMLA_DEVICE_CPU, supports_all, no_workspace, cpu::swa_metadata},
    {"reference.swa_metadata", MEGAMLA_DEVICE_REFERENCE, supports_all, no_workspace, reference::swa_metadata},
#if MEGAMLA_HAVE_CUDA
    {"cuda.swa_metadata", MEGAMLA_DEVICE_CUDA, supports_all, no_workspace, cuda::swa_metadata},
#endif
};
constexpr Op<megamla_swa_metadata_params> kSwaMetadata{"swa_metadata", validate, limits_of, memory_of,
                                                       kSwaMetadataImplementations};

}  // namespace
}  // namespace megamla::ops

extern "C" void megamla_topk_to_slots_init(megamla_topk_to_slots_params* params) {
  if (params == nullptr) return;
  *params = {};
  params->struct_size = sizeof(*params);
  params->slots_per_page = 1;
}
extern "C" void megamla_combine_topk_swa_init(megamla_combine_topk_swa_params* params) {
  if (params == nullptr) return;
  *params = {};
  params->struct_size = sizeof(*params);
  params->window = 128;
}
extern "C" void megamla_swa_metadata_init(megamla_swa_metadata_params* params) {
  if (params == nullptr) return;
  *params = {};
  params->struct_size = sizeof(*params);
  params->page_size = 32;
  params->window = 128;
  params->causal = 1;
}
MEGAMLA_DEFINE_OP(topk_to_slots, megamla::ops::kTopkToSlots)
MEGAMLA_DEFINE_OP(combine_topk_swa, megamla::ops::kCombineTopkSwa)
MEGAMLA_DEFINE_OP(swa_metadata, megamla::ops::kSwaMetadata)
