// Samples a token from each row of logits: temperature, top-k, top-p and min-p, by the rule of
// fulmen_core::sampling. Launched by src/kernels/sample.rs.
//
// Algorithm: selection by histogram; no row is sorted. Three kernels in turn:
//   1. sample_largest    grid rows x parts of about 4096 logits: reduction to the largest logit of each part
//   2. sample_histogram  same grid: histogram of the probability mass by distance from the largest, 1024
//                        bins, and of each part a shortlist: the candidates of its first bins, up to 256
//   3. sample            one block of 1024 threads per row: finds candidates by rank (top-k) or by prefix sum
//                        of the mass (top-p, the draw). A bin is found in the prefix sums of the histogram;
//                        its candidates are gathered and sorted (bitonic, up to 1024), or histogrammed again
//                        by key if there are more. They are gathered from the shortlists, and from the whole
//                        row only if a part has more than 256 candidates up to that bin
//
// Layouts: logits [rows, width] f32; states [rows] of 8 words; part_keys [rows, parts]; masses and counts
// [rows, 1024]; lists [rows, parts, 256].
// Preconditions: temperature >= 0 and finite, top_p >= 0, 0 <= min_p <= 1; else the row reports a fault.
// Numerics: masses are integers, multiples of 2^-40, so sums are exact in any order and a draw is
// reproducible.
// Bound: two passes over the logits, which stay in L2, by all multiprocessors, and the latency of one block
// in kernel 3. H200: kernels 1 and 2 took 3 us each for 152k logits before there were shortlists; kernel 3
// was not measured since. A pass over all logits by that one block would take 30 us.
#include "ordered_key.cuh"

constexpr u32 BINS = 1024;          // of the histogram, and threads of a block of `sample`
constexpr u32 WINDOW = 1024;        // candidates that are sorted at once
constexpr u32 LAST_BIN = BINS - 1;  // of all candidates whose weight is 0
constexpr u32 SHORTLIST = 256;      // candidates of a shortlist, a multiple of 32
constexpr u32 NO_TOKEN = ~0u;       // the result for a row without a finite maximum

struct SampleState {
    float temperature;
    u32 top_k;
    float top_p;
    float min_p;
    u32 seed_lo;
    u32 seed_hi;
    u32 step;
    u32 row;
};

struct SampleArgs {
    const float* logits;  // [rows, width]
    const u32* tokens;    // [rows, width], or null: columns are tokens
    SampleState* states;
    u32* out;
    u64* part_keys;   // [rows, parts]: the largest key of each part
    u64* masses;      // [rows, BINS]: the weight of each bin
    u32* counts;      // [rows, BINS]: its candidates
    u64* lists;       // [rows, parts, SHORTLIST]: keys of the candidates of a part's first bins
    u32* list_sizes;  // [rows, parts]: the keys of each list
    u32* list_bins;   // [rows, parts]: the first bin that is not in the list
    Fault* fault;
    u32 width;
    u32 part_width;  // logits of a part
    u32 parts;
    u32 unused;
};
#include "layout/sample.cuh"

// Whether the row is sampled at random, and so needs a histogram.
DEVICE bool is_random(const SampleState& state) {
    return state.temperature > 0.0f && is_finite(state.temperature);
}

// Step 3 of the rule: the unnormalized probability of a logit, exp(-distance) relative to the largest.
// `distance` is monotonic.
struct Weight {
    float largest;
    float temperature;

    DEVICE float distance(float logit) const {
        // inf - inf would be NaN.
        return logit == largest ? 0.0f : (largest - logit) / temperature;
    }
    static DEVICE float probability(float distance) { return expf(-distance); }
    static DEVICE u64 mass(float probability) { return __float2ull_rn(probability * 1099511627776.0f); }
    // 32 bins per factor of e.
    static DEVICE u32 bin(float distance) {
        return distance < BINS / 32 ? (u32)(distance * 32.0f) : LAST_BIN;
    }
};

// The largest key of a row, from those of its parts, returned to every thread.
DEVICE u64 largest_key(const SampleArgs& args, u64 row) {
    return warp_max_key(args.part_keys + row * args.parts, args.parts);
}

