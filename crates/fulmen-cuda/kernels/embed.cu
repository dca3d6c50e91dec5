// Embedding lookup: gathers and dequantizes rows of a table by token id. Element-wise: eight elements per
// thread, 128 threads per block; grid: x = m * blocks_per_row. Launched by src/kernels/embed.rs.
//
// Layouts: table [rows, width] in any weight type (quant.cuh); tokens [m]; out [m, width] f32.
// Preconditions: none. A token out of range is reported, and its row is not written.
// Bound: launch latency. Not measured.
#include "quant.cuh"

// Mirrored by `EmbedArgs` in src/kernels/embed.rs.
struct EmbedArgs {
    const u8* table;  // [rows, width]
    const u32* tokens;
    float* out;  // [m, width]
    Fault* fault;
    u32 rows;
    u32 width;
    u32 blocks_per_row;
    u32 unused;
};
#include "layout/embed.cuh"

template <typename W>
DEVICE void embed(const EmbedArgs& args) {
    pdl_begin();
    u32 row = blockIdx.x / args.blocks_per_row;
    u32 at = (blockIdx.x % args.blocks_per_row * blockDim.x + threadIdx.x) * 8;
    u32 token = args.tokens[row];
    if (token >= args.rows) {
        if (at == 0) report(args.fault, FAULT_TOKEN, row, token, args.rows);
        return;
    }
    if (at >= args.width) return;
    float values[8];
    dequantize_row8<W>(args.table + (u64)token * row_bytes<W>(args.width), at, args.width, values);
    float* out = args.out + (u64)row * args.width + at;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (at + i < args.width) out[i] = values[i];
    }
}

#define KERNEL(W, name)                                                                                      \
    extern "C" __global__ void __launch_bounds__(128) embed_##name(const __grid_constant__ EmbedArgs args) { \
        embed<W>(args);                                                                                      \
    }
FOR_EACH_WEIGHT(KERNEL)
