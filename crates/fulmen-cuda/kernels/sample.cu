// A token from each row of logits, drawn by the rule of fulmen_core::sampling.
//
// No row is sorted. Three kernels: the largest logit of each part of a row; a histogram of the row's weights over the
// distance from the largest; and one block a row that finds places in the sorted order by their rank or by the weight
// before them. A place is found in the histogram first, and then among the candidates of one bin, which are gathered
// and sorted where they are few, and counted into finer bins where they are many.
//
// Weights are whole multiples of 2^-40, so sums are the same in any order and a draw is the same on every run.
#include "ordered_key.cuh"

#define BINS 1024u
#define GATHERED 1024u
#define LAST_BIN (BINS - 1)

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

struct SampleParams {
    const float* logits;  // [rows, width]
    SampleState* states;
    u32* out;
    u64* largest;  // [rows, parts]: the key of the largest logit of each part
    u64* masses;   // [rows, BINS]: the weight of each bin
    u32* counts;   // [rows, BINS]: its candidates
    Fault* fault;
    u32 width;
    u32 part;  // logits of a part
    u32 parts;
    u32 unused;
};

DEVICE bool is_finite(float x) { return fabsf(x) < INFINITE; }

// Whether the row's histogram is needed: its state makes sense, and chance has a part.
DEVICE bool draws(const SampleState& state) {
    return state.temperature > 0.0f && is_finite(state.temperature);
}

// The rule's step 3. `distance` never falls as the logit falls.
struct Weigh {
    float largest;
    float temperature;

    DEVICE float distance(float logit) const {
        // Else inf - inf would be NaN.
        return logit == largest ? 0.0f : (largest - logit) / temperature;
    }
    static DEVICE float share(float distance) { return expf(-distance); }
    static DEVICE u64 mass(float share) { return __float2ull_rn(share * 1099511627776.0f); }
    // 32 bins to each factor of e. The last bin weighs nothing.
    static DEVICE u32 bin(float distance) {
        return distance < BINS / 32 ? (u32)(distance * 32.0f) : LAST_BIN;
    }
};

// The largest key of a row, from those of its parts, in every thread.
DEVICE u64 largest_of_row(const SampleParams& p, u64 row) {
    u64 key = 0;
    for (u32 i = threadIdx.x % 32; i < p.parts; i += 32) {
        u64 other = p.largest[row * p.parts + i];
        key = other > key ? other : key;
    }
    return warp_max(key);
}

// The largest logit of each part; clears the histogram on the way.
extern "C" __global__ void __launch_bounds__(1024) sample_largest(const __grid_constant__ SampleParams p) {
    __shared__ u64 warps[32];
    pdl_begin();
    u64 row = blockIdx.x, from = (u64)blockIdx.y * p.part, to = min((u64)p.width, from + p.part);
    for (u32 bin = blockIdx.y * blockDim.x + threadIdx.x; bin < BINS; bin += gridDim.y * blockDim.x) {
        p.masses[row * BINS + bin] = 0;
        p.counts[row * BINS + bin] = 0;
    }
    u64 key = largest_of(p.logits + row * p.width, from, to, warps);
    if (threadIdx.x == 0) p.largest[row * p.parts + blockIdx.y] = key;
}

// The histogram: one block a part, added up in shared memory first.
extern "C" __global__ void __launch_bounds__(1024) sample_histogram(const __grid_constant__ SampleParams p) {
    __shared__ u64 masses[BINS];
    __shared__ u32 counts[BINS];
    pdl_begin();
    u64 row = blockIdx.x, from = (u64)blockIdx.y * p.part, to = min((u64)p.width, from + p.part);
    SampleState state = p.states[row];
    if (!draws(state)) return;
    for (u32 bin = threadIdx.x; bin < BINS; bin += blockDim.x) masses[bin] = counts[bin] = 0;
    Weigh weigh = {value_of(largest_of_row(p, row)), state.temperature};
    __syncthreads();
    const float* x = p.logits + row * p.width;
#pragma unroll 4
    for (u64 i = from + threadIdx.x; i < to; i += blockDim.x) {
        float logit = x[i];
        if (!(logit > -INFINITE)) continue;
        float distance = weigh.distance(logit);
        u32 bin = Weigh::bin(distance);
        atomicAdd(&counts[bin], 1u);
        if (bin != LAST_BIN) atomicAdd(&masses[bin], Weigh::mass(Weigh::share(distance)));
    }
    __syncthreads();
    for (u32 bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
        if (counts[bin] == 0) continue;
        atomicAdd(&p.counts[row * BINS + bin], counts[bin]);
        atomicAdd(&p.masses[row * BINS + bin], masses[bin]);
    }
}

