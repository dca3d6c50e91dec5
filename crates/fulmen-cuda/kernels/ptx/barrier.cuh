// Named barriers of a thread block (`bar`), warp election, and register reallocation between warpgroups
// (`setmaxnreg`).
#pragma once
#include "types.cuh"

// Waits at named barrier `id` (1 to 15; __syncthreads is 0) until `threads` threads have arrived.
DEVICE void bar_sync(u32 id, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrives at it without waiting.
DEVICE void bar_arrive(u32 id, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same for an id that is known at compile time: an immediate operand, which ptxas does not make of a
// constant register.
template <u32 ID>
DEVICE void bar_sync(u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "r"(threads) : "memory");
}

template <u32 ID>
DEVICE void bar_arrive(u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"n"(ID), "r"(threads) : "memory");
}

// True in one lane of a converged warp, always the same one. The compiler knows that, so TMA issue takes few
// instructions.
DEVICE bool elect_one() {
    u32 yes;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(yes));
    return yes;
}

// By all four warps of a warpgroup, in a kernel with launch bounds.
template <int N>
DEVICE void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
DEVICE void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
