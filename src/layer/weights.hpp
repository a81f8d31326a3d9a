// The weights of one rank of one layer: sliced from checkpoint form, permuted once, kept as FP8.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "megamla/layer.h"
#include "megamla/permute_weights.h"
#include "ops/memory.hpp"

namespace megamla::layer {

// An owned C-contiguous tensor, in memory of a GPU or (device -1) of the host.
class Buffer {
 public:
  Status allocate(int32_t cuda_device, megamla_dtype dtype, std::initializer_list<int64_t> shape);
  // Host bytes to `offset`.
  Status write(int64_t offset, const void* from, int64_t bytes) { return memory_.write(offset, from, bytes); }
  const megamla_tensor& view() const { return view_; }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  ops::Memory memory_;
  megamla_tensor view_{};
};

struct Weights {
  Buffer wqa_wkv, wqa_wkv_scale;  // [q_lora + 512, hidden], block scales: one GEMM
  Buffer q_norm, kv_norm;
  Buffer wq_b, wq_b_scale;  // rows in chunked order, one scale per row and 32 columns
  Buffer attn_sink;
  Buffer wo_a, wo_a_scale;  // [G, o_lora, 4096], columns in chunked order
  Buffer wo_b, wo_b_scale;  // [hidden, G * o_lora], block scales
  Buffer compressor;        // BF16 [512 or 1024, hidden]: wkv, then wgate for ratio 2
  Buffer compressor_norm;

  int64_t bytes() const;
};

class WeightLoader {
 public:
  // `cuda_device`: where the weights are kept; -1: host memory.
  WeightLoader(const megamla_layer_config& config, int32_t cuda_device);

  // Checks every tensor, then takes them all; nothing changes on an error.
  Status load(std::span<const megamla_named_tensor> tensors);
  Status check_complete() const;
  const Weights& weights() const { return weights_; }

 private:
  struct Spec {
    megamla_dtype dtype;
    std::vector<int64_t> shape;  // whole, of all ranks
    std::string partner;         // the tensor that must come in the same call
    bool loaded = false;
  };
  using Given = std::map<std::string, megamla_tensor>;

  void specify();
  Status check(std::span<const megamla_named_tensor> tensors, Given* given) const;
  Status take_concatenated(const Given& given);
  Status take_wq_b(const Given& given);
  Status take_wo_a(const Given& given);
  Status take_wo_b(const Given& given);
  Status take_plain(const Given& given);
  // The rank's rows of a weight and its scales, permuted.
  Status take_permuted(megamla_permute_kind kind, const megamla_tensor& in, const megamla_tensor& in_scale, Buffer& out,
                       Buffer& out_scale) const;
  Status take_columns(const megamla_tensor& from, int64_t begin, int64_t columns, Buffer& out) const;

  megamla_layer_config config_;
  int32_t cuda_device_;
  int64_t heads_;   // on this rank
  int64_t groups_;  // on this rank
  std::map<std::string, Spec> specs_;
  Weights weights_;
};

}  // namespace megamla::layer
