// Dequantizes (or copies) weights of any type into the K-major panels of the prefill GEMM (gemm_panels.cuh):
// block formats become bf16, f16 and bf16 stay what they are, f32 is split into two bf16, the rests in a
// second set of panels behind the first. Launched by src/kernels/gemm/dequantize.rs.
//
// Element-wise: a warp takes 256 elements of 4 rows, 8 elements per lane, so that loads and stores are whole
// lines. Grid: x = ceil(k / 256), y = ceil(n / 32); 8 warps.
// Layouts: w [n, k] in GGUF's row layout (quant.cuh); out k_panels panels of `rows` rows, in which row r of
// the weight is row first + r / 8 * step + r % 8. With step = 16, two weights interleave in groups of 8 rows
// (gate-up).
// Preconditions: first a multiple of 8. Numerics: rounded once, to bf16 or f16.
// Bound: memory bandwidth; about 3.6 of 33 ms of a 2048-token prefill of Qwen3-4B on an H200, 63 % of the
// bandwidth.
#include "gemm_panels.cuh"
#include "quant.cuh"

// Mirrored by `DequantizeArgs` in src/kernels/gemm/dequantize.rs.
struct DequantizeArgs {
    const u8* w;  // [n, k]
    u8* out;
    u32 n;
    u32 k;
    u32 k_panels;  // of a row
    u32 rows;      // of the panels
    u32 first;     // row of the panels that is the weight's first; a multiple of 8
    u32 step;      // rows of the panels from one group of 8 rows to the next
};
#include "layout/dequantize.cuh"

constexpr u32 ROWS = 4;  // per warp

template <typename W>
struct Dequantize {
    static DEVICE void chunk(const DequantizeArgs& args, const u8* row, u32 at, u8* to) {
        float x[8];
        dequantize_row8<W>(row, at, args.k, x);
        store_chunk<MmaBf16>(to, x);
    }
};

template <>
struct Dequantize<F32> {
    static DEVICE void chunk(const DequantizeArgs& args, const u8* row, u32 at, u8* to) {
        float x[8];
        dequantize_row8<F32>(row, at, args.k, x);
        store_chunk_split(to, to + (u64)args.k_panels * args.rows * PANEL_ROW_BYTES, x);
    }
};

struct Copy16 {
    static DEVICE void chunk(const DequantizeArgs& args, const u8* row, u32 at, u8* to) {
        const u16* from = (const u16*)row + at;
        uint4 bits;
        if (at + 8 <= args.k && ((u64)from & 15) == 0) {
            bits = *(const uint4*)from;
        } else {
            u32 words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 low = at + 2 * i < args.k ? from[2 * i] : 0,
                    high = at + 2 * i + 1 < args.k ? from[2 * i + 1] : 0;
                words[i] = low | high << 16;
            }
            bits = make_uint4(words[0], words[1], words[2], words[3]);
        }
        *(uint4*)to = bits;
    }
};
template <>
struct Dequantize<F16> : Copy16 {};
template <>
struct Dequantize<BF16> : Copy16 {};

template <typename W>
DEVICE void dequantize(const DequantizeArgs& args) {
    pdl_begin();
    u32 at = blockIdx.x * 256 + threadIdx.x % 32 * 8, first = (blockIdx.y * 8 + threadIdx.x / 32) * ROWS;
    if (at >= args.k_panels * PANEL) return;
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
        u32 row = first + i;
        if (row >= args.n) return;
        u32 to = args.first + row / 8 * args.step + row % 8;
        Dequantize<W>::chunk(args, args.w + row_bytes<W>(args.k) * row, at,
                             args.out + panel_chunk(args.rows, to, at));
    }
}

#define KERNEL(W, name)                                                  \
    extern "C" __global__ void __launch_bounds__(256)                    \
        dequantize_##name(const __grid_constant__ DequantizeArgs args) { \
        dequantize<W>(args);                                             \
    }
FOR_EACH_WEIGHT(KERNEL)
