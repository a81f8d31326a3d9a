#include "megamla/kv_compress.h"

#include <bit>

#include "cpu/kv_compress.hpp"
#include "cuda/kv_compress.hpp"
#include "ops/check_apart.hpp"
#include "ops/op.hpp"
#include "reference/kv_compress.hpp"

namespace megamla::ops {
namespace {

constexpr int64_t kAny = Validator::kAny;

void validate_state(Validator& v, const megamla_kv_compress_params& p) {
  if (p.compress_ratio == 1) {
    constexpr const char* kWhy = "compress_ratio is 1";
    v.absent("token_to_req", p.token_to_req, kWhy).absent("positions", p.positions, kWhy);
    v.absent("state_block", p.state_block, kWhy).absent("state", p.state, kWhy);
    return;
  }
  const int64_t tokens = p.kv_score.shape[0];
  v.tensor("token_to_req", p.token_to_req, {MEGAMLA_I32}, {tokens}, 0);
  v.tensor("positions", p.positions, {MEGAMLA_I32, MEGAMLA_I64}, {tokens}, 0);
  v.tensor("state_block", p.state_block, {MEGAMLA_I32}, {kAny}, 0);
  v.tensor("state", p.state, {MEGAMLA_F32}, {kAny, kAny, 1024}, 0, Validator::Access::kWrite);
  if (!v.ok()) return;
  const int64_t capacity = p.state.shape[1];
  v.require(capacity >= 8 && std::has_single_bit(static_cast<uint64_t>(capacity)), "state capacity",
            "a power of two of at least 8", capacity);
}

Status validate(const megamla_kv_compress_params& p, int32_t cuda_device) {
  Validator v("kv_compress", cuda_device);
  v.range("compress_ratio", p.compress_ratio, 1, 2);
  v.finite("eps", p.eps).require(p.eps >= 0, "eps", "a value of at least 0", p.eps);
  v.tensor("kv_score", p.kv_score, {MEGAMLA_F32}, {kAny, p.compress_ratio == 2 ? 1024 : 512}, 1);
  if (!v.ok()) return v.status();
  const int64_t tokens = p.kv_score.shape[0];
  v.range("tokens", tokens, 0, int64_t{1} << 31);
  v.tensor("weight", p.weight, {MEGAMLA_BF16}, {512}, 0);
  validate_state(v, p);
  v.tensor("latent", p.latent, {MEGAMLA_BF16}, {tokens, 512}, 1, Validator::Access::kWrite);
  v.optional_tensor("written", p.written, {MEGAMLA_U8}, {tokens}, 0, Validator::Access::kWrite);
  check_apart(v, {{"state", &p.state}, {"latent", &p.latent}, {"written", &p.written}},
              {{"kv_score", &p.kv_score},
               {"weight", &p.weight},
               {"token_to_req", &p.token_to_req},
               {"positions", &p.positions},
               {"state_block", &p.state_block}});
  return v.status();
}

megamla_limits limits_of(const megamla_kv_compress_params& p) {
  megamla_limits limits{};
  if (p.compress_ratio == 2) limits.tokens = p.kv_score.shape[0];  // ratio 1 keeps no state
  return limits;
}
int32_t memory_of(const megamla_kv_compress_params& p) { return p.kv_score.cuda_device; }

constexpr Implementation<megamla_kv_compress_params> kImplementations[] = {
    {"cpu.kv_compress", MEGAMLA_DEVICE_CPU, supports_all, cpu::kv_compress_workspace, cpu::kv_compress},
    {"reference.kv_compress", MEGAMLA_DEVICE_REFERENCE, supports_all, no_workspace, reference::kv_compress},
#if MEGAMLA_HAVE_CUDA
    {"cuda.kv_compress", MEGAMLA_DEVICE_CUDA, supports_all, no_workspace, cuda::kv_compress},
#endif
};
constexpr Op<megamla_kv_compress_params> kOp{"kv_compress", validate, limits_of, memory_of, kImplementations};

}  // namespace
}  // namespace megamla::ops

extern "C" void megamla_kv_compress_init(megamla_kv_compress_params* params) {
  if (params == nullptr) return;
  *params = {};
  params->struct_size = sizeof(*params);
  params->compress_ratio = 1;
  params->eps = 1e-20F;
}
MEGAMLA_DEFINE_OP(kv_compress, megamla::ops::kOp)