// Kernel 1: the largest key of each part; also clears the histogram. Grid rows x parts.
extern "C" __global__ void __launch_bounds__(1024) sample_largest(const __grid_constant__ SampleArgs args) {
    __shared__ u64 warp_keys[32];
    pdl_begin();
    u64 row = blockIdx.x;
    u64 begin = (u64)blockIdx.y * args.part_width, end = min((u64)args.width, begin + args.part_width);
    for (u32 bin = blockIdx.y * blockDim.x + threadIdx.x; bin < BINS; bin += gridDim.y * blockDim.x) {
        args.masses[row * BINS + bin] = 0;
        args.counts[row * BINS + bin] = 0;
    }
    u64 key = block_max_key(args.logits + row * args.width, begin, end, warp_keys);
    if (threadIdx.x == 0) args.part_keys[row * args.parts + blockIdx.y] = key;
}

// Inclusive prefix sum over the lanes of the warp.
DEVICE u32 warp_prefix_sum(u32 value) {
#pragma unroll
    for (u32 by = 1; by < 32; by *= 2) {
        u32 other = __shfl_up_sync(FULL_WARP, value, by);
        if (threadIdx.x % 32 >= by) value += other;
    }
    return value;
}

// The number of leading bins that have at most SHORTLIST candidates together, returned to every thread.
// `counts` is complete; `group_counts` holds 32 words.
DEVICE u32 shortlist_bins(const u32* counts, u32* group_counts) {
    u32 lane = threadIdx.x % 32;
    for (u32 group = threadIdx.x / 32; group < 32; group += blockDim.x / 32) {
        u32 sum = warp_prefix_sum(counts[group * 32 + lane]);
        if (lane == 31) group_counts[group] = sum;
    }
    __syncthreads();
    u32 sums = warp_prefix_sum(group_counts[lane]);
    u32 over = __ballot_sync(FULL_WARP, sums > SHORTLIST);
    if (over == 0) return BINS;
    u32 group = __ffs(over) - 1;
    u32 before = __shfl_sync(FULL_WARP, sums - group_counts[lane], group);
    sums = before + warp_prefix_sum(counts[group * 32 + lane]);
    over = __ballot_sync(FULL_WARP, sums > SHORTLIST);
    return group * 32 + __ffs(over) - 1;
}

// Kernel 2: the histogram and the shortlists. Grid rows x parts; each block accumulates in shared memory
// first.
extern "C" __global__ void __launch_bounds__(1024) sample_histogram(const __grid_constant__ SampleArgs args) {
    __shared__ u64 masses[BINS];
    __shared__ u32 counts[BINS];
    __shared__ u32 group_counts[32];
    __shared__ u32 listed;
    pdl_begin();
    u64 row = blockIdx.x;
    u64 begin = (u64)blockIdx.y * args.part_width, end = min((u64)args.width, begin + args.part_width);
    SampleState state = args.states[row];
    if (!is_random(state)) return;
    for (u32 bin = threadIdx.x; bin < BINS; bin += blockDim.x) masses[bin] = counts[bin] = 0;
    if (threadIdx.x == 0) listed = 0;
    Weight weight = {key_value(largest_key(args, row)), state.temperature};
    __syncthreads();
    const float* x = args.logits + row * args.width;
#pragma unroll 4
    for (u64 i = begin + threadIdx.x; i < end; i += blockDim.x) {
        float logit = x[i];
        if (!(logit > -INFINITE)) continue;
        float distance = weight.distance(logit);
        u32 bin = Weight::bin(distance);
        atomicAdd(&counts[bin], 1u);
        if (bin != LAST_BIN) atomicAdd(&masses[bin], Weight::mass(Weight::probability(distance)));
    }
    __syncthreads();
    for (u32 bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
        if (counts[bin] == 0) continue;
        atomicAdd(&args.counts[row * BINS + bin], counts[bin]);
        atomicAdd(&args.masses[row * BINS + bin], masses[bin]);
    }
    u32 bins = shortlist_bins(counts, group_counts);
    u64 part = row * args.parts + blockIdx.y;
    u64* list = args.lists + part * SHORTLIST;
#pragma unroll 4
    for (u64 i = begin + threadIdx.x; i < end; i += blockDim.x) {
        float logit = x[i];
        if (!(logit > -INFINITE) || Weight::bin(weight.distance(logit)) >= bins) continue;
        list[atomicAdd(&listed, 1u)] = ordered_key(logit, (u32)i);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        args.list_sizes[part] = listed;
        args.list_bins[part] = bins;
    }
}

