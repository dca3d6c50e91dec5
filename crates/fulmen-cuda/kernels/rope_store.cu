// Norm per head (where there is a gain) and rotation of queries and keys; keys and values go into the cache. One block a
// row, whose angles are computed once; its warps take one head after the other, in shared memory.
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

extern "C" __global__ void __launch_bounds__(256) rope_store(const __grid_constant__ RopeStoreParams p) {
    extern __shared__ float2 turns[];  // of the row's pairs; behind them a head for each warp
    begin();
    u32 row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    u32 pairs = p.rope.n_rot / 2, head_dim = p.cache.head_dim, n_kv = p.cache.n_kv_heads;

    // A row without a place keeps its queries, too: they would attend to nothing.
    if (!has_place(p.slots, p.cache.n_seqs, p.cache.capacity, row, threadIdx.x == 0)) return;
    u32 position = p.slots.positions[row];
    for (u32 pair = threadIdx.x; pair < pairs; pair += blockDim.x) turns[pair] = turn_of(p.rope, position, pair);
    bool superseded = is_superseded(p.slots, row);
    __syncthreads();

    float* h = (float*)(turns + pairs) + warp * head_dim;
    for (u32 at = warp; at < p.n_heads + 2 * n_kv; at += warps) {
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
