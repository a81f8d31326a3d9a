// Seeded weights: every element of every tensor of a layer from a counter hash, so that any of them can be made alone
// (docs/golden.md has the formula). Good for tests and for runs without a checkpoint: FP8 codes are half-normal, scales
// a few powers of two around a base.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/model_config.hpp"
#include "megamla/types.h"

namespace megamla::io {

enum class SeededKind { kE4m3, kScale, kNorm, kSum, kSink };

struct TensorSpec {
  std::string name;  // without "layers.N.attn."
  megamla_dtype dtype;
  std::vector<int64_t> shape;
  SeededKind kind;
  int parameter;  // kScale: base byte; kSum: k of s * 2^-k

  int64_t elements() const;
  int64_t bytes() const { return elements() * megamla_dtype_size(dtype); }
};

// The tensors of one layer in checkpoint order (contract section 15); the indexer's are not part of it.
std::vector<TensorSpec> layer_tensors(const ModelConfig& config, int64_t layer);
// "layers.N.attn.", or "mtp.S.attn." for draft layer S = N - num_hidden_layers.
std::string tensor_prefix(const ModelConfig& config, int64_t layer);

// Fills `out` (spec.bytes() bytes) with the tensor named `full_name`.
void fill_seeded(const TensorSpec& spec, const std::string& full_name, uint64_t seed, void* out);
// Hidden states: BF16 [rows, width] of the name "hidden", kind sum(7).
void fill_hidden_states(uint64_t seed, int64_t rows, int64_t width, void* out);

}  // namespace megamla::io
