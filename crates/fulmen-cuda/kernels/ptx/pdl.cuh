// Programmatic dependent launch (PDL): `griddepcontrol`, compute capability 9.0 and up; nothing below it.
//
// With PDL a kernel may start before the previous kernel of the stream has finished. EVERY kernel calls
// `pdl_wait` in every thread before it touches memory that another kernel may write: when it returns, all
// previous kernels have completed and their writes are visible. `pdl_launch_dependents` lets the next kernel
// start on free SMs; it may be called at any time.
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
