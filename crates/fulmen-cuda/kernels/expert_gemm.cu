// Grouped GEMM by expert id, for prefill: y[pair, n] = x W[id(pair)]^T + bias with block-quantized weights,
// on tensor cores in bf16. A pair is a row of x and one of its experts (experts.cuh). Launched by
// src/kernels/expert_gemm.rs.
//
// expert_sort: groups the pairs by expert (expert_sort.cuh).
// expert_pack: x in bf16, rows padded with zeros to whole K steps; a thread converts 8 elements. Tiles read x
//   again for every TILE_N columns, and f32 would be the larger part of their traffic from L2.
// expert_gemm_<type>: tile 64 pairs (TILE_M) x 128 rows of W (TILE_N), K step 64; grid ceil(n / TILE_N) x the
//   most tiles that there can be. 8 warps as 2 x 4, each 32 x 32 by mma.m16n8k16; 2 blocks per SM. W is
//   dequantized to bf16 in registers; both operands go to one shared buffer of 27 KiB: the next step waits in
//   registers while the current one is multiplied. Parts of 16 pairs that a tile does not have are neither
//   loaded nor multiplied. Epilogue: bias, then the activation with a gate that was computed before, or the
//   multiplication by the pair's routing weight.
//
// Layouts: x [m, k] or [pairs, k] f32, packed [rows][k rounded up to 64] bf16; W [n_experts, n, k] as in a
// GGUF file; y, gate [pairs, n] f32; order [pairs], tiles [max_tiles]; shared [64 or 128][72] bf16.
// Preconditions: k a multiple of the format's block; at most MAX_EXPERTS experts.
// Numerics: bf16 operands, f32 sums.
// Bound: dequantization and mma.sync, for many pairs also x and W from L2. H200, prefill of gpt-oss-20b in
// MXFP4: 118 TFLOP/s, 12 % of the dense bf16 peak.
#include "expert_sort.cuh"
#include "ptx/bf16x2_fma.cuh"
#include "ptx/mma.cuh"
#include "quant.cuh"

constexpr u32 TILE_M = 64, TILE_N = 128, K_STEP = 64, PITCH = K_STEP + 8, THREADS = 256;

// Mirrored by `ExpertPackArgs` in src/kernels/expert_gemm.rs.
struct ExpertPackArgs {
    const float* x;  // [rows, k]
    u16* out;        // [rows, pitch] bf16
    u32 rows;
    u32 k;
    u32 pitch;    // k rounded up to K_STEP
    u32 aligned;  // the rows of `x` start at multiples of 16 bytes
};

// Mirrored by `ExpertGemmArgs` there.
struct ExpertGemmArgs {
    const u16* x;  // packed: [m or pairs, k rounded up to K_STEP] bf16
    const u8* w;
    const u32* ids;
    const u32* order;
    const ExpertTile* tiles;
    const float* bias;     // [n_experts, n] or null
    const float* gate;     // [pairs, n]: gate projections before the activation, or null
    const float* weights;  // [pairs] routing weights, or null
    float* out;            // [pairs, n]
    GatedActivation activation;
    u32 n;
    u32 k;
    u32 pairs_per_row_of_x;  // top_k, or 1 if every pair has a row of x
    u32 unused;
};
#include "layout/expert_gemm.cuh"

extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    expert_sort(const __grid_constant__ ExpertSortArgs args) {
    pdl_begin();
    sort_pairs(args);
}

