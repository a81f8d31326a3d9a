// Memory of a GPU that the library itself owns or moves: a layer's weights, rows copied or cleared within a step.
#pragma once

#include <cstdint>

#include "core/status.hpp"

struct CUstream_st;

namespace megamla::cuda {

// Plain device memory, 256-byte aligned.
Status allocate(int32_t device, int64_t bytes, void** memory);
void release(int32_t device, void* memory) noexcept;
// From host memory; waits.
Status upload(int32_t device, void* to, const void* from, int64_t bytes);

// `rows` rows of `width` bytes, `pitch` bytes apart, on the stream.
Status clear_rows(int32_t device, CUstream_st* stream, void* to, int64_t pitch, int64_t width, int64_t rows);
Status copy_rows(int32_t device, CUstream_st* stream, void* to, int64_t to_pitch, const void* from, int64_t from_pitch,
                 int64_t width, int64_t rows);

}  // namespace megamla::cuda
