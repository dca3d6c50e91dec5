// Routing of a mixture of experts: how logits become scores and the weights of the selected experts
// (route.cu, router.cu), and the selection by all threads of a block.
#pragma once
#include "experts.cuh"
#include "ordered_key.cuh"
#include "silu.cuh"

constexpr u32 SOFTMAX = 0, SIGMOID = 1, SELECTED_SOFTMAX = 2;
constexpr float MIN_WEIGHT_SUM = 6.103515625e-5f;

// How the experts of a row are chosen and weighed. Mirrored by `RouteRule` in src/kernels/routing.rs.
struct RouteRule {
    const float* bias;  // [n_experts], added to the scores for the selection only; or null
    u32 n_experts;
    u32 top_k;  // at most 32
    u32 scores;
    u32 renormalize;
    float scale;
    u32 first;        // the first expert that is here
    u32 held;         // how many are
    u32 groups;       // of equal size, at most 32; or 0
    u32 groups_used;  // those of a row
    u32 unused;

    // Whether keys are scores, not logits.
    DEVICE bool keys_are_scores() const { return bias || groups > 0; }

    // The key of an expert whose score this is.
    DEVICE float key(float score, u32 id) const { return bias ? score + bias[id] : score; }

    // The id of an expert among those that are here, or NO_EXPERT.
    DEVICE u32 held_id(u32 id) const { return id - first < held ? id - first : NO_EXPERT; }
};
#include "layout/routing.cuh"

// The score of a logit. `largest` and `sum` are those of the softmax over all experts.
struct ExpertScore {
    u32 kind;
    float largest, sum;

    DEVICE float operator()(float logit) const {
        return kind == SOFTMAX ? expf(logit - largest) / sum : kind == SIGMOID ? sigmoid(logit) : logit;
    }

    // By a whole warp, of logits in memory.
    static DEVICE ExpertScore of_row(const RouteRule& rule, const float* logits) {
        ExpertScore score{rule.scores, 0.0f, 1.0f};
        if (rule.scores != SOFTMAX) return score;
        float largest = -INFINITE, sum = 0.0f;
        for (u32 id = threadIdx.x % 32; id < rule.n_experts; id += 32) largest = fmaxf(largest, logits[id]);
        score.largest = warp_max(largest);
        for (u32 id = threadIdx.x % 32; id < rule.n_experts; id += 32)
            sum += expf(logits[id] - score.largest);
        score.sum = warp_sum(sum);
        return score;
    }
};

// The weight of the expert that this lane has selected, by a whole warp; lanes from `top_k` on have none.
DEVICE float routing_weight(const RouteRule& rule, const ExpertScore& score, float logit) {
    const bool selected = threadIdx.x % 32 < rule.top_k;
    float weight = selected ? score(logit) : 0.0f;
    if (rule.scores == SELECTED_SOFTMAX) {
        const float most = warp_max(selected ? weight : -INFINITE);
        weight = selected ? expf(weight - most) : 0.0f;
        weight /= warp_sum(weight);
    }
    if (rule.renormalize) weight /= fmaxf(warp_sum(weight), MIN_WEIGHT_SUM);
    return weight * rule.scale;
}

// The groups that the experts of a row are chosen from: those with the largest sums of two keys, equal sums
// by the lower group.
struct BestGroups {
    u32 used;   // bit `parts * g` for group g
    u32 parts;  // lanes that scan a group, a power of two
    u32 size;   // experts of a group

    DEVICE bool have(u32 id) const { return used >> (id / size * parts) & 1; }

