// The larger halves of two f16x2 words (compute capability 8.0 and up).
#pragma once
#include "types.cuh"

DEVICE u32 max_f16x2(u32 a, u32 b) {
    u32 value;
    asm("max.f16x2 %0, %1, %2;" : "=r"(value) : "r"(a), "r"(b));
    return value;
}
