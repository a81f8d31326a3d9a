// A row's 64 heads of Q into shared memory: rotation, rounding, the dim order of tiles.cuh, and the factor of the
// optional RMSNorm.
#pragma once

#include "cuda/attention/rotation.cuh"
#include "cuda/decode_attention/producer.cuh"
#include "format/chunked.hpp"

namespace megamla::cuda {

// Dims 448 + 2 * pair onwards: 4 pairs.
__device__ __forceinline__ uint4 rotate_chunk(uint4 v, const float* cos_sin, int pair) {
  const float4 cosines = *reinterpret_cast<const float4*>(cos_sin + pair);
  const float4 sines = *reinterpret_cast<const float4*>(cos_sin + format::kRopeDim / 2 + pair);
  return rotate_pairs(v, cosines, sines);
}

// 128 threads: head thread % 64, every second group of 32 dims. The words come to the places of the group's four
// chunks; then the thread that fetched them turns them into chunks.
struct QueryPart {
  int head;
  int parity;  // of the groups
  uint32_t at;
  __device__ QueryPart(const Shared& shared, int thread)
      : head(thread % kTileHeads), parity(thread / kTileHeads), at(ptx::shared_address(shared.q) + head * kRowBytes) {}
};
constexpr int kQueryGroups = format::kHeadDim / 32 / 2;

__device__ __forceinline__ void fetch_query(const DecodeParams& p, const QueryPart& part, const Row& row) {
  const bool live = row.first_head + part.head < p.live_heads;
  const int64_t chunk_stride = p.q_chunked != 0 ? p.heads * format::kQChunkDims : format::kQChunkDims;
  const int64_t head_stride = p.q_chunked != 0 ? format::kQChunkDims : p.q_head_stride;
  const int head = live ? row.first_head + part.head : 0;
  const uint16_t* from = p.q + row.token * p.q_token_stride + head * head_stride + part.parity * 2 * chunk_stride;
#pragma unroll 1
  for (int k = 0; k < kQueryGroups; ++k) {
    const int chunk = (k * 2 + part.parity) * 4;
    ptx::copy_16_async(chunk_address(part.at, part.head % 8, chunk), from, live);
    ptx::copy_16_async(chunk_address(part.at, part.head % 8, chunk + 1), from + 8, live);
    ptx::copy_16_async(chunk_address(part.at, part.head % 8, chunk + 2), from + chunk_stride, live);
    ptx::copy_16_async(chunk_address(part.at, part.head % 8, chunk + 3), from + chunk_stride + 8, live);
    from += 4 * chunk_stride;
  }
  ptx::commit_copies();
}

__device__ __forceinline__ void arrange_query(const DecodeParams& p, Shared& shared, const QueryPart& part,
                                              const Rotation& rotation) {
  ptx::wait_copies<0>();
  float square = 0;
#pragma unroll 1
  for (int k = 0; k < kQueryGroups; ++k) {
    const int chunk = (k * 2 + part.parity) * 4;
    uint4 u[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) u[w] = ptx::load_shared(chunk_address(part.at, part.head % 8, chunk + w));
    if (p.q_norm != 0) {
#pragma unroll
      for (int w = 0; w < 4; ++w) square += sum_of_squares(u[w]);
    }
    if (k == kQueryGroups - 1 && rotation.cos_sin != nullptr) {  // groups 14 and 15
#pragma unroll
      for (int w = 0; w < 4; ++w) u[w] = rotate_chunk(u[w], rotation.cos_sin, part.parity * 16 + w * 4);
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) u[w] = pair_bf16(u[w]);
    ptx::store_shared(chunk_address(part.at, part.head % 8, chunk), uint4{u[0].x, u[1].x, u[2].x, u[3].x});
    ptx::store_shared(chunk_address(part.at, part.head % 8, chunk + 1), uint4{u[0].y, u[1].y, u[2].y, u[3].y});
    ptx::store_shared(chunk_address(part.at, part.head % 8, chunk + 2), uint4{u[0].z, u[1].z, u[2].z, u[3].z});
    ptx::store_shared(chunk_address(part.at, part.head % 8, chunk + 3), uint4{u[0].w, u[1].w, u[2].w, u[3].w});
  }
  shared.q_square[part.parity][part.head] = square;
  ptx::fence_async_proxy();
}

// What a head's q . k is multiplied by to be a base-2 logit.
__device__ __forceinline__ float logit_scale(const DecodeParams& p, const Shared& shared, int head) {
  if (p.q_norm == 0) return p.logit_scale;
  const float mean = (shared.q_square[0][head] + shared.q_square[1][head]) * (1.0F / format::kHeadDim);
  return p.logit_scale * rsqrtf(mean + p.q_norm_eps);
}

}  // namespace megamla::cuda