    // By a whole warp, of the ordered keys of all experts, in shared memory; none is NaN or infinite.
    static DEVICE BestGroups of_row(const RouteRule& rule, const u64* keys) {
        BestGroups best{0, 32u >> (32 - __clz(rule.groups - 1)), rule.n_experts / rule.groups};
        const u32 lane = threadIdx.x % 32, group = lane / best.parts;
        float first = -INFINITE, second = -INFINITE;
        for (u32 i = lane % best.parts; i < best.size && group < rule.groups; i += best.parts) {
            const float key = key_value(keys[group * best.size + i]);
            second = fmaxf(second, fminf(first, key));
            first = fmaxf(first, key);
        }
        for (u32 width = 1; width < best.parts; width *= 2) {
            const float other = __shfl_xor_sync(FULL_WARP, first, width);
            const float next = __shfl_xor_sync(FULL_WARP, second, width);
            second = fmaxf(fmaxf(second, next), fminf(first, other));
            first = fmaxf(first, other);
        }
        const float sum = first + second;
        u32 better = 0;
        for (u32 g = 0; g < rule.groups; g++) {
            const float other = __shfl_sync(FULL_WARP, sum, g * best.parts);
            better += other > sum || (other == sum && g < group) ? 1 : 0;
        }
        best.used = __ballot_sync(FULL_WARP, group < rule.groups && better < rule.groups_used);
        return best;
    }
};

// Routes one row by all threads of a block, which has at least as many threads as experts, rounded up to
// whole warps. Its logits are in shared memory. An expert's rank is the number of larger keys (equal logits:
// the lower id first), counted by as many threads for each expert as there are; experts of a rank below
// `top_k` are selected. With groups, keys of others than the best become 0 first. Compared with a warp
// maximum for each slot, one after the other, this takes a fifth of the time. A row with a logit or key that
// is not finite has ids 0 to top_k - 1 and NaN weights.
template <u32 MAX_ROUTED>
struct BlockRouting {
    __align__(16) u64 keys[MAX_ROUTED];
    u32 ranks[MAX_ROUTED];
    u32 selected[32];

    // The first warp writes weights and ids of the row.
    DEVICE void route(const RouteRule& rule, const float* logits, float* weights, u32* ids) {
        const u32 n = rule.n_experts, thread = threadIdx.x;
        // Whole warps for each part of the keys, and an even number of keys.
        const u32 padded = (n + 31) & ~31u, parts = blockDim.x / padded, pairs = (n + 1) / 2;
        ExpertScore score{rule.scores, 0.0f, 1.0f};
        if (rule.keys_are_scores()) score = ExpertScore::of_row(rule, logits);
        bool finite = true;
        if (thread < padded) {
            float key = -INFINITE;
            if (thread < n) {
                key = logits[thread];
                finite = is_finite(key);
                if (rule.keys_are_scores()) key = rule.key(score(key), thread);
                finite = finite && is_finite(key);
            }
            keys[thread] = thread < n ? ordered_key(key, thread) : 0;
            ranks[thread] = 0;
        }
        if (thread < 32) selected[thread] = thread;
        finite = __syncthreads_and(finite);
        if (rule.groups > 0) {
            const BestGroups best = BestGroups::of_row(rule, keys);
            __syncthreads();
            if (thread < n && !best.have(thread)) keys[thread] = 0;
            __syncthreads();
        }
        const u32 id = thread % padded, part = thread / padded;
        if (part < parts) {
            const u32 each = (pairs + parts - 1) / parts, end = min(pairs, (part + 1) * each);
            const u64 key = keys[id];
            u32 larger = 0;
#pragma unroll 4
            for (u32 pair = part * each; pair < end; pair++) {
                const ulonglong2 others = *(const ulonglong2*)(keys + 2 * pair);
                larger += (others.x > key ? 1 : 0) + (others.y > key ? 1 : 0);
            }
            if (parts == 1)
                ranks[id] = larger;
            else
                atomicAdd(&ranks[id], larger);
        }
        __syncthreads();
        if (finite && thread < n && ranks[thread] < rule.top_k) selected[ranks[thread]] = thread;
        __syncthreads();
        if (thread >= 32) return;
        const u32 mine = selected[thread];
        if (thread < rule.top_k) ids[thread] = rule.held_id(mine);
        if (!rule.keys_are_scores()) score = ExpertScore::of_row(rule, logits);
        float weight = routing_weight(rule, score, thread < rule.top_k ? logits[mine] : 0.0f);
        if (!finite) weight = NOT_A_NUMBER;
        if (thread < rule.top_k) weights[thread] = weight;
    }
};