// ---- Kernel 3: selection ----------------------------------------------------------------------------------

// Inclusive prefix sums along the sorted order.
struct Prefix {
    u32 count;
    u64 mass;
};

// Prefix sums over BINS bins, one per thread.
struct BinPrefix {
    u64 masses[BINS];
    u32 counts[BINS];
};

// Consecutive candidates of the sorted order, with the prefix sum of the mass at each.
struct Window {
    u64 keys[WINDOW];
    u64 masses[WINDOW];
};

// A candidate is found as the first whose prefix sum of counts (its rank) or of masses reaches a target.
enum Criterion { COUNT, MASS };

struct Candidate {
    u64 key;
    u64 mass;  // prefix sum, its own included
};

// The candidates of bins first_bin to last_bin with keys from `low` to `high`.
struct Range {
    u32 first_bin;
    u32 last_bin;
    u64 low;
    u64 high;
};

struct SharedState {
    BinPrefix bins;       // of the row's histogram
    BinPrefix fine_bins;  // of a part of one bin
    Window window;
    Prefix warp_prefixes[32];
    u64 keys[32];
    u32 found;
    u32 gathered;
};

// Inclusive prefix sum over the threads of the block.
__device__ Prefix block_prefix_sum(Prefix value, Prefix* warp_prefixes) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 by = 1; by < 32; by *= 2) {
        u32 count = __shfl_up_sync(FULL_WARP, value.count, by);
        u64 mass = __shfl_up_sync(FULL_WARP, value.mass, by);
        if (lane >= by) {
            value.count += count;
            value.mass += mass;
        }
    }
    if (lane == 31) warp_prefixes[threadIdx.x / 32] = value;
    __syncthreads();
    Prefix before = {0, 0};
    for (u32 warp = 0; warp < threadIdx.x / 32; warp++) {
        before.count += warp_prefixes[warp].count;
        before.mass += warp_prefixes[warp].mass;
    }
    __syncthreads();
    return {before.count + value.count, before.mass + value.mass};
}

// The first word of the hash that the rule names.
__device__ u32 random_word(const SampleState& state) {
    u32 v[4] = {state.seed_lo, state.seed_hi, state.step, state.row};
    for (int i = 0; i < 4; i++) v[i] = v[i] * 1664525u + 1013904223u;
    for (int round = 0; round < 2; round++) {
        v[0] += v[1] * v[3];
        v[1] += v[2] * v[0];
        v[2] += v[0] * v[1];
        v[3] += v[1] * v[2];
        if (round == 0) {
            for (int i = 0; i < 4; i++) v[i] ^= v[i] >> 16;
        }
    }
    return v[0];
}

// Samples one row, by one block.
struct RowSampler {
    const float* x;
    u32 width;
    Weight weight;
    SharedState* s;
    const u64* lists;       // [parts, SHORTLIST]
    const u32* list_sizes;  // [parts]
    u32 parts;
    u32 listed_bins;  // the candidates of bins below this one are all in the lists
    // Candidates in the window, and the prefix sums before it.
    u32 window_count;
    Prefix before_window;

    // Calls `f(key, mass)` if the candidate is in the range.
    template <typename F>
    DEVICE void visit(const Range& range, u64 key, float logit, F f) {
        if (key < range.low || key > range.high || key == 0) return;
        float distance = weight.distance(logit);
        u32 bin = Weight::bin(distance);
        if (bin < range.first_bin || bin > range.last_bin) return;
        f(key, bin == LAST_BIN ? 0ull : Weight::mass(Weight::probability(distance)));
    }

    // Calls `f(key, mass)` for every candidate of a range, in no particular order.
    template <typename F>
    DEVICE void for_each(const Range& range, F f) {
        if (range.last_bin < listed_bins) {
            for_each_listed(range, f);
        } else {
            for_each_in_row(range, f);
        }
    }

