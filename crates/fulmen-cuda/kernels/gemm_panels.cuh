// How operands of tensor-core products lie in scratch memory.
//
// A panel is 64 neighbouring elements of 16 bits (128 bytes) of all rows, row after row; the panels of a matrix follow
// each other. So a tile of any height is one run of bytes, and that run is what shared memory must hold: the 16-byte
// pieces of a row are swapped by the row's last three bits, which keeps reads by columns of pieces free of bank
// conflicts and is the 128-byte swizzle of Hopper's matrix descriptors. Elements behind the end of a row are zeros; rows
// behind the last are whatever is there, and only reach outputs that are not written.
#pragma once
#include "common.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"

constexpr u32 PANEL = 64;         // elements of a row in a panel
constexpr u32 PANEL_BYTES = 128;  // of a row

// Bytes from the start of a matrix of `rows` rows (a multiple of 8) to eight elements of a row.
DEVICE u64 panel_piece(u32 rows, u32 row, u32 element) {
    return ((u64)(element / PANEL) * rows + row) * PANEL_BYTES + ((element % PANEL / 8) ^ (row % 8)) * 16;
}

DEVICE void store8_bfloat(u8* to, const float (&x)[8]) {
    *(uint4*)to = make_uint4(MmaBf16::pack(x[0], x[1]), MmaBf16::pack(x[2], x[3]), MmaBf16::pack(x[4], x[5]),
                             MmaBf16::pack(x[6], x[7]));
}

// The upper 8 bits of a number's digits and, in `rest`, the number without them. NaN and infinities have no rest.
DEVICE float upper_part(float x, float& rest) {
    u32 bits = __float_as_uint(x);
    float upper = __uint_as_float(bits & 0xffff0000u);
    bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    rest = finite ? x - upper : 0.0f;
    return finite ? upper : x;
}

// Both parts as bf16: 16 bits of each number's digits.
DEVICE void store8_split(u8* upper_to, u8* rest_to, const float (&x)[8]) {
    float upper[8], rest[8];
#pragma unroll
    for (int i = 0; i < 8; i++) upper[i] = upper_part(x[i], rest[i]);
    store8_bfloat(upper_to, upper);
    store8_bfloat(rest_to, rest);
}
