// Log-probabilities of a token of each row and of the row's most likely tokens, by the rule of
// fulmen_core::sampling.
//
// Algorithm: a two-level selection by 64-bit keys (ordered_key.cuh), whose order is total, and a two-level
// reduction, the sum of exponentials. Tile: 4096 logits.
// - log_probs_parts: grid rows x parts of 4096 logits, 1024 threads, 4 logits per thread in registers. A warp
//   selects the largest of its 128 keys, one per round of shuffles, into shared memory; the first warp merges
//   the 32 sorted lists, a lane per list. The sum is relative to the largest logit of the part.
// - log_probs: one block of 256 threads per row rescales and adds the sums of the parts and merges their
//   lists: each further token is the largest key below the previous one.
// Launched by src/kernels/log_probs.rs.
//
// Layouts: logits [rows, width] f32; tokens [rows] u32; part_keys [rows, parts, listed], sorted, 0 for none;
// part_sums [rows, parts]; values and indices [rows, 1 + top], that of the given token first.
// Preconditions: top and listed at most 20; parts = ceil(width / 4096).
// Numerics: sums in f32; NaN and -inf are excluded. Deterministic.
// Bound: one pass over the logits, and the latency of up to 20 rounds of selection. Not measured.
#include "largest_keys.cuh"

constexpr u32 PART = 4096;  // logits of a block of log_probs_parts
constexpr u32 PART_THREADS = 1024;
constexpr u32 ROW_THREADS = 256;
constexpr u32 MAX_LISTED = 20;  // the most tokens that are wanted
constexpr u32 NO_TOKEN = ~0u;

struct LogProbsArgs {
    const float* logits;  // [rows, width]
    const u32* tokens;    // [rows]
    float* values;        // [rows, 1 + top]
    u32* indices;         // [rows, 1 + top]
    u64* part_keys;       // [rows, parts, listed]
    float* part_sums;     // [rows, parts]
    u32 width;
    u32 parts;
    u32 listed;  // keys of a part: at least 1
    u32 top;
};
#include "layout/log_probs.cuh"

extern "C" __global__ void __launch_bounds__(PART_THREADS)
    log_probs_parts(const __grid_constant__ LogProbsArgs args) {
    constexpr u32 OWN = PART / PART_THREADS;
    __shared__ u64 lists[PART_THREADS / 32][MAX_LISTED];
    __shared__ u64 warp_keys[32];
    __shared__ float warp_sums[32];
    pdl_begin();
    u64 part = (u64)blockIdx.x * args.parts + blockIdx.y;
    const float* x = args.logits + (u64)blockIdx.x * args.width;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 keys[OWN], own = 0;
    float logits[OWN];
#pragma unroll
    for (u32 j = 0; j < OWN; j++) {
        u32 i = blockIdx.y * PART + j * PART_THREADS + threadIdx.x;
        logits[j] = i < args.width ? x[i] : -INFINITE;
        keys[j] = ordered_key(logits[j], i);
        own = keys[j] > own ? keys[j] : own;
    }
    float largest = key_value(block_max(own, warp_keys)), sum = 0.0f;
#pragma unroll
    for (u32 j = 0; j < OWN; j++) {
        // The largest may be +inf, whose difference from itself would be NaN; the row has no values then.
        if (keys[j] != 0) sum += expf(logits[j] - largest);
    }
    sum = block_reduce<Sum>(sum, warp_sums);
    if (threadIdx.x == 0) args.part_sums[part] = sum;
    for (u32 at = 0; at < args.listed; at++) {
        u64 key = take_largest(keys);
        if (lane == 0) lists[warp][at] = key;
    }
    __syncthreads();
    if (warp != 0) return;
    u32 next = 0;
    for (u32 at = 0; at < args.listed; at++) {
        u64 head = next < args.listed ? lists[lane][next] : 0;
        u64 key = warp_max(head);
        if (head == key) next++;
        if (lane == 0) args.part_keys[part * args.listed + at] = key;
    }
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    log_probs(const __grid_constant__ LogProbsArgs args) {
    __shared__ u64 warp_keys[32];
    __shared__ float warp_sums[32];
    pdl_begin();
    u64 row = blockIdx.x;
    const u64* keys = args.part_keys + row * args.parts * args.listed;
    u64 own = 0;
    for (u32 part = threadIdx.x; part < args.parts; part += blockDim.x) {
        u64 key = keys[(u64)part * args.listed];
        own = key > own ? key : own;
    }
    u64 first = block_max(own, warp_keys);
    float largest = key_value(first), sum = 0.0f;
    // Rows of NaN and -inf have the key 0, whose value is NaN.
    bool finite = first != 0 && is_finite(largest);
    for (u32 part = threadIdx.x; part < args.parts; part += blockDim.x) {
        u64 key = keys[(u64)part * args.listed];
        if (key != 0) sum += args.part_sums[row * args.parts + part] * expf(key_value(key) - largest);
    }
    float log_sum = logf(block_reduce<Sum>(sum, warp_sums));
    float* values = args.values + row * (1 + args.top);
    u32* indices = args.indices + row * (1 + args.top);
    if (threadIdx.x == 0) {
        u32 token = args.tokens[row];
        indices[0] = token;
        values[0] = NOT_A_NUMBER;
        if (finite && token < args.width) {
            float logit = args.logits[row * args.width + token];
            values[0] = logit > -INFINITE ? logit - largest - log_sum : -INFINITE;
        }
    }
    u64 previous = ~0ull;
    u32 count = args.parts * args.listed;
    for (u32 at = 1; at <= args.top; at++) {
        own = 0;
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            u64 key = keys[i];
            if (key < previous && key > own) own = key;
        }
        previous = block_max(own, warp_keys);
        if (threadIdx.x == 0) {
            bool found = finite && previous != 0;
            indices[at] = found ? key_index(previous) : NO_TOKEN;
            values[at] = !finite ? NOT_A_NUMBER : found ? key_value(previous) - largest - log_sum : -INFINITE;
        }
    }
}
