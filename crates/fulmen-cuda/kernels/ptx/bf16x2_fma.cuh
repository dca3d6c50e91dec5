// Two bf16 fused multiply-adds (compute capability 8.0 and up).
#pragma once
#include "types.cuh"

DEVICE u32 fma_bf16x2(u32 a, u32 b, u32 c) {
    u32 value;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(value) : "r"(a), "r"(b), "r"(c));
    return value;
}
