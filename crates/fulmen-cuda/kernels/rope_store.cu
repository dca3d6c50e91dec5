// Fused q/k RMS norm (per head, optional), RoPE and KV store, for prefill: queries are rotated to `out`, keys
// are rotated and stored in the KV cache, values are stored. Launched by src/kernels/rope_store.rs.
//
// Grid: one block of 8 warps per row. sin and cos of the row's position are computed once, one thread per
// pair, in f64; then each warp takes one head after the other: all query heads, then key heads, then value
// heads.
//   `rope_store`: any head_dim and n_rot; a head per warp and the angles in dynamic shared memory.
//   `rope_store_64`, `rope_store_128`: head_dim 64 or 128, all of it rotated, 16-byte aligned operands; heads
//   in registers, head_dim / 32 neighboring dims per lane. Only keys and values pass through shared memory,
//   for store_head.
// Layouts: q, out [m, n_heads, head_dim] f32 (out may be q); k, v [m, n_kv_heads, head_dim] f32; the cache
// in pages of f32, f16 or Q8_0 (kv.cuh).
// Preconditions: n_rot even and at most head_dim; for the entries of 64 and 128 dims see above. A row with an
// invalid slot is reported and left as it is.
// Numerics: f32, angles in f64 (rope.cuh).
// Bound: memory bandwidth and launch latency: 50 us per layer at 2048 rows of Qwen3-4B on an H200, timed
// alone, which is 44 % of the bandwidth (92 MB).
#include "kv.cuh"
#include "rope.cuh"

constexpr u32 WARPS = 8;

// Mirrored by `RopeStoreArgs` in src/kernels/rope_store.rs.
struct RopeStoreArgs {
    const float* q;        // [m, n_heads, head_dim]
    const float* k;        // [m, n_kv_heads, head_dim]
    const float* v;        // [m, n_kv_heads, head_dim]
    float* out;            // [m, n_heads, head_dim]: the rotated queries; may be `q`
    const float* q_gamma;  // [head_dim], or null: no norm
    const float* k_gamma;  // [head_dim], or null: no norm
    KvCacheArgs cache;
    KvSlots slots;
    RopeArgs rope;
    u32 n_heads;
    float epsilon;
};
#include "layout/rope_store.cuh"

// Head `index` of a row: query heads, then key heads, then value heads.
struct RowHead {
    bool is_q, is_k;
    u32 head;
    const float* x;
    const float* gamma;  // or null

    DEVICE RowHead(const RopeStoreArgs& args, u32 row, u32 index, u32 head_dim) {
        const u32 n_kv_heads = args.cache.n_kv_heads;
        is_q = index < args.n_heads, is_k = !is_q && index < args.n_heads + n_kv_heads;
        head = is_q ? index : is_k ? index - args.n_heads : index - args.n_heads - n_kv_heads;
        x = is_q ? args.q + ((u64)row * args.n_heads + head) * head_dim
                 : (is_k ? args.k : args.v) + ((u64)row * n_kv_heads + head) * head_dim;
        gamma = is_q ? args.q_gamma : is_k ? args.k_gamma : nullptr;
    }

    DEVICE float* query_out(const RopeStoreArgs& args, u32 row, u32 head_dim) const {
        return args.out + ((u64)row * args.n_heads + head) * head_dim;
    }

