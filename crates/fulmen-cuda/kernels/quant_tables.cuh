// The formats whose 4-bit quants are indices of a table of 16 signed bytes: MXFP4, IQ4_NL, IQ4_XS.
#pragma once
#include "types.cuh"

// Four values a word, in the order of their indices.
struct Table16 {
    u32 a, b, c, d;
};
// E2M1 times 2: 0, 1, 2, 3, 4, 6, 8, 12, and the same with the sign bit.
constexpr Table16 MXFP4_VALUES = {0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc};
// -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113.
constexpr Table16 IQ4_VALUES = {0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535};

// The values at the four lowest nibbles of a word, as bytes: both halves of the table are looked up by the
// low three bits of a nibble, and the fourth bit selects.
DEVICE u32 look_up4(Table16 table, u32 nibbles) {
    const u32 index = nibbles & 0x7777;
    return __byte_perm(__byte_perm(table.a, table.b, index), __byte_perm(table.c, table.d, index),
                       0x3210 | (nibbles & 0x8888) >> 1);
}

// The values at the low and at the high nibbles of the four bytes of a word.
DEVICE void look_up8(Table16 table, u32 word, u32& low, u32& high) {
    const u32 first = look_up4(table, word), second = look_up4(table, word >> 16);
    low = __byte_perm(first, second, 0x6420), high = __byte_perm(first, second, 0x7531);
}

// The scale of MXFP4, 2^(e - 128); the two least ones are subnormal.
DEVICE float e8m0_halved(u32 e) { return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

// The same in f16: infinite from e = 144 on, 0 below 104.
DEVICE u32 e8m0_halved_f16(u32 e) {
    return e > 143 ? 0x7c00 : e > 113 ? (e - 113) << 10 : e > 103 ? 1u << (e - 104) : 0;
}

// The scale of 32 elements in a block of IQ4_XS, without that of the block: number j of eight 6-bit scales,
// -32 to 31. `low` is byte 4 + j / 2 of the block, `high` bytes 2 and 3.
DEVICE int iq4_xs_scale(u32 low, u32 high, u32 j) {
    return (int)((low >> (j % 2 * 4) & 15) | (high >> (2 * j) & 3) << 4) - 32;
}
