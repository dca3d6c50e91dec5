// Causal grouped-query attention for every shape, in flash-decoding style: split-KV with an online softmax,
// over the rows of the batch or over a KV cache in f32, f16 or Q8_0. CUDA cores only. Used where
// attention_decode.cu and attention_prefill*.cu do not apply; launched by src/kernels/attention_generic.rs.
//
// `attention_<type>_<PER_LANE>`: grid x = m * n_heads query heads, y = splits; 4 warps. A block computes one
// query head of one row over one split of the positions it attends to. A warp takes 4 keys at a time; lane l
// holds dims l + 32 i of the head, i < PER_LANE, so head_dim is at most 32 * PER_LANE (up to 512). The warps
// are combined in shared memory. With several splits a block leaves its max, sum and O in `partials`, and
// `attention_combine` (one block per query head) merges them. The number of splits depends on the shape
// alone; their length depends on the position, which only the device knows.
// Only keys of the sliding window are read. Soft capping, attention temperature and sinks: see
// attention_scores.cuh.
// Layouts: see attention_args.cuh. The keys that a warp takes at a time lie in one page.
// Preconditions: head_dim at most 512, a multiple of 32 over a Q8_0 cache.
// Numerics: f32 throughout. Rows with an invalid slot are reported and give zeros.
// Bound: latency of the loads and of the dot-product reductions; no reuse of K and V among the heads of a
// group. Not measured.
#include "attention_args.cuh"

constexpr int WARPS = 4;
constexpr int KEYS = 4;  // keys per warp and iteration

// Element d of a row of K or V. `scales`: of the row, for Q8_0.
template <u32 TYPE>
DEVICE float kv_element(const u8* row, const u16* scales, u32 d) {
    if (TYPE == KV_F32) return ((const float*)row)[d];
    if (TYPE == KV_F16) return f16_to_f32(((const u16*)row)[d]);
    return f16_to_f32(scales[d / 32]) * (float)(i8)row[d];
}

template <u32 TYPE, int PER_LANE>
struct SplitKv {
    // A warp's partial result.
    float row_max = -INFINITE, row_sum = 0.0f, o[PER_LANE];

    // Attends to those of positions [begin, end) of a KV head that are not below `first_visible`: the warp
    // takes KEYS of every WARPS * KEYS.
    DEVICE void attend(const AttentionArgs& args, const float (&q)[PER_LANE], float scale, float softcap,
                       u32 sequence, u32 kv_head, u64 first_visible, u64 begin, u64 end) {
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        u64 offset = kv_head * args.head_bytes, row = begin + warp * KEYS;
        u32 page_index = ~0u;
        for (u64 first = begin + warp * KEYS; first < end; first += WARPS * KEYS) {
            row = first;
            if (args.pages) {
                if (page_index != first / KV_PAGE) {
                    page_index = first / KV_PAGE;
                    offset = page_offset(args, page_entry(args, sequence, page_index), kv_head);
                }
                row = first % KV_PAGE;
            }
            const u8 *k = args.k + offset + row * args.pos_bytes, *v = args.v + offset + row * args.pos_bytes;
            const u32 blocks = args.head_dim / 32;  // of Q8_0
            const u64 scales_at = offset + KV_PAGE * args.head_dim + row * blocks * 2;
            const u16 *k_scales = (const u16*)(args.k + scales_at),
                      *v_scales = (const u16*)(args.v + scales_at);
            float scores[KEYS];
#pragma unroll
            for (int key = 0; key < KEYS; key++) {
                const u32 at = min(first + key, end - 1) - first;
                const u8* head = k + at * args.pos_bytes;
                float dot = 0.0f;
#pragma unroll
                for (int i = 0; i < PER_LANE; i++) {
                    u32 d = lane + 32 * i;
                    if (d < args.head_dim) dot += q[i] * kv_element<TYPE>(head, k_scales + at * blocks, d);
                }
                scores[key] = dot;
            }
            float new_max = row_max;
#pragma unroll
            for (int key = 0; key < KEYS; key++) {
                float score = warp_sum(scores[key]) * scale;
                if (softcap > 0.0f) score = softcap * tanhf(score / softcap);
                scores[key] = first + key >= first_visible && first + key < end ? score : -INFINITE;
                new_max = fmaxf(new_max, scores[key]);
            }
            float base = softmax_base(new_max);
            float rescale = expf(row_max - base);
            row_max = new_max;
            row_sum *= rescale;
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) o[i] *= rescale;
#pragma unroll
            for (int key = 0; key < KEYS; key++) {
                if (first + key >= end) break;
                if (first + key < first_visible) continue;
                const u8* head = v + key * args.pos_bytes;
                float p = expf(scores[key] - base);
                row_sum += p;
#pragma unroll
                for (int i = 0; i < PER_LANE; i++) {
                    u32 d = lane + 32 * i;
                    if (d < args.head_dim) o[i] += p * kv_element<TYPE>(head, v_scales + key * blocks, d);
                }
            }
        }
    }

    // Combines the warps and writes the output, or the partial result of the split.
    DEVICE void combine_warps(const AttentionArgs& args, u32 head, u32 split) {
        __shared__ float warp_max[WARPS], warp_sums[WARPS], warp_o[WARPS][32 * PER_LANE];
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        if (lane == 0) {
            warp_max[warp] = row_max;
            warp_sums[warp] = row_sum;
        }
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) warp_o[warp][lane + 32 * i] = o[i];
        __syncthreads();
        float block_max = -INFINITE;
