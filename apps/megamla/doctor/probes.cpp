#include "doctor/probes.hpp"

#include "arena.hpp"
#include "core/tensor.hpp"
#include "megamla/megamla.hpp"

namespace megamla::doctor {
namespace {

constexpr int64_t kDims = 512;
constexpr int64_t kHeads = 64;

// Typical parameters of every op. Nothing is run: supports() reads no data.
class Probes {
 public:
  explicit Probes(megamla_device device) : device_(device) {}

  std::vector<Probe> all() {
    decode();
    prefill();
    caches();
    index_ops();
    weights();
    linear();
    layer();
    return std::move(probes_);
  }

 private:
  megamla_tensor tensor(megamla_dtype dtype, std::initializer_list<int64_t> shape) {
    megamla_tensor t = arena_.tensor(dtype, shape);
    if (device_ == MEGAMLA_DEVICE_CUDA) t.cuda_device = 0;
    return t;
  }
  megamla_kv_cache cache(megamla_kv_format kind) {
    constexpr int64_t kPage = 4;
    megamla_kv_cache c{arena_.bytes(kPage * 1024), 1, kPage * 1024, kPage, kind, MEGAMLA_PAGE_PLANAR, -1, 0};
    if (device_ == MEGAMLA_DEVICE_CUDA) c.cuda_device = 0;
    return c;
  }

  template <class Params>
  void ask(const char* op, const Params& p) {
    const char* name = nullptr;
    const api::Result result = api::implementation(p, device_, &name);
    probes_.push_back({op, device_, static_cast<bool>(result), result ? name : result.message()});
  }

  template <class Params>
  void set_query(Params& p) {
    p.q = tensor(MEGAMLA_BF16, {1, kHeads, kDims});
    p.positions = tensor(MEGAMLA_I32, {1});
    p.cos_sin = tensor(MEGAMLA_F32, {1, 64});
    p.out = tensor(MEGAMLA_F8_E4M3, {1, kHeads / 8, 4096});
    p.out_scale = tensor(MEGAMLA_I32, {1, kHeads / 8, 32});
    p.out_scale.data = arena_.bytes(kHeads / 8 * 32 * 16);
    p.out_scale.stride[0] = 1;
    p.out_scale.stride[1] = 128;
    p.out_scale.stride[2] = 4;
  }

