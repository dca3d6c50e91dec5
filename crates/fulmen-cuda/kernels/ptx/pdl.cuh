// Programmatic dependent launch (PDL): `griddepcontrol`, compute capability 9.0 and up; nothing below it.
//
// With PDL a kernel may start before the previous kernel of the stream has finished. Kernels call `pdl_wait`
// in every thread before they touch memory that another kernel may write: when it returns, all previous
// kernels have completed and their writes are visible. `pdl_launch_dependents` lets the next kernel start on
// free SMs.
//
// The exception is attention_decode.cu, which reads before its `pdl_wait`:
// - Positions and sequences. A kernel that writes them must not call `pdl_launch_dependents`: no later kernel
//   then starts before its last block has exited. advance.cu, which writes positions, does not.
// - With the fused store, the KV cache and its page table. The plan of a program fuses the store only where
//   no earlier call that writes this cache may still be running (forward.rs), and the first call of a program
//   starts after everything before it has finished.
// Other kernels may call `pdl_launch_dependents` at any time.
#pragma once
#include "types.cuh"

DEVICE void pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEVICE void pdl_launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// The first statement of kernels that have nothing to overlap with the previous kernel.
DEVICE void pdl_begin() {
    pdl_launch_dependents();
    pdl_wait();
}
