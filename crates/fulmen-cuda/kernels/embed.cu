// Rows of a table by token. Each thread decodes eight elements.
#include "quant.cuh"

struct EmbedParams {
    const u8* table;  // [rows, width]
    const u32* tokens;
    float* out;  // [m, width]
    Fault* fault;
    u32 rows;
    u32 width;
    u32 blocks_per_row;
    u32 unused;
};

template <typename W>
DEVICE void embed(const EmbedParams& p) {
    pdl_begin();
    u32 row = blockIdx.x / p.blocks_per_row;
    u32 at = (blockIdx.x % p.blocks_per_row * blockDim.x + threadIdx.x) * 8;
    u32 token = p.tokens[row];
    if (token >= p.rows) {
        if (at == 0) report(p.fault, FAULT_TOKEN, row, token, p.rows);
        return;
    }
    if (at >= p.width) return;
    float values[8];
    decode_row8<W>(p.table + (u64)token * row_bytes<W>(p.width), at, p.width, values);
    float* out = p.out + (u64)row * p.width + at;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (at + i < p.width) out[i] = values[i];
    }
}

#define KERNEL(W, name)                                                                                               \
    extern "C" __global__ void __launch_bounds__(128) embed_##name(const __grid_constant__ EmbedParams p) {           \
        embed<W>(p);                                                                                                  \
    }
FOR_EACH_WEIGHT(KERNEL)
