// Routing of a mixture of experts: the `top_k` experts of each row by its logits, and their weights. Top-k
// selection by warp reductions: one warp per row, four rows per block. Launched by src/kernels/route.rs.
//
// A lane holds the logits lane, lane + 32, ... as ordered keys (ordered_key.cuh); `top_k` warp maxima select
// the experts, equal keys by the lower id. Lane j then computes the weight of the j-th expert. With groups
// of experts, keys go through shared memory, where 32 / groups lanes scan each group for its two largest;
// keys of all groups but the best become 0.
// `route_<N>`: up to 32 N experts, whose keys of 64 bits lie in registers, N per lane; no tiles.
//
// Layouts: logits [m, n_experts]; bias [n_experts] or null; weights and ids [m, top_k].
// Preconditions: at most 1024 experts, top_k at most 32. A row with a logit or key that is not finite has ids
// 0 to top_k - 1 and NaN weights.
// Numerics: f32.
// Bound: latency of the shuffles, about 0.1 us for each of the top_k by estimate. Not measured.
#include "routing.cuh"

constexpr u32 WARPS = 4;

// Mirrored by `RouteArgs` in src/kernels/route.rs.
struct RouteArgs {
    const float* logits;
    float* weights;
    u32* ids;
    RouteRule rule;
    u32 m;
    u32 unused;
};
#include "layout/route.cuh"

// By a whole warp, of the keys in its registers. `shared` has room for all.
template <int N>
DEVICE void leave_best_groups(const RouteRule& rule, u64 (&keys)[N], u64* shared) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < N; i++) shared[i * 32 + lane] = keys[i];
    __syncwarp();
    const BestGroups best = BestGroups::of_row(rule, shared);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const u32 id = i * 32 + lane;
        if (id < rule.n_experts && !best.have(id)) keys[i] = 0;
    }
}

template <int N>
DEVICE void route(const RouteArgs& args) {
    pdl_begin();
    const RouteRule& rule = args.rule;
    const u32 lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= args.m) return;
    const float* logits = args.logits + (u64)row * rule.n_experts;
    const ExpertScore score = ExpertScore::of_row(rule, logits);
    __shared__ u64 keys_of_rows[WARPS][32 * N];
    bool finite = true;
    u64 keys[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const u32 id = i * 32 + lane;
        keys[i] = 0;
        if (id >= rule.n_experts) continue;
        float key = logits[id];
        finite = finite && is_finite(key);
        if (rule.keys_are_scores()) {
            key = rule.key(score(key), id);
            finite = finite && is_finite(key);
        }
        keys[i] = ordered_key(key, id);
    }
    u32 id = lane;
    float weight = NOT_A_NUMBER;
    if (__all_sync(FULL_WARP, finite)) {
        if (rule.groups > 0) leave_best_groups<N>(rule, keys, keys_of_rows[threadIdx.x / 32]);
#pragma unroll 1
        for (u32 slot = 0; slot < rule.top_k; slot++) {
            u64 best = 0;
#pragma unroll
            for (int i = 0; i < N; i++) best = keys[i] > best ? keys[i] : best;
            best = warp_max(best);
#pragma unroll
            for (int i = 0; i < N; i++) keys[i] = keys[i] == best ? 0 : keys[i];
            if (lane == slot) id = key_index(best);
        }
        weight = routing_weight(rule, score, lane < rule.top_k ? logits[id] : 0.0f);
    }
    if (lane >= rule.top_k) return;
    args.weights[(u64)row * rule.top_k + lane] = weight;
    args.ids[(u64)row * rule.top_k + lane] = rule.held_id(id);
}

#define KERNEL(N)                                            \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) \
        route_##N(const __grid_constant__ RouteArgs args) {  \
        route<N>(args);                                      \
    }
KERNEL(1)
KERNEL(2)
KERNEL(4)
KERNEL(8)
KERNEL(16)
KERNEL(32)
