// A kernel and the one before it in its stream. A launch with LaunchShape::overlaps may begin while the kernel before
// it still runs, so that nothing waits for the launch itself; its kernel then calls follow_previous before anything
// else that touches memory.
#pragma once

namespace megamla::cuda::ptx {

// The next kernel's blocks may take what this one leaves free, once all of its blocks are there.
__device__ inline void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;"); }

// Until every kernel before this one has ended and what it wrote can be seen. Every block must wait, also one without
// work: the next kernel takes this one's end for the end of all before it.
// Loads through the read-only path (__ldg) may be moved ahead of it by the compiler: small kernels use plain ones.
__device__ inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ inline void follow_previous() {
  let_next_begin();
  wait_for_previous();
}

}  // namespace megamla::cuda::ptx
