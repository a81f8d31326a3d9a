// Seeded weights: every element of every tensor of a layer from a counter hash, so that any of them can be made alone.
// Good for tests and for runs without a checkpoint: FP8 codes are half-normal, scales a few powers of two around a
// base.
//
// In 64-bit unsigned arithmetic, gamma = 0x9E3779B97F4A7C15, mix = the finaliser of splitmix64:
//   key     = mix(fnv1a64(name) + seed * gamma)      name: the full checkpoint name
//   word(i) = mix(key + (i + 1) * gamma)
//   byte(j) = byte j % 8 of word(j / 8), lowest first
// Element j (row-major) of each kind is
//   e4m3      magnitude[byte(j) & 127] | byte(j) & 128
//   scale(B)  ue8m0 byte B + {-2, -1, -1, 0, 0, 0, 1, 1}[byte(j) & 7]
//   norm      bf16 (96 + (byte(j) & 63)) / 128
//   sum(k)    bf16 (byte(4j) + .. + byte(4j + 3) - 510) * 2^-k
//   sink      fp32 (sum of the bytes of word(j) - 1020) * 5 / 1024; of n heads, head word(n) % n has -inf
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