#pragma unroll
        for (int w = 0; w < WARPS; w++) block_max = fmaxf(block_max, warp_max[w]);
        // Of several splits, the sink is added where they are merged.
        const bool with_sink = args.scores.sinks && args.splits == 1;
        const float sink = with_sink ? args.scores.sinks[head] : -INFINITE;
        block_max = fmaxf(block_max, sink);
        float base = softmax_base(block_max), sum = with_sink ? expf(sink - base) : 0.0f, weights[WARPS];
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            weights[w] = expf(warp_max[w] - base);
            sum += weights[w] * warp_sums[w];
        }
        float* partial = args.partials + ((u64)blockIdx.x * args.splits + split) * (args.head_dim + 2);
        for (u32 d = threadIdx.x; d < args.head_dim; d += 32 * WARPS) {
            float value = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) value += weights[w] * warp_o[w][d];
            if (args.splits == 1) {
                args.out[(u64)blockIdx.x * args.head_dim + d] = sum == 0.0f ? 0.0f : value / sum;
            } else {
                partial[2 + d] = value;
            }
        }
        if (args.splits > 1 && threadIdx.x == 0) {
            partial[0] = block_max;
            partial[1] = sum;
        }
    }

    static DEVICE void run(const AttentionArgs& args) {
        pdl_begin();
        u32 lane = threadIdx.x % 32;
        u32 row = blockIdx.x / args.n_heads, head = blockIdx.x % args.n_heads, split = blockIdx.y;
        bool over_cache = args.slots.positions != nullptr;
        u64 kv_len = row + 1, sequence = 0;
        if (over_cache) {
            bool reports = head == 0 && split == 0 && threadIdx.x == 0;
            bool valid = slot_is_valid(args.slots, args.n_seqs, args.capacity, row, reports);
            kv_len = valid ? (u64)args.slots.positions[row] + 1 : 0;
            sequence = valid ? sequence_of(args.slots, row) : 0;
        }
        // The first key of the window, and rounded down so that the keys of a warp lie in one page.
        u64 first_visible = kv_len ? args.scores.first_visible(kv_len - 1) : 0;
        u64 from = first_visible / KEYS * KEYS;
        u64 length = (kv_len - from + args.splits - 1) / args.splits;
        length = (length + WARPS * KEYS - 1) / (WARPS * KEYS) * (WARPS * KEYS);
        u64 begin = from + split * length, end = min(kv_len, begin + length);
        const float scale = args.scale * (kv_len ? args.scores.temperature(kv_len - 1) : 1.0f);
        if (args.pages && head == 0)
            report_invalid_pages(args, row, sequence, begin, end, threadIdx.x, 32 * WARPS);

        SplitKv partial;
        float q[PER_LANE];
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            u32 d = lane + 32 * i;
            q[i] = d < args.head_dim ? args.q[(u64)blockIdx.x * args.head_dim + d] : 0.0f;
            partial.o[i] = 0.0f;
        }
        partial.attend(args, q, scale, args.scores.softcap, sequence, head / args.group, first_visible, begin,
                       end);
        partial.combine_warps(args, head, split);
    }
};

#define KERNEL(TYPE, name, PER_LANE)                                                \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                        \
        attention_##name##_##PER_LANE(const __grid_constant__ AttentionArgs args) { \
        SplitKv<TYPE, PER_LANE>::run(args);                                         \
    }
#define KERNELS(TYPE, name) \
    KERNEL(TYPE, name, 1)   \
    KERNEL(TYPE, name, 2)   \
    KERNEL(TYPE, name, 4)   \
    KERNEL(TYPE, name, 8)   \
    KERNEL(TYPE, name, 16)
KERNELS(KV_F32, f32)
KERNELS(KV_F16, f16)
KERNELS(KV_Q8_0, q8_0)

// Merges the splits of a query head of a row; one block each.
extern "C" __global__ void __launch_bounds__(128)
    attention_combine(const __grid_constant__ AttentionArgs args) {
    pdl_begin();
    const u32 stride = args.head_dim + 2;
    const float* partials = args.partials + (u64)blockIdx.x * args.splits * stride;
    const float sink = args.scores.sinks ? args.scores.sinks[blockIdx.x % args.n_heads] : -INFINITE;
    float row_max = sink;
    for (u32 split = 0; split < args.splits; split++) row_max = fmaxf(row_max, partials[split * stride]);
    float base = softmax_base(row_max), sum = args.scores.sinks ? expf(sink - base) : 0.0f;
    for (u32 split = 0; split < args.splits; split++) {
        const float* partial = partials + split * stride;
        sum += expf(partial[0] - base) * partial[1];
    }
    for (u32 d = threadIdx.x; d < args.head_dim; d += blockDim.x) {
        float value = 0.0f;
        for (u32 split = 0; split < args.splits; split++) {
            const float* partial = partials + split * stride;
            value += expf(partial[0] - base) * partial[2 + d];
        }
        args.out[(u64)blockIdx.x * args.head_dim + d] = sum == 0.0f ? 0.0f : value / sum;
    }
}
