// Every fuzz target: one input in; throws Finding, crashes, or returns.
#pragma once

#include <cstdint>
#include <span>

namespace megamla::fuzz {

// File readers: the input is the file.
void safetensors(std::span<const uint8_t> file);
void config(std::span<const uint8_t> file);
void trace(std::span<const uint8_t> file);
void golden(std::span<const uint8_t> file);
// Ops, and the layer: the input is a series of decisions (choices.hpp).
void attention(std::span<const uint8_t> decisions);
void cache_ops(std::span<const uint8_t> decisions);
void linear_ops(std::span<const uint8_t> decisions);
void index_ops(std::span<const uint8_t> decisions);
void layer(std::span<const uint8_t> decisions);

}  // namespace megamla::fuzz
