// Causal grouped-query attention, among rows and over a cache: the plain kernel, for every shape.
//
// A block of four warps takes one query head of one row over one part of what the row sees; a warp takes four keys at a
// time, with the head spread over its lanes, and keeps a running softmax. Where a row's context has several parts, each
// leaves its maximum, its sum and its weighted values, and `attention_combine` puts them together. How many parts there
// are depends on the shape alone, how long they are on the position, which only the device knows.
#include "attention.cuh"

constexpr int WARPS = 4;
constexpr int KEYS = 4;  // of a warp at a time

template <u32 TYPE>
DEVICE float kv_element(const u8* row, u32 d) {
    if (TYPE == KV_F32) return ((const float*)row)[d];
    if (TYPE == KV_F16) return f16_to_f32(((const u16*)row)[d]);
    const u8* block = row + d / 32 * 34;
    return f16_to_f32(*(const u16*)block) * (float)(i8)block[2 + d % 32];
}

// Lane l holds elements l, l + 32, … of a head: PER_LANE of them.
template <u32 TYPE, int PER_LANE>
DEVICE void attend(const AttentionParams& p) {
    __shared__ float maxima[WARPS], sums[WARPS], values[WARPS][32 * PER_LANE];
    pdl_begin();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 row = blockIdx.x / p.n_heads, head = blockIdx.x % p.n_heads, part = blockIdx.y;
    bool over_cache = p.slots.positions != nullptr;
    u64 seen = row + 1, sequence = 0;
    if (over_cache) {
        bool tells = head == 0 && part == 0 && threadIdx.x == 0;
        bool placed = has_place(p.slots, p.n_seqs, p.capacity, row, tells);
        seen = placed ? (u64)p.slots.positions[row] + 1 : 0;
        sequence = placed ? sequence_of(p.slots, row) : 0;
    }
    u64 each = (seen + p.parts - 1) / p.parts;
    each = (each + WARPS * KEYS - 1) / (WARPS * KEYS) * (WARPS * KEYS);
    u64 from = part * each, to = min(seen, from + each);
    const u8* k = p.k + sequence * p.seq_bytes + head / p.group * p.head_bytes;
    const u8* v = p.v + sequence * p.seq_bytes + head / p.group * p.head_bytes;

    float q[PER_LANE], acc[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        u32 d = lane + 32 * i;
        q[i] = d < p.head_dim ? p.q[(u64)blockIdx.x * p.head_dim + d] : 0.0f;
        acc[i] = 0.0f;
    }
    float maximum = -INFINITE, sum = 0.0f;
    for (u64 first = from + warp * KEYS; first < to; first += WARPS * KEYS) {
        float scores[KEYS];
#pragma unroll
        for (int key = 0; key < KEYS; key++) {
            const u8* at = k + min(first + key, to - 1) * p.pos_bytes;
            float dot = 0.0f;
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) {
                u32 d = lane + 32 * i;
                if (d < p.head_dim) dot += q[i] * kv_element<TYPE>(at, d);
            }
            scores[key] = dot;
        }
        float largest = maximum;
#pragma unroll
        for (int key = 0; key < KEYS; key++) {
            scores[key] = first + key < to ? warp_sum(scores[key]) * p.scale : -INFINITE;
            largest = fmaxf(largest, scores[key]);
        }
        // Where nothing but -inf was seen, any finite number will do.
        float base = largest == -INFINITE ? 0.0f : largest;
        float shrink = expf(maximum - base);
        maximum = largest;
        sum *= shrink;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) acc[i] *= shrink;
#pragma unroll
        for (int key = 0; key < KEYS; key++) {
            if (first + key >= to) break;
            const u8* at = v + (first + key) * p.pos_bytes;
            float weight = expf(scores[key] - base);
            sum += weight;
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) {
                u32 d = lane + 32 * i;
                if (d < p.head_dim) acc[i] += weight * kv_element<TYPE>(at, d);
            }
        }
    }

    if (lane == 0) {
        maxima[warp] = maximum;
        sums[warp] = sum;
    }
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) values[warp][lane + 32 * i] = acc[i];
    __syncthreads();
    float largest = -INFINITE;
#pragma unroll
    for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, maxima[w]);
    float base = largest == -INFINITE ? 0.0f : largest, total = 0.0f, shares[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        shares[w] = expf(maxima[w] - base);
        total += shares[w] * sums[w];
    }
    float* partial = p.partials + ((u64)blockIdx.x * p.parts + part) * (p.head_dim + 2);
    for (u32 d = threadIdx.x; d < p.head_dim; d += 32 * WARPS) {
        float value = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) value += shares[w] * values[w][d];
        if (p.parts == 1) {
            p.out[(u64)blockIdx.x * p.head_dim + d] = total == 0.0f ? 0.0f : value / total;
        } else {
            partial[2 + d] = value;
        }
    }
    if (p.parts > 1 && threadIdx.x == 0) {
        partial[0] = largest;
        partial[1] = total;
    }
}

#define KERNEL(TYPE, name, PER_LANE)                                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                                          \
        attention_##name##_##PER_LANE(const __grid_constant__ AttentionParams p) {                                    \
        attend<TYPE, PER_LANE>(p);                                                                                    \
    }
#define KERNELS(TYPE, name)                                                                                           \
    KERNEL(TYPE, name, 1)                                                                                             \
    KERNEL(TYPE, name, 2)                                                                                             \
    KERNEL(TYPE, name, 4)                                                                                             \
    KERNEL(TYPE, name, 8)                                                                                             \
    KERNEL(TYPE, name, 16)
KERNELS(KV_F32, f32)
KERNELS(KV_F16, f16)
KERNELS(KV_Q8_0, q8_0)

// One block a query head of a row.
extern "C" __global__ void __launch_bounds__(128) attention_combine(const __grid_constant__ AttentionParams p) {
    pdl_begin();
    const float* partials = p.partials + (u64)blockIdx.x * p.parts * (p.head_dim + 2);
    float largest = -INFINITE;
    for (u32 part = 0; part < p.parts; part++) largest = fmaxf(largest, partials[part * (p.head_dim + 2)]);
    float base = largest == -INFINITE ? 0.0f : largest, total = 0.0f;
    for (u32 part = 0; part < p.parts; part++) {
        const float* partial = partials + part * (p.head_dim + 2);
        total += expf(partial[0] - base) * partial[1];
    }
    for (u32 d = threadIdx.x; d < p.head_dim; d += blockDim.x) {
        float value = 0.0f;
        for (u32 part = 0; part < p.parts; part++) {
            const float* partial = partials + part * (p.head_dim + 2);
            value += expf(partial[0] - base) * partial[2 + d];
        }
        p.out[(u64)blockIdx.x * p.head_dim + d] = total == 0.0f ? 0.0f : value / total;
    }
}