// ---- The draw -----------------------------------------------------------------------------------------------------

// What runs up along the sorted order.
struct Running {
    u32 count;
    u64 mass;
};

// Running sums over BINS bins, one a thread.
struct Sums {
    u64 masses[BINS];
    u32 counts[BINS];
};

// Candidates that follow each other in the sorted order, with the running mass at each.
struct Window {
    u64 keys[GATHERED];
    u64 masses[GATHERED];
};

// A place in the sorted order is where the running count or mass reaches a number.
enum Measure { COUNT, MASS };

struct Place {
    u64 key;
    u64 mass;  // with its own
};

// Which of a row's candidates: those of some bins of the histogram with keys from `low` to `high`.
struct Range {
    u32 first_bin;
    u32 last_bin;
    u64 low;
    u64 high;
};

struct SharedAddress {
    Sums bins;    // of the row's histogram
    Sums finer;   // of a part of one bin
    Window window;
    Running warps[32];
    u64 keys[32];
    u32 found;
    u32 taken;
};

// The running sum over the block's threads, this thread's included.
__device__ Running running(Running value, Running* warps) {
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
    if (lane == 31) warps[threadIdx.x / 32] = value;
    __syncthreads();
    Running before = {0, 0};
    for (u32 warp = 0; warp < threadIdx.x / 32; warp++) {
        before.count += warps[warp].count;
        before.mass += warps[warp].mass;
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

// The block's one row.
struct Row {
    const float* x;
    u32 width;
    Weigh weigh;
    SharedAddress* s;
    // What the window holds, and what ran up before it.
    u32 windowed;
    Running before;

    // Calls `f(key, mass)` for every candidate of a range, in no order. Eight logits are on their way at a time.
    template <typename F>
    DEVICE void for_each(const Range& range, F f) {
        for (u64 base = threadIdx.x; base < width; base += 8 * blockDim.x) {
            float logits[8];
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                u64 i = base + j * blockDim.x;
                logits[j] = i < width ? x[i] : -INFINITE;
            }
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                u64 key = key_of(logits[j], (u32)(base + j * blockDim.x));
                if (key < range.low || key > range.high || key == 0) continue;
                float distance = weigh.distance(logits[j]);
                u32 bin = Weigh::bin(distance);
                if (bin < range.first_bin || bin > range.last_bin) continue;
                f(key, bin == LAST_BIN ? 0ull : Weigh::mass(Weigh::share(distance)));
            }
        }
    }

    // Brings a range of at most GATHERED candidates into the window.
    __device__ void gather(const Range& range, u32 count, Running ran) {
        if (threadIdx.x == 0) s->taken = 0;
        __syncthreads();
        for_each(range, [&](u64 key, u64) {
            u32 at = atomicAdd(&s->taken, 1u);
            if (at < GATHERED) s->window.keys[at] = key;
        });
        u32 size = 1;
        while (size < count) size *= 2;
        __syncthreads();
        for (u32 i = count + threadIdx.x; i < size; i += blockDim.x) s->window.keys[i] = 0;
        sort(size);
        u32 i = threadIdx.x;
        u64 mass = 0;
        if (i < count) {
            float distance = weigh.distance(value_of(s->window.keys[i]));
            mass = Weigh::bin(distance) == LAST_BIN ? 0ull : Weigh::mass(Weigh::share(distance));
        }
        Running sum = running({1, mass}, s->warps);
        if (i < count) s->window.masses[i] = ran.mass + sum.mass;
        windowed = count;
        before = ran;
        __syncthreads();
    }

    // Bitonic: the first `size` keys of the window, a power of two, the largest first.
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

    // The first bin of `sums` at which the measure reaches `target`, which it does, and has not yet in `ran`, what ran up
    // before the first bin. Gives what ran up before the bin, and how many candidates it has.
    __device__ u32 find_bin(const Sums& sums, Measure measure, u64 target, Running* ran, u32* count) {
        u32 i = threadIdx.x;
        bool reached = measure == COUNT ? sums.counts[i] >= target : sums.masses[i] >= target;
        bool earlier = i > 0 && (measure == COUNT ? sums.counts[i - 1] >= target : sums.masses[i - 1] >= target);
        if (reached && !earlier) s->found = i;
        __syncthreads();
        u32 found = s->found;
        if (found > 0) *ran = {sums.counts[found - 1], sums.masses[found - 1]};
        *count = sums.counts[found] - ran->count;
        __syncthreads();
        return found;
    }

    // The place at which the measure reaches `target`; there is one, and the target is above 0.
    __device__ Place find(Measure measure, u64 target) {
        if (!in_window(measure, target)) {
            Range range = {0, 0, 0, ~0ull};
            Running ran = {0, 0};
            u32 count;
            range.first_bin = range.last_bin = find_bin(s->bins, measure, target, &ran, &count);
            while (count > GATHERED) {
                u32 shift = count_finer(range, ran);
                u64 keys = (u64)1 << shift;
                range.high -= find_bin(s->finer, measure, target, &ran, &count) * keys;
                if (range.high - range.low >= keys) range.low = range.high - (keys - 1);
            }
            gather(range, count, ran);
        }
        if (measure == COUNT) {
            u32 at = (u32)target - before.count - 1;
            return {s->window.keys[at], s->window.masses[at]};
        }
        u32 i = threadIdx.x;
        if (i < windowed && s->window.masses[i] >= target && (i == 0 || s->window.masses[i - 1] < target)) s->found = i;
        __syncthreads();
        u32 at = s->found;
        __syncthreads();
        return {s->window.keys[at], s->window.masses[at]};
    }

    __device__ bool in_window(Measure measure, u64 target) {
        if (windowed == 0) return false;
        if (measure == COUNT) return before.count < target && target <= (u64)before.count + windowed;
        return before.mass < target && target <= s->window.masses[windowed - 1];
    }

    // Counts a range into finer bins by key, from the largest key on, with what ran up before it; narrows the range to
    // the keys that are there. Each bin has 2^shift keys.
    __device__ u32 count_finer(Range& range, Running ran) {
        u64 high = 0, low = 0;
        for_each(range, [&](u64 key, u64) {
            high = key > high ? key : high;
            low = ~key > low ? ~key : low;
        });
        range.high = block_max(high, s->keys);
        range.low = ~block_max(low, s->keys);
        u32 shift = 0;
        while ((range.high - range.low) >> shift >= BINS) shift++;
        s->finer.counts[threadIdx.x] = 0;
        s->finer.masses[threadIdx.x] = 0;
        __syncthreads();
        u64 top = range.high;
        for_each(range, [&](u64 key, u64 mass) {
            u32 bin = (u32)((top - key) >> shift);
            atomicAdd(&s->finer.counts[bin], 1u);
            atomicAdd(&s->finer.masses[bin], mass);
        });
        __syncthreads();
        Running own = {s->finer.counts[threadIdx.x], s->finer.masses[threadIdx.x]};
        Running sum = running(own, s->warps);
        s->finer.counts[threadIdx.x] = ran.count + sum.count;
        s->finer.masses[threadIdx.x] = ran.mass + sum.mass;
        __syncthreads();
        return shift;
    }

    // The mass of the candidates whose share of the first one's is at least `least`.
    __device__ u64 mass_above(float least) {
        if (windowed > 0 && before.count == 0) {
            float last = Weigh::share(weigh.distance(value_of(s->window.keys[windowed - 1])));
            if (last < least) {
                u32 i = threadIdx.x;
                auto kept = [&](u32 at) {
                    return Weigh::share(weigh.distance(value_of(s->window.keys[at]))) >= least;
                };
                if (i < windowed && kept(i) && !kept(i + 1 < windowed ? i + 1 : windowed - 1)) s->found = i;
                __syncthreads();
                u64 mass = s->window.masses[s->found];
                __syncthreads();
                return mass;
            }
        }
        u64 mass = 0;
        for_each({0, LAST_BIN, 0, ~0ull}, [&](u64 key, u64 own) {
            if (Weigh::share(weigh.distance(value_of(key))) >= least) mass += own;
        });
        Running sum = running({0, mass}, s->warps);
        if (threadIdx.x == blockDim.x - 1) s->keys[0] = sum.mass;
        __syncthreads();
        mass = s->keys[0];
        __syncthreads();
        return mass;
    }

    // Steps 2 to 6 of the rule: the token.
    __device__ u32 draw(const SampleState& state) {
        u32 all = s->bins.counts[LAST_BIN];
        u64 total = s->bins.masses[LAST_BIN];
        if (state.top_k > 0 && state.top_k < all) {
            // Few are kept in most cases: then one window serves for all that follows.
            Running ran = {0, 0};
            u32 count, last = find_bin(s->bins, COUNT, state.top_k, &ran, &count);
            if (ran.count + count <= GATHERED) gather({0, last, 0, ~0ull}, ran.count + count, {0, 0});
            total = find(COUNT, state.top_k).mass;
        }
        u64 kept = total;
        if (state.min_p > 0.0f) kept = min(kept, mass_above(state.min_p));
        if (state.top_p < 1.0f) {
            u64 bound = (u64)ceil((double)state.top_p * (double)total);
            kept = min(kept, find(MASS, min(max(bound, 1ull), total)).mass);
        }
        // Exact: 24 bits of chance times the mass.
        u64 chance = random_word(state) >> 8;
        u64 share = __umul64hi(kept, chance) << 40 | kept * chance >> 24;
        return index_of(find(MASS, share + 1).key);
    }
};

