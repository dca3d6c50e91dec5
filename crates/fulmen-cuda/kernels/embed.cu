// Embedding lookup: gathers and dequantizes rows of a table by token id. Element-wise: eight elements per
// thread, 128 threads per block; grid: x = m * blocks_per_row. Launched by src/kernels/embed.rs.
//
// Layouts: table [held, width] in any weight type (quant.cuh): rows `first` to `first + held` of a table of
// `rows`; tokens [m]; out [m, width] f32, zeros for tokens of rows that are not here.
// Preconditions: none. A token out of range is reported, and its row is not written.
// Bound: launch latency. Not measured.
#include "quant.cuh"

// Mirrored by `EmbedArgs` in src/kernels/embed.rs.
struct EmbedArgs {
    const u8* table;  // [held, width]
    const u32* tokens;
    float* out;  // [m, width]
    Fault* fault;
    u32 rows;   // of the whole table
    u32 first;  // the first that is here
    u32 held;   // how many are
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
    float values[8] = {};
    // Below `first` the difference wraps around.
    u32 held = token - args.first;
    if (held < args.held)
        dequantize_row8<W>(args.table + (u64)held * row_bytes<W>(args.width), at, args.width, values);
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
