// Norm per head (where there is a gain) and rotation of queries and keys; keys and values go into the cache. One warp a
// head, with the head in shared memory.
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

extern "C" __global__ void __launch_bounds__(128) rope_store(const __grid_constant__ RopeStoreParams p) {
    extern __shared__ float heads[];
    begin();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, head_dim = p.cache.head_dim;
    u32 n_kv = p.cache.n_kv_heads, per_row = p.n_heads + 2 * n_kv;
    u64 task = (u64)blockIdx.x * (blockDim.x / 32) + warp;
    if (task >= (u64)p.slots.m * per_row) return;
    u32 row = task / per_row, head = task % per_row;
    bool is_q = head < p.n_heads, is_k = !is_q && head < p.n_heads + n_kv;
    if (!is_q) head -= is_k ? p.n_heads : p.n_heads + n_kv;

    // Both on their way at once.
    u32 position = p.slots.positions[row];
    const float* x = is_q ? p.q + ((u64)row * p.n_heads + head) * head_dim
                          : (is_k ? p.k : p.v) + ((u64)row * n_kv + head) * head_dim;
    float* h = heads + warp * head_dim;
    float total = 0.0f;
    for (u32 d = lane; d < head_dim; d += 32) {
        float value = x[d];
        h[d] = value;
        total += value * value;
    }

    // A row without a place keeps its queries, too: they would attend to nothing.
    bool tells = is_k && head == 0 && lane == 0;
    if (!has_place(p.slots, p.cache.n_seqs, p.cache.capacity, row, tells)) return;
    if (!is_q && is_superseded(p.slots, row)) return;

    const float* gamma = is_q ? p.q_gamma : is_k ? p.k_gamma : nullptr;
    if (gamma) {
        float factor = 1.0f / sqrtf(warp_sum(total) / (float)head_dim + p.epsilon);
        for (u32 d = lane; d < head_dim; d += 32) h[d] = h[d] * factor * gamma[d];
    }
    __syncwarp();
    if (is_q || is_k) {
        for (u32 pair = lane; pair < p.rope.n_rot / 2; pair += 32) {
            float2 turn = turn_of(p.rope, position, pair);
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