// What is wrong with a state: the code of a fault, and the number.
DEVICE u32 fault_of(const SampleState& state, float* value) {
    *value = state.temperature;
    if (!(is_finite(state.temperature) && state.temperature >= 0.0f)) return FAULT_TEMPERATURE;
    *value = state.top_p;
    if (!(state.top_p >= 0.0f)) return FAULT_TOP_P;
    *value = state.min_p;
    if (!(state.min_p >= 0.0f && state.min_p <= 1.0f)) return FAULT_MIN_P;
    return 0;
}

// One block of BINS threads a row.
extern "C" __global__ void __launch_bounds__(BINS) sample(const __grid_constant__ SampleParams p) {
    __shared__ SharedAddress s;
    pdl_begin();
    u64 row = blockIdx.x;
    SampleState state = p.states[row];
    float value;
    if (u32 code = fault_of(state, &value)) {
        if (threadIdx.x == 0) report(p.fault, code, (u32)row, __float_as_uint(value), 0);
        return;
    }
    u64 largest = largest_of_row(p, row);
    u32 token = largest == 0 ? 0 : index_of(largest);
    if (largest != 0 && state.temperature > 0.0f) {
        u64 bin = row * BINS + threadIdx.x;
        Running sum = running({p.counts[bin], p.masses[bin]}, s.warps);
        s.bins.counts[threadIdx.x] = sum.count;
        s.bins.masses[threadIdx.x] = sum.mass;
        __syncthreads();
        Row drawn = {p.logits + row * p.width, p.width, {value_of(largest), state.temperature}, &s, 0, {0, 0}};
        token = drawn.draw(state);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        p.out[row] = token;
        p.states[row].step = state.step + 1;
    }
}
