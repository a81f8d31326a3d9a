#include "megamla/kv_gather.h"

#include "cpu/kv_gather.hpp"
#include "cuda/kv_gather.hpp"
#include "ops/check_apart.hpp"
#include "ops/op.hpp"
#include "reference/kv_gather.hpp"

namespace megamla::ops {
namespace {

Status validate(const megamla_kv_gather_params& p, int32_t cuda_device) {
  constexpr int64_t kAny = Validator::kAny;
  Validator v("kv_gather", cuda_device);
  v.cache("cache", p.cache, {MEGAMLA_KV_FP8_528, MEGAMLA_KV_NVFP4_288, MEGAMLA_KV_FP8_584});
  v.tensor("seq_lens", p.seq_lens, {MEGAMLA_I32}, {kAny}, 0);
  if (!v.ok()) return v.status();
  const int64_t requests = p.seq_lens.shape[0];
  v.optional_tensor("gather_lens", p.gather_lens, {MEGAMLA_I32}, {requests}, 0);
  v.tensor("block_table", p.block_table, {MEGAMLA_I32}, {requests, kAny}, 1);
  v.range("offset", p.offset, 0, INT64_MAX);
  v.tensor("out", p.out, {MEGAMLA_BF16}, {requests, kAny, 512}, 2, Validator::Access::kWrite);
  v.no_overlap("out", p.out, "cache", p.cache);
  check_apart(v, {{"out", &p.out}},
              {{"seq_lens", &p.seq_lens}, {"gather_lens", &p.gather_lens}, {"block_table", &p.block_table}});
  return v.status();
}

megamla_limits limits_of(const megamla_kv_gather_params&) { return {}; }
int32_t memory_of(const megamla_kv_gather_params& p) { return p.cache.cuda_device; }

constexpr Implementation<megamla_kv_gather_params> kImplementations[] = {
    {"cpu.kv_gather", MEGAMLA_DEVICE_CPU, supports_all, no_workspace, cpu::kv_gather},
    {"reference.kv_gather", MEGAMLA_DEVICE_REFERENCE, supports_all, no_workspace, reference::kv_gather},
#if MEGAMLA_HAVE_CUDA
    {"cuda.kv_gather", MEGAMLA_DEVICE_CUDA, supports_all, no_workspace, cuda::kv_gather},
#endif
};
constexpr Op<megamla_kv_gather_params> kOp{"kv_gather", validate, limits_of, memory_of, kImplementations};

}  // namespace
}  // namespace megamla::ops

extern "C" void megamla_kv_gather_init(megamla_kv_gather_params* params) {
  if (params == nullptr) return;
  *params = {};
  params->struct_size = sizeof(*params);
}
MEGAMLA_DEFINE_OP(kv_gather, megamla::ops::kOp)
