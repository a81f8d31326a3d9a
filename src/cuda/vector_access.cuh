// Loads and stores of short runs of elements: 16 bytes at a time where the run's address allows it.
#pragma once

#include <cstdint>

namespace megamla::cuda {

// Rows of a tensor whose rows may begin anywhere: true if all begin at a multiple of 16 bytes.
inline bool rows_aligned(const void* data, int64_t row_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && row_bytes % 16 == 0;
}

// `aligned`: `from` is a multiple of 16 bytes, or of kBytes if these are fewer.
template <int kBytes, class T>
__device__ inline void load_run(const T* from, bool aligned, uint32_t (&words)[kBytes / 4]) {
  static_assert((kBytes % 16 == 0 || kBytes == 8) && sizeof(T) <= 4);
  if (aligned) {
    if constexpr (kBytes == 8) {
      const uint2 pair = *reinterpret_cast<const uint2*>(from);
      words[0] = pair.x;
      words[1] = pair.y;
    } else {
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i) {
        const uint4 quad = reinterpret_cast<const uint4*>(from)[i];
        words[4 * i] = quad.x;
        words[4 * i + 1] = quad.y;
        words[4 * i + 2] = quad.z;
        words[4 * i + 3] = quad.w;
      }
    }
    return;
  }
  constexpr int kPerWord = 4 / sizeof(T);
#pragma unroll
  for (int i = 0; i < kBytes / 4; ++i) {
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < kPerWord; ++j) {
      const T element = from[kPerWord * i + j];
      uint32_t bits;
      if constexpr (sizeof(T) == 4) {
        bits = __builtin_bit_cast(uint32_t, element);
      } else {
        bits = element;
      }
      word |= bits << (8 * sizeof(T) * j);
    }
    words[i] = word;
  }
}

// Eight bf16; `aligned` as above.
__device__ inline void store_bf16x8(uint16_t* to, bool aligned, uint4 values) {
  if (aligned) {
    *reinterpret_cast<uint4*>(to) = values;
    return;
  }
  const uint32_t words[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = static_cast<uint16_t>(words[i]);
    to[2 * i + 1] = static_cast<uint16_t>(words[i] >> 16);
  }
}

// An I32 or I64 list.
struct IndexList {
  const void* data;  // null: absent
  bool wide;

  __device__ int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

}  // namespace megamla::cuda
