// Warp-level integer tensor cores: mma.m16n8k32 with signed 8-bit operands and s32 accumulators (compute
// capability 8.0 and up).
//
// Fragments for lane 4 g + t, four bytes per register: A holds columns 4 t to 4 t + 3 of row g, of row g + 8,
// and of the same rows 16 columns further; B rows 4 t to 4 t + 3 of column g, and 16 rows further; the
// accumulator rows g and g + 8 of columns 2 t and 2 t + 1.
#pragma once
#include "types.cuh"

// d = a · b + start.
DEVICE void mma_m16n8k32_s8(i32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, i32 start) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start));
}