    // Stores a key or value head from shared memory, by one warp.
    DEVICE void store(const RopeStoreArgs& args, u32 page, u32 position, const float* values) const {
        store_head(args.cache, is_k ? args.cache.k : args.cache.v, page, head, position, values);
    }
};

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    rope_store(const __grid_constant__ RopeStoreArgs args) {
    extern __shared__ float2 cos_sin[];  // [n_rot / 2], then a head for each warp
    pdl_begin();
    u32 row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 pairs = args.rope.n_rot / 2, head_dim = args.cache.head_dim;

    // A row with an invalid slot keeps its queries, too: they would attend to nothing.
    const u32 page = slot_page(args.slots, args.cache, row, threadIdx.x == 0);
    if (page == NO_PAGE) return;
    u32 position = args.slots.positions[row];
    for (u32 pair = threadIdx.x; pair < pairs; pair += blockDim.x)
        cos_sin[pair] = rope_cos_sin(args.rope, position, pair);
    bool superseded = is_superseded(args.slots, row);
    __syncthreads();

    float* h = (float*)(cos_sin + pairs) + warp * head_dim;
    for (u32 index = warp; index < args.n_heads + 2 * args.cache.n_kv_heads; index += WARPS) {
        const RowHead head(args, row, index, head_dim);
        if (!head.is_q && superseded) break;
        float sum_of_squares = 0.0f;
        for (u32 d = lane; d < head_dim; d += 32) {
            float value = head.x[d];
            h[d] = value;
            sum_of_squares += value * value;
        }
        if (head.gamma) {
            float factor = 1.0f / sqrtf(warp_sum(sum_of_squares) / (float)head_dim + args.epsilon);
            for (u32 d = lane; d < head_dim; d += 32) h[d] = h[d] * factor * head.gamma[d];
        }
        if (head.is_q || head.is_k) {
            __syncwarp();
            for (u32 pair = lane; pair < pairs; pair += 32) {
                u32 i = rope_first_dim(pair, args.rope.neox),
                    j = rope_second_dim(pair, args.rope.n_rot, args.rope.neox);
                rope_rotate(h[i], h[j], cos_sin[pair]);
            }
            __syncwarp();
        }
        if (head.is_q) {
            float* out = head.query_out(args, row, head_dim);
            for (u32 d = lane; d < head_dim; d += 32) out[d] = h[d];
        } else {
            head.store(args, page, position, h);
        }
    }
}

template <int N>
struct __align__(N * 4) Vector {
    float at[N];
};

// Lane l holds dims PER_LANE l to PER_LANE l + PER_LANE - 1 of a head.
template <int PER_LANE>
DEVICE void rope_store_registers(const RopeStoreArgs& args) {
    constexpr u32 HEAD_DIM = PER_LANE * 32, PAIRS = HEAD_DIM / 2;
    using Dims = Vector<PER_LANE>;
    __shared__ float2 cos_sin_of_pair[PAIRS];
    __shared__ __align__(16) float heads[WARPS][HEAD_DIM];
    pdl_begin();
    u32 row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    // A row with an invalid slot keeps its queries, too: they would attend to nothing.
    const u32 page = slot_page(args.slots, args.cache, row, threadIdx.x == 0);
    if (page == NO_PAGE) return;
    u32 position = args.slots.positions[row];
    if (threadIdx.x < PAIRS) cos_sin_of_pair[threadIdx.x] = rope_cos_sin(args.rope, position, threadIdx.x);
    bool superseded = is_superseded(args.slots, row);
    __syncthreads();
    const bool neox = args.rope.neox;
    float2 cos_sin[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        u32 dim = lane * PER_LANE + i;
        cos_sin[i] = cos_sin_of_pair[neox ? dim % PAIRS : dim / 2];
    }

    for (u32 index = warp; index < args.n_heads + 2 * args.cache.n_kv_heads; index += WARPS) {
        const RowHead head(args, row, index, HEAD_DIM);
        if (!head.is_q && superseded) break;
        Dims x = *(const Dims*)(head.x + lane * PER_LANE);
        if (head.gamma) {
            Dims gamma = *(const Dims*)(head.gamma + lane * PER_LANE);
            float sum_of_squares = 0.0f;
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) sum_of_squares += x.at[i] * x.at[i];
            float factor = 1.0f / sqrtf(warp_sum(sum_of_squares) / (float)HEAD_DIM + args.epsilon);
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) x.at[i] = x.at[i] * factor * gamma.at[i];
        }
        if (head.is_q || head.is_k) {
            // The other dim of each pair: NeoX pairs are 16 lanes apart, adjacent ones in the same lane.
            Dims other;
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) {
                float other_lane = __shfl_xor_sync(FULL_WARP, x.at[i], 16);
                other.at[i] = neox ? other_lane : x.at[i ^ 1];
            }
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) {
                bool is_first = neox ? lane < 16 : i % 2 == 0;
                float cross = other.at[i] * cos_sin[i].y;
                x.at[i] = x.at[i] * cos_sin[i].x + (is_first ? -cross : cross);
            }
        }
        if (head.is_q) {
            *(Dims*)(head.query_out(args, row, HEAD_DIM) + lane * PER_LANE) = x;
        } else {
            *(Dims*)(heads[warp] + lane * PER_LANE) = x;
            __syncwarp();
            head.store(args, page, position, heads[warp]);
            __syncwarp();
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    rope_store_64(const __grid_constant__ RopeStoreArgs args) {
    rope_store_registers<2>(args);
}
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    rope_store_128(const __grid_constant__ RopeStoreArgs args) {
    rope_store_registers<4>(args);
}