DEVICE uint4 pack8(const float (&v)[8]) {
    return make_uint4(pack_bf16x2(v[0], v[1]), pack_bf16x2(v[2], v[3]), pack_bf16x2(v[4], v[5]),
                      pack_bf16x2(v[6], v[7]));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    expert_pack(const __grid_constant__ ExpertPackArgs args) {
    pdl_begin();
    const u32 chunks = args.pitch / 8;
    const u64 at = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (at >= (u64)args.rows * chunks) return;
    const u32 row = (u32)(at / chunks), column = (u32)(at % chunks) * 8;
    float v[8];
    load_row8(args.x + (u64)row * args.k, column, args.k, args.aligned, v);
    *(uint4*)(args.out + (u64)row * args.pitch + column) = pack8(v);
}

// Elements `at` to `at + 7` of a row of W in bf16, zeros past its end.
template <typename W>
DEVICE uint4 dequantize_row8_bf16(const u8* row, u32 at, u32 k) {
    float v[8];
    dequantize_row8<W>(row, at, k, v);
    return pack8(v);
}

// Doubled E2M1 values are bf16 values whose bytes are looked up, and the scale is a power of two: exact.
template <>
DEVICE uint4 dequantize_row8_bf16<MXFP4>(const u8* row, u32 at, u32 k) {
    if (at >= k) return make_uint4(0, 0, 0, 0);
    constexpr u32 SIGNED_ZEROS = 0x80008000;
    const u8* block = row + (u64)(at / MXFP4::BLOCK) * MXFP4::BYTES;
    const u32 chunk = at % MXFP4::BLOCK / 8, scale = __float_as_uint(e8m0_halved(block[0])) >> 16;
    // Aligned words that hold the 8 bytes; the last only where they end in it.
    const u8* quants = block + 1 + chunk % 2 * 8;
    const u32 odd = (u32)(u64)quants & 3;
    const u32* words = (const u32*)(quants - odd);
    const u32 a = words[0], b = words[1], c = odd ? words[2] : 0;
    u32 out[4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 word = i ? __funnelshift_r(b, c, odd * 8) : __funnelshift_r(a, b, odd * 8);
        // Four indices as bytes, and their low three bits as the selectors of a byte permutation.
        const u32 indices = word >> (chunk < 2 ? 0 : 4) & 0x0f0f0f0f;
        const u32 selectors = __byte_perm(indices | indices >> 4, 0, 0x4420) & 0x7777;
        const u32 low = __byte_perm(0x40008000, 0x4000c080, selectors);
        const u32 high = __byte_perm(0x40403f00, 0x41414040, selectors) | (indices & 0x08080808) << 4;
        out[2 * i] = fma_bf16x2(__byte_perm(low, high, 0x5140), scale * 0x10001, SIGNED_ZEROS);
        out[2 * i + 1] = fma_bf16x2(__byte_perm(low, high, 0x7362), scale * 0x10001, SIGNED_ZEROS);
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

template <typename W>
DEVICE void expert_gemm(const ExpertGemmArgs& args) {
    __shared__ __align__(16) u16 xs[TILE_M][PITCH], ws[TILE_N][PITCH];
    __shared__ u32 pairs[TILE_M];
    pdl_begin();
    const ExpertTile tile = args.tiles[blockIdx.y];
    if (tile.pairs == 0) return;
    const u32 column0 = blockIdx.x * TILE_N, thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    // Rows past the last repeat it; their results are not stored.
    if (thread < TILE_M) pairs[thread] = args.order[tile.first + min(thread, tile.pairs - 1)];
    __syncthreads();
    // A thread loads two chunks of 8 columns of x and four of W: chunk thread % 8 of rows thread / 8 + 32 i.
    const u32 chunk = thread % 8 * 8, load_row = thread / 8;
    const u32 pitch = (args.k + K_STEP - 1) / K_STEP * K_STEP, loaded_rows = (tile.pairs + 15) / 16 * 16;
    const u16* x[2];
    const u8* w[4];
#pragma unroll
    for (int i = 0; i < 2; i++)
        x[i] = args.x + (u64)(pairs[load_row + 32 * i] / args.pairs_per_row_of_x) * pitch + chunk;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 column = min(column0 + load_row + 32 * i, args.n - 1);
        w[i] = args.w + ((u64)tile.expert * args.n + column) * row_bytes<W>(args.k);
    }
    uint4 x8[2], w8[4];
    auto load = [&](u32 k0) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (load_row + 32 * i < loaded_rows) x8[i] = *(const uint4*)(x[i] + k0);
#pragma unroll
        for (int i = 0; i < 4; i++) w8[i] = dequantize_row8_bf16<W>(w[i], k0 + chunk, args.k);
    };
    // The warp's part of the tile: 32 pairs and 32 columns.
    const u32 top = warp / 4 * 32, left = warp % 4 * 32;
    float sums[2][4][4] = {};
    load(0);
    for (u32 k0 = 0; k0 < args.k; k0 += K_STEP) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (load_row + 32 * i < loaded_rows) *(uint4*)&xs[load_row + 32 * i][chunk] = x8[i];
#pragma unroll
        for (int i = 0; i < 4; i++) *(uint4*)&ws[load_row + 32 * i][chunk] = w8[i];
        __syncthreads();
        if (k0 + K_STEP < args.k) load(k0 + K_STEP);
#pragma unroll
        for (int k = 0; k < (int)K_STEP; k += 16) {
            if (top >= tile.pairs) break;
            u32 a[2][4], b[2][4];
            // Lane l addresses row l % 16 and columns 8 (l / 16) of a 16 x 16 part: the four 8 x 8 matrices
            // of A, and of two B fragments, whose second and third matrix change places.
#pragma unroll
            for (int i = 0; i < 2; i++) {
                ldmatrix_x4(a[i], shared_address(&xs[top + 16 * i + lane % 16][k + lane / 16 * 8]));
                ldmatrix_x4(b[i], shared_address(&ws[left + 16 * i + lane % 16][k + lane / 16 * 8]));
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (top + 16 * i >= tile.pairs) continue;
#pragma unroll
                for (int j = 0; j < 4; j++)
                    mma_m16n8k16_bf16(sums[i][j], a[i], b[j / 2][j % 2], b[j / 2][2 + j % 2]);
            }
        }
    }
    // Lane 4 g + t holds rows g and g + 8, columns 2 t and 2 t + 1 of each 16 x 8 part.
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 row = top + 16 * i + lane / 4 + 8 * half;
            if (row >= tile.pairs) continue;
            const u32 pair = pairs[row];
            const float weight = args.weights ? args.weights[pair] : 1.0f;
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const u32 column = column0 + left + 8 * j + lane % 4 * 2 + c;
                    if (column >= args.n) continue;
                    const u64 at = (u64)pair * args.n + column;
                    float value = sums[i][j][2 * half + c];
                    if (args.bias) value += args.bias[(u64)tile.expert * args.n + column];
                    if (args.gate) value = args.activation(args.gate[at], value);
                    args.out[at] = value * weight;
                }
        }
}

#define KERNEL(W, name)                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)              \
        expert_gemm_##name(const __grid_constant__ ExpertGemmArgs args) { \
        expert_gemm<W>(args);                                             \
    }
KERNEL(Q4_0, q4_0)
KERNEL(Q4_1, q4_1)
KERNEL(Q5_0, q5_0)
KERNEL(Q5_1, q5_1)
KERNEL(Q8_0, q8_0)
KERNEL(Q2_K, q2_k)
KERNEL(Q3_K, q3_k)
KERNEL(Q4_K, q4_k)
KERNEL(Q5_K, q5_k)
KERNEL(Q6_K, q6_k)
KERNEL(Q8_K, q8_k)
KERNEL(MXFP4, mxfp4)
KERNEL(IQ4_NL, iq4_nl)
KERNEL(IQ4_XS, iq4_xs)
