// Norm per head (where there is a gain) and rotation of queries and keys; keys and values go into the cache. One block a
// row, whose angles are computed once; its warps take one head after the other.
//
// `rope_store`: heads of any size, in shared memory.
// `rope_store_64`, `rope_store_128`: heads of that size that are turned as a whole, in registers. Addresses are multiples of 16.
#include "kv.cuh"
#include "rope.cuh"

struct RopeStoreParams {
    const float* q;  // [m, n_heads, head_dim]
    const float* k;  // [m, n_kv_heads, head_dim]
    const float* v;
    float* out;            // the turned queries; may be `q`
    const float* q_gamma;  // or null
    const float* k_gamma;  // or null
    KvCache cache;
    Slots slots;
    RopeSpec rope;
    u32 n_heads;
    float epsilon;
};

constexpr u32 WARPS = 8;

extern "C" __global__ void __launch_bounds__(WARPS * 32) rope_store(const __grid_constant__ RopeStoreParams p) {
    extern __shared__ float2 turns[];  // of the row's pairs; behind them a head for each warp
    pdl_begin();
    u32 row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 pairs = p.rope.n_rot / 2, head_dim = p.cache.head_dim, n_kv = p.cache.n_kv_heads;

    // A row without a place keeps its queries, too: they would attend to nothing.
    if (!has_place(p.slots, p.cache.n_seqs, p.cache.capacity, row, threadIdx.x == 0)) return;
    u32 position = p.slots.positions[row];
    for (u32 pair = threadIdx.x; pair < pairs; pair += blockDim.x) turns[pair] = turn_of(p.rope, position, pair);
    bool superseded = is_superseded(p.slots, row);
    __syncthreads();

    float* h = (float*)(turns + pairs) + warp * head_dim;
    for (u32 at = warp; at < p.n_heads + 2 * n_kv; at += WARPS) {
        bool is_q = at < p.n_heads, is_k = !is_q && at < p.n_heads + n_kv;
        if (!is_q && superseded) break;
        u32 head = is_q ? at : is_k ? at - p.n_heads : at - p.n_heads - n_kv;
        const float* x = is_q ? p.q + ((u64)row * p.n_heads + head) * head_dim
                              : (is_k ? p.k : p.v) + ((u64)row * n_kv + head) * head_dim;
        float total = 0.0f;
        for (u32 d = lane; d < head_dim; d += 32) {
            float value = x[d];
            h[d] = value;
            total += value * value;
        }
        const float* gamma = is_q ? p.q_gamma : is_k ? p.k_gamma : nullptr;
        if (gamma) {
            float factor = 1.0f / sqrtf(warp_sum(total) / (float)head_dim + p.epsilon);
            for (u32 d = lane; d < head_dim; d += 32) h[d] = h[d] * factor * gamma[d];
        }
        if (is_q || is_k) {
            __syncwarp();
            for (u32 pair = lane; pair < pairs; pair += 32) {
                float2 turn = turns[pair];
                u32 i = first_of(p.rope, pair), j = second_of(p.rope, pair);
                float a = h[i], b = h[j];
                h[i] = a * turn.x - b * turn.y;
                h[j] = a * turn.y + b * turn.x;
            }
            __syncwarp();
        }
        if (is_q) {
            float* out = p.out + ((u64)row * p.n_heads + head) * head_dim;
            for (u32 d = lane; d < head_dim; d += 32) out[d] = h[d];
        } else {
            u8* to = is_k ? p.cache.k : p.cache.v;
            store_head(p.cache, to + head_offset(p.cache, sequence_of(p.slots, row), head, position), h);
        }
    }
}

template <int N>
struct __align__(N * 4) Floats {
    float at[N];
};

// A lane has EACH neighbours of a head.
template <int EACH>
DEVICE void store_wide(const RopeStoreParams& p) {
    constexpr u32 HEAD = EACH * 32, PAIRS = HEAD / 2;
    using Mine = Floats<EACH>;
    __shared__ float2 turns[PAIRS];
    __shared__ __align__(16) float heads[WARPS][HEAD];
    pdl_begin();
    u32 row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_kv = p.cache.n_kv_heads;

    // A row without a place keeps its queries, too: they would attend to nothing.
    if (!has_place(p.slots, p.cache.n_seqs, p.cache.capacity, row, threadIdx.x == 0)) return;
    u32 position = p.slots.positions[row];
    if (threadIdx.x < PAIRS) turns[threadIdx.x] = turn_of(p.rope, position, threadIdx.x);
    bool superseded = is_superseded(p.slots, row);
    __syncthreads();
    const bool halves = p.rope.halves;
    float2 turn[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) turn[i] = turns[halves ? (lane * EACH + i) % PAIRS : (lane * EACH + i) / 2];

    for (u32 at = warp; at < p.n_heads + 2 * n_kv; at += WARPS) {
        bool is_q = at < p.n_heads, is_k = !is_q && at < p.n_heads + n_kv;
        if (!is_q && superseded) break;
        u32 head = is_q ? at : is_k ? at - p.n_heads : at - p.n_heads - n_kv;
        const float* from = is_q ? p.q + ((u64)row * p.n_heads + head) * HEAD
                                 : (is_k ? p.k : p.v) + ((u64)row * n_kv + head) * HEAD;
        Mine x = *(const Mine*)(from + lane * EACH);
        const float* gamma = is_q ? p.q_gamma : is_k ? p.k_gamma : nullptr;
        if (gamma) {
            Mine gain = *(const Mine*)(gamma + lane * EACH);
            float total = 0.0f;
#pragma unroll
            for (int i = 0; i < EACH; i++) total += x.at[i] * x.at[i];
            float factor = 1.0f / sqrtf(warp_sum(total) / (float)HEAD + p.epsilon);
#pragma unroll
            for (int i = 0; i < EACH; i++) x.at[i] = x.at[i] * factor * gain.at[i];
        }
        if (is_q || is_k) {
            Mine other;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                float there = __shfl_xor_sync(FULL_WARP, x.at[i], 16);
                other.at[i] = halves ? there : x.at[i ^ 1];
            }
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                bool is_first = halves ? lane < 16 : i % 2 == 0;
                float across = other.at[i] * turn[i].y;
                x.at[i] = x.at[i] * turn[i].x + (is_first ? -across : across);
            }
        }
        if (is_q) {
            *(Mine*)(p.out + ((u64)row * p.n_heads + head) * HEAD + lane * EACH) = x;
        } else {
            u8* to = is_k ? p.cache.k : p.cache.v;
            *(Mine*)(heads[warp] + lane * EACH) = x;
            __syncwarp();
            store_head(p.cache, to + head_offset(p.cache, sequence_of(p.slots, row), head, position), heads[warp]);
            __syncwarp();
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) rope_store_64(const __grid_constant__ RopeStoreParams p) {
    store_wide<2>(p);
}
extern "C" __global__ void __launch_bounds__(WARPS * 32) rope_store_128(const __grid_constant__ RopeStoreParams p) {
    store_wide<4>(p);
}
