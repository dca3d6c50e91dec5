// Warp-level tensor cores: ldmatrix and mma.m16n8k16 with f32 accumulators (compute capability 8.0 and up).
//
// Fragments of mma.m16n8k16 for lane 4 g + t: A holds rows g and g + 8, B column g, the accumulator rows g
// and g + 8 of columns 2 t and 2 t + 1.
#pragma once
#include "ptx/cvt.cuh"
#include "ptx/shared.cuh"

DEVICE void ldmatrix_x4(u32 (&r)[4], SharedAddress address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

DEVICE void ldmatrix_x4_trans(u32 (&r)[4], SharedAddress address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

// c += a · b.
DEVICE void mma_m16n8k16_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE void mma_m16n8k16_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c += a · b for rows 0 to 7 only: rows 8 to 15 of A are zero, and their accumulators are discarded.
DEVICE void mma_m16n8k16_f16_rows0_7(float (&c)[2], u32 a0, u32 a2, u32 b0, u32 b1) {
    [[maybe_unused]] float unused0, unused1;
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(unused0), "=f"(unused1)
        : "r"(a0), "r"(0), "r"(a2), "r"(0), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(0.0f), "f"(0.0f));
}

// The two 16-bit element types of GEMM operands, as template arguments.
struct MmaF16 {
    static DEVICE u32 pack(float low, float high) { return pack_f16x2(low, high); }
    static DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
        mma_m16n8k16_f16(c, a, b0, b1);
    }
};

struct MmaBf16 {
    static DEVICE u32 pack(float low, float high) { return pack_bf16x2(low, high); }
    static DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
        mma_m16n8k16_bf16(c, a, b0, b1);
    }
};
