// Programmatic dependent launch (PDL): `griddepcontrol`, compute capability 9.0 and up; nothing below it.
//
// With PDL a kernel may start before the previous kernel of the stream has finished. Kernels call `pdl_wait`
// in every thread before they touch memory that another kernel may write: when it returns, all previous
// kernels have completed and their writes are visible. `pdl_launch_dependents` lets the next kernel start on
// free SMs.
//
// Three kernels read data that other kernels write before their `pdl_wait`:
// - attention_decode.cu: positions, sequences, and with the fused store the KV cache.
// - delta_net_step.cu: sequences and both recurrent states.
// - expert_gemv.cu, down with forwarded x: the expert ids.
//
// This is safe as long as the kernels before them keep these rules:
// - A kernel that writes positions or sequences (advance.cu), or that may copy KV pages (copy.cu), must not
//   call `pdl_launch_dependents`: no later kernel then starts before its last block has exited.
// - Expert gate-up calls it only after its own `pdl_wait`. When down starts, all kernels before gate-up have
//   therefore completed, the one that writes the ids among them.
// - A plan fuses the KV store into attention, or the calls of a delta net into one, only where no earlier
//   call of the program that writes this cache or state may still be running (forward.rs). The first call of
//   a program starts after everything before it has finished.
// All other kernels may call `pdl_launch_dependents` at any time. Only the host writes page tables, between
// launches.
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
