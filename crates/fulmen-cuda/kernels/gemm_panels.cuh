// The packed layout of GEMM operands in scratch memory: K-major panels with the 128-byte swizzle.
//
// A panel holds 64 consecutive elements along K (128 bytes of f16 or bf16) of all rows, one row after the
// other; the panels of a matrix follow each other along K. So a tile of any height is one contiguous range of
// bytes, and that range is what shared memory must hold: cp.async or one TMA bulk copy loads it. The 16-byte
// chunk c of row r is stored at chunk c ^ (r % 8), which keeps ldmatrix free of bank conflicts and is the
// 128-byte swizzle of wgmma descriptors. Elements past the end of a row are zeros; rows past the last are
// undefined and only reach outputs that are not written.
#pragma once
#include "common.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"

constexpr u32 PANEL = 64;             // elements of a row in a panel
constexpr u32 PANEL_ROW_BYTES = 128;  // bytes of a row in a panel

// Bytes from the start of a matrix of `rows` rows (a multiple of 8) to the chunk of 8 elements at `k` of a
// row.
DEVICE u64 panel_chunk(u32 rows, u32 row, u32 k) {
    return ((u64)(k / PANEL) * rows + row) * PANEL_ROW_BYTES + ((k % PANEL / 8) ^ (row % 8)) * 16;
}

// Packs a chunk of 8 elements.
template <typename Type>
DEVICE void store_chunk(u8* to, const float (&x)[8]) {
    *(uint4*)to = make_uint4(Type::pack(x[0], x[1]), Type::pack(x[2], x[3]), Type::pack(x[4], x[5]),
                             Type::pack(x[6], x[7]));
}

// The upper 8 bits of the significand and, in `rest`, what remains. NaN and infinities have no rest.
DEVICE float split_upper(float x, float& rest) {
    u32 bits = __float_as_uint(x);
    float upper = __uint_as_float(bits & 0xffff0000u);
    bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    rest = finite ? x - upper : 0.0f;
    return finite ? upper : x;
}

// Packs a chunk as two bf16 matrices, upper parts and rests: 16 bits of each significand.
DEVICE void store_chunk_split(u8* upper_to, u8* rest_to, const float (&x)[8]) {
    float upper[8], rest[8];
#pragma unroll
    for (int i = 0; i < 8; i++) upper[i] = split_upper(x[i], rest[i]);
    store_chunk<MmaBf16>(upper_to, upper);
    store_chunk<MmaBf16>(rest_to, rest);
}
