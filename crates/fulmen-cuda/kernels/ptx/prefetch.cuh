// Prefetch of a cache line into L2, on every compute capability.
#pragma once
#include "types.cuh"

// `from` is in global memory. A hint: nothing depends on it.
DEVICE void prefetch_global_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }
