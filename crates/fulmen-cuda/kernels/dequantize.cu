// Weights of any type as panels of 16-bit floats, for products of many rows: see panels.cuh. Block formats become bf16,
// f16 and bf16 stay what they are, and f32 becomes two bf16, the second in the panels behind the first's.
//
// A warp takes 256 elements of some rows, eight elements a lane: bytes in and bytes out are whole lines.
#include "panels.cuh"
#include "quant.cuh"

struct DequantizeParams {
    const u8* w;  // [n, k]
    u8* out;
    u32 n;
    u32 k;
    u32 panels;  // of a row
    u32 rows;    // of the panels
    u32 first;   // row of the panels that the weight's first is; a multiple of 8
    u32 step;    // rows of the panels from one eight of rows to the next
};

constexpr u32 ROWS = 4;  // of a warp

template <typename W>
struct Dequantize {
    static DEVICE void store(const DequantizeParams& p, const u8* row, u32 at, u8* to) {
        float x[8];
        decode_row8<W>(row, at, p.k, x);
        store8_bfloat(to, x);
    }
};

template <>
struct Dequantize<F32> {
    static DEVICE void store(const DequantizeParams& p, const u8* row, u32 at, u8* to) {
        float x[8];
        decode_row8<F32>(row, at, p.k, x);
        store8_split(to, to + (u64)p.panels * p.rows * PANEL_BYTES, x);
    }
};

struct Copy {
    static DEVICE void store(const DequantizeParams& p, const u8* row, u32 at, u8* to) {
        const u16* from = (const u16*)row + at;
        uint4 bits;
        if (at + 8 <= p.k && ((u64)from & 15) == 0) {
            bits = *(const uint4*)from;
        } else {
            u32 words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 low = at + 2 * i < p.k ? from[2 * i] : 0, high = at + 2 * i + 1 < p.k ? from[2 * i + 1] : 0;
                words[i] = low | high << 16;
            }
            bits = make_uint4(words[0], words[1], words[2], words[3]);
        }
        *(uint4*)to = bits;
    }
};
template <>
struct Dequantize<F16> : Copy {};
template <>
struct Dequantize<BF16> : Copy {};

template <typename W>
DEVICE void dequantize(const DequantizeParams& p) {
    pdl_begin();
    u32 at = blockIdx.x * 256 + threadIdx.x % 32 * 8, first = (blockIdx.y * 8 + threadIdx.x / 32) * ROWS;
    if (at >= p.panels * PANEL) return;
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
        u32 row = first + i;
        if (row >= p.n) return;
        u32 to = p.first + row / 8 * p.step + row % 8;
        Dequantize<W>::store(p, p.w + row_bytes<W>(p.k) * row, at, p.out + panel_piece(p.rows, to, at));
    }
}

#define KERNEL(W, name)                                                                                               \
    extern "C" __global__ void __launch_bounds__(256) dequantize_##name(const __grid_constant__ DequantizeParams p) { \
        dequantize<W>(p);                                                                                             \
    }
FOR_EACH_WEIGHT(KERNEL)