  void decode() {
    api::DecodeAttention p;
    set_query(p);
    p.window = cache(MEGAMLA_KV_FP8_528);
    p.window_slots = tensor(MEGAMLA_I32, {1, 128});
    p.compressed = cache(MEGAMLA_KV_NVFP4_288);
    p.compressed_slots = tensor(MEGAMLA_I32, {1, kDims});
    ask("decode_attention", p);
  }
  void prefill() {
    api::PrefillAttention p;
    set_query(p);
    p.kv = tensor(MEGAMLA_BF16, {1, kDims});
    p.indices = tensor(MEGAMLA_I32, {1, 640});
    ask("prefill_attention", p);
  }
  void caches() {
    api::KvInsert insert;
    insert.latent = tensor(MEGAMLA_BF16, {1, kDims});
    insert.positions = tensor(MEGAMLA_I64, {1});
    insert.cos_sin = tensor(MEGAMLA_F32, {1, 64});
    insert.slot_mapping = tensor(MEGAMLA_I64, {1});
    insert.cache = cache(MEGAMLA_KV_NVFP4_288);
    insert.writer = MEGAMLA_WRITER_COMPRESSED;
    insert.compress_ratio = 1;
    ask("kv_insert", insert);
    api::KvGather gather;
    gather.cache = cache(MEGAMLA_KV_NVFP4_288);
    gather.seq_lens = tensor(MEGAMLA_I32, {1});
    gather.block_table = tensor(MEGAMLA_I32, {1, 1});
    gather.out = tensor(MEGAMLA_BF16, {1, 1, kDims});
    ask("kv_gather", gather);
    api::KvCompress compress;
    compress.compress_ratio = 1;
    compress.kv_score = tensor(MEGAMLA_F32, {1, kDims});
    compress.weight = tensor(MEGAMLA_BF16, {kDims});
    compress.latent = tensor(MEGAMLA_BF16, {1, kDims});
    ask("kv_compress", compress);
  }
  void index_ops() {
    api::TopkToSlots slots;
    slots.topk = tensor(MEGAMLA_I32, {1, 8});
    slots.token_to_req = tensor(MEGAMLA_I32, {1});
    slots.block_table = tensor(MEGAMLA_I32, {1, 1});
    slots.slots_per_page = 64;
    slots.slots = tensor(MEGAMLA_I32, {1, 8});
    slots.lens = tensor(MEGAMLA_I32, {1});
    ask("topk_to_slots", slots);
    api::CombineTopkSwa combine;
    combine.topk = tensor(MEGAMLA_I32, {1, kDims});
    combine.query_start_loc = tensor(MEGAMLA_I32, {2});
    combine.seq_lens = tensor(MEGAMLA_I32, {1});
    combine.gather_lens = tensor(MEGAMLA_I32, {1});
    combine.window = 128;
    combine.compress_ratio = 1;
    combine.m = 1;
    combine.indices = tensor(MEGAMLA_I32, {1, 640});
    combine.lens = tensor(MEGAMLA_I32, {1});
    ask("combine_topk_swa", combine);
    api::SwaMetadata swa;
    swa.query_start_loc = tensor(MEGAMLA_I32, {2});
    swa.seq_lens = tensor(MEGAMLA_I32, {1});
    swa.slot_mapping = tensor(MEGAMLA_I64, {1});
    swa.block_table = tensor(MEGAMLA_I32, {1, 1});
    swa.page_size = 32;
    swa.window = 128;
    swa.num_decodes = 1;
    swa.causal = 1;
    swa.is_valid_token = tensor(MEGAMLA_U8, {1});
    swa.token_to_req = tensor(MEGAMLA_I32, {1});
    swa.decode_swa_indices = tensor(MEGAMLA_I32, {1, 128});
    swa.decode_swa_lens = tensor(MEGAMLA_I32, {1});
    swa.prefill_gather_lens = tensor(MEGAMLA_I32, {0});
    ask("swa_metadata", swa);
  }
  void weights() {
    api::RopeTable rope;
    rope.cos_sin = tensor(MEGAMLA_F32, {1, 64});
    ask("rope_table", rope);
    api::PermuteWeights permute;
    permute.kind = MEGAMLA_PERMUTE_Q;
    permute.in = tensor(MEGAMLA_BF16, {1, 8, kDims});
    permute.out = tensor(MEGAMLA_BF16, {1, 8, kDims});
    ask("permute_weights", permute);
  }
  void linear() {
    api::BlockScaledLinear p;
    p.weight_kind = MEGAMLA_LINEAR_WEIGHT_BLOCK_32;
    p.x = tensor(MEGAMLA_BF16, {1, 32});
    p.weight = tensor(MEGAMLA_F8_E4M3, {32, 32});
    p.weight_scale = tensor(MEGAMLA_F8_E8M0, {1, 1});
    p.y = tensor(MEGAMLA_BF16, {1, 32});
    ask("block_scaled_linear", p);
    api::OutputCast cast;
    cast.target = MEGAMLA_CAST_MXFP8;
    cast.in = tensor(MEGAMLA_BF16, {1, 32});
    cast.out = tensor(MEGAMLA_F8_E4M3, {1, 32});
    cast.out_scale = tensor(MEGAMLA_F8_E8M0, {512});
    ask("output_cast", cast);
    api::RmsNorm norm;
    norm.x = tensor(MEGAMLA_BF16, {1, kDims});
    norm.weight = tensor(MEGAMLA_BF16, {kDims});
    norm.y = tensor(MEGAMLA_BF16, {1, kDims});
    ask("rms_norm", norm);
  }

  // The default layer, and the sum over its ranks where the library has one.
  void layer() {
    const auto note = [&](const char* what, megamla_status status, const char* there) {
      const bool supported = status == MEGAMLA_OK;
      probes_.push_back({what, device_, supported, supported ? there : megamla_last_error()});
    };
    const api::LayerConfig config;
    note("layer", megamla_layer_is_supported(&config, device_), "layer");
    if (device_ == MEGAMLA_DEVICE_CUDA) note("sums over ranks", megamla_communicator_supported(), "nccl");
  }

  megamla_device device_;
  app::Arena arena_;
  std::vector<Probe> probes_;
};

}  // namespace

std::vector<Probe> probe_ops() {
  std::vector<Probe> all;
  for (const megamla_device device : {MEGAMLA_DEVICE_REFERENCE, MEGAMLA_DEVICE_CPU, MEGAMLA_DEVICE_CUDA}) {
    for (Probe& probe : Probes(device).all()) all.push_back(std::move(probe));
  }
  return all;
}

}  // namespace megamla::doctor
