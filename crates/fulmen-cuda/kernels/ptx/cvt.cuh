// Conversions and arithmetic on f16, bf16 and packed pairs of them, one function per instruction.
#pragma once
#include "types.cuh"

DEVICE float f16_to_f32(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// Round to nearest even; overflow becomes infinity.
DEVICE u16 f32_to_f16(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

DEVICE float bf16_to_f32(u16 bits) { return __uint_as_float((u32)bits << 16); }

// Two f32 as one f16x2 word, `low` in the lower half.
DEVICE u32 pack_f16x2(float low, float high) {
    u32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

// Two f32 as one bf16x2 word, `low` in the lower half.
DEVICE u32 pack_bf16x2(float low, float high) {
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

DEVICE u32 fma_f16x2(u32 a, u32 b, u32 c) {
    u32 value;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(value) : "r"(a), "r"(b), "r"(c));
    return value;
}

DEVICE u32 add_f16x2(u32 a, u32 b) {
    u32 value;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(value) : "r"(a), "r"(b));
    return value;
}

DEVICE u32 mul_f16x2(u32 a, u32 b) {
    u32 value;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(value) : "r"(a), "r"(b));
    return value;
}

// (a & b) | c in one LOP3.
DEVICE u32 lop3_and_or(u32 a, u32 b, u32 c) {
    u32 value;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(value) : "r"(a), "r"(b), "r"(c));
    return value;
}

// The larger of two f32; NaN if either is.
DEVICE float max_nan(float a, float b) {
    float value;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
    return value;
}

// 2^x, flushing denormals.
DEVICE float ex2_approx(float x) {
    float value;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}

// sum += the dot product of four unsigned and four signed bytes.
DEVICE i32 dp4a_u32_s32(u32 a, u32 b, i32 sum) {
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
    return sum;
}
