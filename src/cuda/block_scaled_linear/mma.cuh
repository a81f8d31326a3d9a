// The instructions of this kernel that C++ has no name for.
#pragma once

#include <cstdint>

namespace megamla::cuda::linear {

// sum[16 rows, 8 columns] += a[16, 16] b[16, 8], bf16 products summed in fp32. With g = lane / 4, t = lane % 4:
//   a[0], a[2]: row g,     k = 2t, 2t+1 and 2t+8, 2t+9       b[0], b[1]: column g, the same k
//   a[1], a[3]: row g + 8                                    sum[0], sum[1]: row g, columns 2t, 2t+1; [2], [3]: g + 8
// Columns of the operands may be dealt to k in any order, as long as both do it alike.
__device__ inline void mma_m16n8k16(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes that are read once: they do not displace what L1 holds.
__device__ inline uint4 load_once(const void* from) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(from));
  return v;
}

// All threads of the cluster; what they wrote to shared memory before is seen after.
__device__ inline void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// From the shared memory of block `rank` of the cluster, at the place of `mine` in this block's.
__device__ inline float4 load_of_block(const float* mine, uint32_t rank) {
  float4 v;
  const auto here = static_cast<uint32_t>(__cvta_generic_to_shared(mine));
  asm volatile(
      "{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %4, %5;\n\t"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n\t}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(here), "r"(rank));
  return v;
}

}  // namespace megamla::cuda::linear
