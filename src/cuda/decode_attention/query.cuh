// A row's 64 heads of Q: rotation, rounding, the dim order of tiles.cuh, and the factor of the optional RMSNorm. Dims
// 0 .. 255 go to shared memory, dims 256 .. 511 stay in registers as operands of wgmma: what shared memory has to
// deliver for Q K^T is a quarter less, and the 32 KB hold raw records.
#pragma once

#include "cuda/attention/rotation.cuh"
#include "cuda/decode_attention/widen.cuh"
#include "format/chunked.hpp"

namespace megamla::cuda {

// Cosines and sines of pairs 4 * eighth onwards, of a row's table in shared memory.
__device__ __forceinline__ void load_rotation(uint32_t cos_sin, int eighth, float4& cosines, float4& sines) {
  cosines = ptx::load_shared_floats(cos_sin + eighth * 16);
  sines = ptx::load_shared_floats(cos_sin + format::kRopeDim / 2 * 4 + eighth * 16);
}

// 128 threads. As operands of wgmma want it, a thread has heads `head` and head + 8 of the tile, and of each group of
// 32 dims the 8 from 8 c on (c = lane % 4): they are its columns of the group's four chunks.
struct Query {
  static constexpr int kGroups = format::kHeadDim / 32 / 2;  // of a half
  // First the words as they come, [group][row]; then the operands, [group * 2 + step of 16 columns].
  uint32_t words[kGroups * 2][4];

  // Half 0: dims 0 .. 255.
  __device__ __forceinline__ void fetch(const DecodeParams& p, const Row& row, int head, int c, int half) {
    const int first = row.first_head + head;
    const bool live[2] = {first < p.live_heads, first + 8 < p.live_heads};
    const uint16_t* from = p.q + row.token * p.q_token_stride + first * p.q_head_stride +
                           (half * kGroups * 2 + c / 2) * p.q_chunk_stride + c % 2 * 8;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint4 v = ptx::load_stream(from + r * 8 * p.q_head_stride, live[r]);
        words[g * 2 + r][0] = v.x, words[g * 2 + r][1] = v.y, words[g * 2 + r][2] = v.z, words[g * 2 + r][3] = v.w;
      }
      from += 2 * p.q_chunk_stride;
    }
  }

  // A negative softmax scale is Q's sign here: the scale is positive.
  __device__ __forceinline__ void negate() {
#pragma unroll
    for (int i = 0; i < kGroups * 2; ++i) {
#pragma unroll
      for (int w = 0; w < 4; ++w) words[i][w] ^= 0x80008000u;
    }
  }

  __device__ __forceinline__ void square(float (&sums)[2]) const {
#pragma unroll
    for (int i = 0; i < kGroups * 2; ++i) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float low = bf16x2_low(words[i][w]), high = bf16x2_high(words[i][w]);
        sums[i % 2] += low * low + high * high;
      }
    }
  }

  // Groups 14 and 15.
  __device__ __forceinline__ void rotate(uint32_t cos_sin, int c) {
#pragma unroll
    for (int g = kGroups - 2; g < kGroups; ++g) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float4 cosines, sines;
        load_rotation(cos_sin, (g - (kGroups - 2)) * 4 + c, cosines, sines);
        uint32_t(&v)[4] = words[g * 2 + r];
        const uint4 rotated = rotate_pairs(uint4{v[0], v[1], v[2], v[3]}, cosines, sines);
        v[0] = rotated.x, v[1] = rotated.y, v[2] = rotated.z, v[3] = rotated.w;
      }
    }
  }

  // Words -> operands.
  __device__ __forceinline__ void arrange() {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      uint4 u[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t(&v)[4] = words[g * 2 + r];
        u[r] = pair_bf16(uint4{v[0], v[1], v[2], v[3]});
      }
      words[g * 2][0] = u[0].x, words[g * 2][1] = u[1].x, words[g * 2][2] = u[0].y, words[g * 2][3] = u[1].y;
      words[g * 2 + 1][0] = u[0].z, words[g * 2 + 1][1] = u[1].z, words[g * 2 + 1][2] = u[0].w,
                    words[g * 2 + 1][3] = u[1].w;
    }
  }

  // A row's Q is read twice 32 KB at a time; this calls all of it to L2 in good time, four lines a thread.
  __device__ __forceinline__ static void prefetch(const DecodeParams& p, const Row& row, int thread) {
    // A line of 64 dims: one head's, or of a chunk those of four heads.
    const bool chunked = p.q_chunked != 0;
#pragma unroll 1
    for (int i = 0; i < kTileHeads * format::kHeadDim / 64 / kScoreThreads; ++i) {
      const int line = i * kScoreThreads + thread;
      const int head = row.first_head + (chunked ? line / 32 * 4 : line / 8);
      const int chunk = chunked ? line % 32 : line % 8 * 4;
      if (head < p.live_heads) {
        ptx::prefetch_l2(p.q + row.token * p.q_token_stride + head * p.q_head_stride + chunk * p.q_chunk_stride);
      }
    }
  }

  // Operands of half 0 to shared memory.
  __device__ __forceinline__ void store(const Shared& shared, int head, int c) const {
    const uint32_t at = ptx::shared_address(shared.q) + head * kRowBytes + head % 8 * 16 + c * 4;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int chunk = 0; chunk < 4; ++chunk) {
        const uint32_t to = (at ^ ((g % 2 * 4 + chunk) << 4)) + g / 2 * kBlockBytes;
        ptx::store_shared(to, words[g * 2 + chunk / 2][chunk % 2 * 2]);
        ptx::store_shared(to + 8 * kRowBytes, words[g * 2 + chunk / 2][chunk % 2 * 2 + 1]);
      }
    }
  }
};

}  // namespace megamla::cuda
