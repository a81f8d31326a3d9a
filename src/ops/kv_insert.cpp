#include "megamla/kv_insert.h"

#include "cpu/kv_insert.hpp"
#include "cuda/kv_insert.hpp"
#include "ops/check_apart.hpp"
#include "ops/op.hpp"
#include "reference/kv_insert.hpp"

namespace megamla::ops {
namespace {

Status validate(const megamla_kv_insert_params& p, int32_t cuda_device) {
  constexpr int64_t kAny = Validator::kAny;
  Validator v("kv_insert", cuda_device);
  v.range("writer", p.writer, MEGAMLA_WRITER_WINDOW, MEGAMLA_WRITER_COMPRESSED);
  const bool compressed = p.writer == MEGAMLA_WRITER_COMPRESSED;
  if (compressed) v.range("compress_ratio", p.compress_ratio, 1, 2);
  v.tensor("latent", p.latent, {MEGAMLA_BF16}, {kAny, 512}, 1);
  if (!v.ok()) return v.status();
  const int64_t tokens = p.latent.shape[0];
  v.optional_tensor("cos_sin", p.cos_sin, {MEGAMLA_F32}, {kAny, 64}, 1);
  if (compressed || present(p.cos_sin)) {
    v.tensor("positions", p.positions, {MEGAMLA_I32, MEGAMLA_I64}, {tokens}, 0);
  } else {
    v.optional_tensor("positions", p.positions, {MEGAMLA_I32, MEGAMLA_I64}, {tokens}, 0);
  }
  v.tensor("slot_mapping", p.slot_mapping, {MEGAMLA_I64}, {kAny}, 0);
  v.cache("cache", p.cache, {MEGAMLA_KV_FP8_528, MEGAMLA_KV_NVFP4_288, MEGAMLA_KV_FP8_584});
  v.optional_tensor("skipped_rows", p.skipped_rows, {MEGAMLA_I64}, {1}, 0, Validator::Access::kWrite);
  // The cache is an output; no_overlap is symmetric.
  v.no_overlap("latent", p.latent, "cache", p.cache)
      .no_overlap("positions", p.positions, "cache", p.cache)
      .no_overlap("cos_sin", p.cos_sin, "cache", p.cache)
      .no_overlap("slot_mapping", p.slot_mapping, "cache", p.cache)
      .no_overlap("skipped_rows", p.skipped_rows, "cache", p.cache);
  check_apart(
      v, {{"skipped_rows", &p.skipped_rows}},
      {{"latent", &p.latent}, {"positions", &p.positions}, {"cos_sin", &p.cos_sin}, {"slot_mapping", &p.slot_mapping}});
  return v.status();
}

megamla_limits limits_of(const megamla_kv_insert_params&) { return {}; }
int32_t memory_of(const megamla_kv_insert_params& p) { return p.cache.cuda_device; }

constexpr Implementation<megamla_kv_insert_params> kImplementations[] = {
    {"cpu.kv_insert", MEGAMLA_DEVICE_CPU, supports_all, no_workspace, cpu::kv_insert},
    {"reference.kv_insert", MEGAMLA_DEVICE_REFERENCE, supports_all, no_workspace, reference::kv_insert},
#if MEGAMLA_HAVE_CUDA
    {"cuda.kv_insert", MEGAMLA_DEVICE_CUDA, supports_all, no_workspace, cuda::kv_insert},
#endif
};
constexpr Op<megamla_kv_insert_params> kOp{"kv_insert", validate, limits_of, memory_of, kImplementations};

}  // namespace
}  // namespace megamla::ops

extern "C" void megamla_kv_insert_init(megamla_kv_insert_params* params) {
  if (params == nullptr) return;
  *params = {};
  params->struct_size = sizeof(*params);
  params->compress_ratio = 1;
}
MEGAMLA_DEFINE_OP(kv_insert, megamla::ops::kOp)