    // A warp per shortlist, with four loads in flight.
    template <typename F>
    DEVICE void for_each_listed(const Range& range, F f) {
        for (u32 part = threadIdx.x / 32; part < parts; part += blockDim.x / 32) {
            const u64* list = lists + (u64)part * SHORTLIST;
            u32 size = list_sizes[part];
#pragma unroll 1
            for (u32 base = threadIdx.x % 32; base < size; base += 4 * 32) {
                u64 keys[4];
#pragma unroll
                for (u32 j = 0; j < 4; j++) keys[j] = base + j * 32 < size ? list[base + j * 32] : 0;
#pragma unroll
                for (u32 j = 0; j < 4; j++) visit(range, keys[j], key_value(keys[j]), f);
            }
        }
    }

    // The whole row, with eight loads in flight.
    template <typename F>
    DEVICE void for_each_in_row(const Range& range, F f) {
        for (u64 base = threadIdx.x; base < width; base += 8 * blockDim.x) {
            float logits[8];
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                u64 i = base + j * blockDim.x;
                logits[j] = i < width ? x[i] : -INFINITE;
            }
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                visit(range, ordered_key(logits[j], (u32)(base + j * blockDim.x)), logits[j], f);
            }
        }
    }

    // Gathers a range of at most WINDOW candidates into the window, sorts it and computes its prefix sums.
    __device__ void gather(const Range& range, u32 count, Prefix before_bin) {
        if (threadIdx.x == 0) s->gathered = 0;
        __syncthreads();
        for_each(range, [&](u64 key, u64) {
            u32 at = atomicAdd(&s->gathered, 1u);
            if (at < WINDOW) s->window.keys[at] = key;
        });
        u32 size = 1;
        while (size < count) size *= 2;
        __syncthreads();
        for (u32 i = count + threadIdx.x; i < size; i += blockDim.x) s->window.keys[i] = 0;
        sort(size);
        u32 i = threadIdx.x;
        u64 mass = 0;
        if (i < count) {
            float distance = weight.distance(key_value(s->window.keys[i]));
            mass = Weight::bin(distance) == LAST_BIN ? 0ull : Weight::mass(Weight::probability(distance));
        }
        Prefix sum = block_prefix_sum({1, mass}, s->warp_prefixes);
        if (i < count) s->window.masses[i] = before_bin.mass + sum.mass;
        window_count = count;
        before_window = before_bin;
        __syncthreads();
    }

    // Bitonic sort of the first `size` keys of the window, a power of two, in descending order.
    __device__ void sort(u32 size) {
        for (u32 run = 2; run <= size; run *= 2) {
            for (u32 apart = run / 2; apart > 0; apart /= 2) {
                __syncthreads();
                u32 i = threadIdx.x, other = i ^ apart;
                if (i < size && other > i) {
                    u64 a = s->window.keys[i], b = s->window.keys[other];
                    bool falling = (i & run) == 0;
                    if (falling ? a < b : a > b) {
                        s->window.keys[i] = b;
                        s->window.keys[other] = a;
                    }
                }
            }
        }
        __syncthreads();
    }

    // The first bin at which the prefix sum reaches `target`. In: `before_bin` is the prefix before the first
    // bin. Out: the prefix before the bin that was found, and the number of its candidates. There must be
    // such a bin.
    __device__ u32 find_bin(const BinPrefix& sums, Criterion criterion, u64 target, Prefix* before_bin,
                            u32* count) {
        u32 i = threadIdx.x;
        bool reached = criterion == COUNT ? sums.counts[i] >= target : sums.masses[i] >= target;
        bool earlier =
            i > 0 && (criterion == COUNT ? sums.counts[i - 1] >= target : sums.masses[i - 1] >= target);
        if (reached && !earlier) s->found = i;
        __syncthreads();
        u32 found = s->found;
        if (found > 0) *before_bin = {sums.counts[found - 1], sums.masses[found - 1]};
        *count = sums.counts[found] - before_bin->count;
        __syncthreads();
        return found;
    }

    // The first candidate at which the prefix sum reaches `target` > 0. There must be one.
    __device__ Candidate find(Criterion criterion, u64 target) {
        if (!is_in_window(criterion, target)) {
            Range range = {0, 0, 0, ~0ull};
            Prefix before_bin = {0, 0};
            u32 count;
            range.first_bin = range.last_bin = find_bin(s->bins, criterion, target, &before_bin, &count);
            while (count > WINDOW) {
                u32 shift = count_fine_bins(range, before_bin);
                u64 keys = (u64)1 << shift;
                range.high -= find_bin(s->fine_bins, criterion, target, &before_bin, &count) * keys;
                if (range.high - range.low >= keys) range.low = range.high - (keys - 1);
            }
            gather(range, count, before_bin);
        }
        if (criterion == COUNT) {
            u32 at = (u32)target - before_window.count - 1;
            return {s->window.keys[at], s->window.masses[at]};
        }
        u32 i = threadIdx.x;
        if (i < window_count && s->window.masses[i] >= target && (i == 0 || s->window.masses[i - 1] < target))
            s->found = i;
        __syncthreads();
        u32 at = s->found;
        __syncthreads();
        return {s->window.keys[at], s->window.masses[at]};
    }

    __device__ bool is_in_window(Criterion criterion, u64 target) {
        if (window_count == 0) return false;
        if (criterion == COUNT)
            return before_window.count < target && target <= (u64)before_window.count + window_count;
        return before_window.mass < target && target <= s->window.masses[window_count - 1];
    }

    // Histograms a range by key into fine bins of 2^shift keys, the largest key first, and computes their
    // prefix sums. Narrows the range to the keys that occur. Returns the shift.
    __device__ u32 count_fine_bins(Range& range, Prefix before_bin) {
        u64 high = 0, low = 0;
        for_each(range, [&](u64 key, u64) {
            high = key > high ? key : high;
            low = ~key > low ? ~key : low;
        });
        range.high = block_max(high, s->keys);
        range.low = ~block_max(low, s->keys);
        u32 shift = 0;
        while ((range.high - range.low) >> shift >= BINS) shift++;
        s->fine_bins.counts[threadIdx.x] = 0;
        s->fine_bins.masses[threadIdx.x] = 0;
        __syncthreads();
        u64 top = range.high;
        for_each(range, [&](u64 key, u64 mass) {
            u32 bin = (u32)((top - key) >> shift);
            atomicAdd(&s->fine_bins.counts[bin], 1u);
            atomicAdd(&s->fine_bins.masses[bin], mass);
        });
        __syncthreads();
        Prefix own = {s->fine_bins.counts[threadIdx.x], s->fine_bins.masses[threadIdx.x]};
        Prefix sum = block_prefix_sum(own, s->warp_prefixes);
        s->fine_bins.counts[threadIdx.x] = before_bin.count + sum.count;
        s->fine_bins.masses[threadIdx.x] = before_bin.mass + sum.mass;
        __syncthreads();
        return shift;
    }

    // min-p: the mass of the candidates whose probability is at least `least` times that of the most likely
    // one.
    __device__ u64 mass_above(float least) {
        if (window_count > 0 && before_window.count == 0) {
            float last = Weight::probability(weight.distance(key_value(s->window.keys[window_count - 1])));
            if (last < least) {
                u32 i = threadIdx.x;
                auto kept = [&](u32 at) {
                    return Weight::probability(weight.distance(key_value(s->window.keys[at]))) >= least;
                };
                if (i < window_count && kept(i) && !kept(i + 1 < window_count ? i + 1 : window_count - 1))
                    s->found = i;
                __syncthreads();
                u64 mass = s->window.masses[s->found];
                __syncthreads();
                return mass;
            }
        }
        // One bin more than the exact bound, for rounding; far more than that has the mass 0.
        float bound = -logf(least) * 32.0f;
        u32 last = bound < LAST_BIN - 2 ? (u32)bound + 1 : LAST_BIN;
        u64 mass = 0;
        for_each({0, last, 0, ~0ull}, [&](u64 key, u64 own) {
            if (Weight::probability(weight.distance(key_value(key))) >= least) mass += own;
        });
        Prefix sum = block_prefix_sum({0, mass}, s->warp_prefixes);
        if (threadIdx.x == blockDim.x - 1) s->keys[0] = sum.mass;
        __syncthreads();
        mass = s->keys[0];
        __syncthreads();
        return mass;
    }

    // Steps 2 to 6 of the rule: top-k, min-p, top-p and the draw. Returns the token.
    __device__ u32 draw(const SampleState& state) {
        u32 all = s->bins.counts[LAST_BIN];
        u64 total = s->bins.masses[LAST_BIN];
        bool all_likely = false;  // whether min-p drops nothing
        if (state.top_k > 0 && state.top_k < all) {
            // Usually few are kept: then one window serves all that follows.
            Prefix before_bin = {0, 0};
            u32 count, last = find_bin(s->bins, COUNT, state.top_k, &before_bin, &count);
            if (before_bin.count + count <= WINDOW)
                gather({0, last, 0, ~0ull}, before_bin.count + count, {0, 0});
            Candidate last_kept = find(COUNT, state.top_k);
            total = last_kept.mass;
            all_likely = Weight::probability(weight.distance(key_value(last_kept.key))) >= state.min_p;
        }
        u64 kept = total;
        if (state.min_p > 0.0f && !all_likely) kept = min(kept, mass_above(state.min_p));
        if (state.top_p < 1.0f) {
            u64 bound = (u64)ceil((double)state.top_p * (double)total);
            kept = min(kept, find(MASS, min(max(bound, 1ull), total)).mass);
        }
        // kept * random / 2^24, exactly.
        u64 random = random_word(state) >> 8;
        u64 target = __umul64hi(kept, random) << 40 | kept * random >> 24;
        return key_index(find(MASS, target + 1).key);
    }
};

