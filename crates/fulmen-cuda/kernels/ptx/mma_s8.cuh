// Warp-level integer tensor cores: mma.m16n8k32 with int8 operands and int32 accumulators (compute capability
// 8.0 and up).
//
// Fragments for lane 4 g + t: A holds rows g and g + 8, B column g, each at k = 4 t to 4 t + 3 and 16 more;
// the accumulator rows g and g + 8 of columns 2 t and 2 t + 1.
#pragma once
#include "types.cuh"

// c = a · b.
DEVICE void mma_m16n8k32_s8(i32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}