// The fault of a state, or 0, and the value that is wrong.
DEVICE u32 fault_of(const SampleState& state, float* value) {
    *value = state.temperature;
    if (!(is_finite(state.temperature) && state.temperature >= 0.0f)) return FAULT_TEMPERATURE;
    *value = state.top_p;
    if (!(state.top_p >= 0.0f)) return FAULT_TOP_P;
    *value = state.min_p;
    if (!(state.min_p >= 0.0f && state.min_p <= 1.0f)) return FAULT_MIN_P;
    return 0;
}

// Kernel 3: one block of BINS threads per row.
extern "C" __global__ void __launch_bounds__(BINS) sample(const __grid_constant__ SampleArgs args) {
    __shared__ SharedState s;
    pdl_begin();
    u64 row = blockIdx.x;
    SampleState state = args.states[row];
    float value;
    if (u32 code = fault_of(state, &value)) {
        if (threadIdx.x == 0) report(args.fault, code, (u32)row, __float_as_uint(value), 0);
        return;
    }
    u64 largest = largest_key(args, row);
    // Rows of NaN and -inf have the key 0, whose value is NaN.
    bool finite = largest != 0 && is_finite(key_value(largest));
    u32 token = finite ? key_index(largest) : NO_TOKEN;
    if (finite && state.temperature > 0.0f) {
        u64 bin = row * BINS + threadIdx.x;
        Prefix sum = block_prefix_sum({args.counts[bin], args.masses[bin]}, s.warp_prefixes);
        s.bins.counts[threadIdx.x] = sum.count;
        s.bins.masses[threadIdx.x] = sum.mass;
        __syncthreads();
        u32 listed_bins = BINS;
        for (u32 part = threadIdx.x % 32; part < args.parts; part += 32)
            listed_bins = min(listed_bins, args.list_bins[row * args.parts + part]);
#pragma unroll
        for (u32 by = 16; by > 0; by /= 2)
            listed_bins = min(listed_bins, __shfl_xor_sync(FULL_WARP, listed_bins, by));
        RowSampler sampler = {args.logits + row * args.width,
                              args.width,
                              {key_value(largest), state.temperature},
                              &s,
                              args.lists + row * args.parts * SHORTLIST,
                              args.list_sizes + row * args.parts,
                              args.parts,
                              listed_bins,
                              0,
                              {0, 0}};
        token = sampler.draw(state);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        if (args.tokens && token != NO_TOKEN) token = args.tokens[row * args.width + token];
        args.out[row] = token;
        args.states[row].step = state.step + 1;
    }
}
