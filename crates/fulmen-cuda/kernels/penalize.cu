// Logits made less likely for tokens that came before, in place. One block a row.
//
// Each token is counted in a table that has a place for every token; only the places of the row's tokens are used. Who
// takes a count away from its place first applies it, once.
#include "common.cuh"

struct Penalties {
    float repeat;
    float frequency;
    float presence;
    u32 window;
};

struct PenalizeParams {
    float* logits;  // [rows, width]
    const Penalties* penalties;
    const u32* history;  // [n_seqs, capacity]
    const u32* positions;
    const u32* sequences;  // or null: all 0
    u32* counts;           // [rows, width]
    Fault* fault;
    u32 width;
    u32 n_seqs;
    u32 capacity;
    u32 unused;
};

DEVICE bool is_finite(float x) { return fabsf(x) < INFINITE; }

// What is wrong with a row: the code of a fault, with the number and its limit.
DEVICE u32 fault_of(const PenalizeParams& p, const Penalties& penalties, u32 position,
                                        u32 sequence, u32* value, u32* limit) {
    *value = sequence, *limit = p.n_seqs;
    if (sequence >= p.n_seqs) return FAULT_SEQUENCE;
    *value = position, *limit = p.capacity;
    if (position >= p.capacity) return FAULT_POSITION;
    *value = __float_as_uint(penalties.repeat);
    if (!(is_finite(penalties.repeat) && penalties.repeat > 0.0f)) return FAULT_REPEAT;
    *value = __float_as_uint(penalties.frequency);
    if (!is_finite(penalties.frequency)) return FAULT_FREQUENCY;
    *value = __float_as_uint(penalties.presence);
    if (!is_finite(penalties.presence)) return FAULT_PRESENCE;
    return 0;
}

extern "C" __global__ void __launch_bounds__(256) penalize(const __grid_constant__ PenalizeParams p) {
    __shared__ u32 wrong;
    pdl_begin();
    u32 row = blockIdx.x, position = p.positions[row], sequence = p.sequences ? p.sequences[row] : 0;
    Penalties penalties = p.penalties[row];
    u32 value, limit;
    if (u32 code = fault_of(p, penalties, position, sequence, &value, &limit)) {
        if (threadIdx.x == 0) report(p.fault, code, row, value, limit);
        return;
    }
    u64 end = (u64)position + 1, start = end > penalties.window ? end - penalties.window : 0;
    const u32* past = p.history + (u64)sequence * p.capacity;
    float* logits = p.logits + (u64)row * p.width;
    u32* counts = p.counts + (u64)row * p.width;
    if (threadIdx.x == 0) wrong = 0;
    __syncthreads();
    for (u64 i = start + threadIdx.x; i < end; i += blockDim.x) {
        u32 token = past[i];
        if (token < p.width) {
            counts[token] = 0;
        } else {
            wrong = 1;
            report(p.fault, FAULT_TOKEN, row, token, p.width);
        }
    }
    __syncthreads();
    if (wrong) return;
    for (u64 i = start + threadIdx.x; i < end; i += blockDim.x) atomicAdd(&counts[past[i]], 1u);
    __syncthreads();
    for (u64 i = start + threadIdx.x; i < end; i += blockDim.x) {
        u32 token = past[i], count = atomicExch(&counts[token], 0u);
        if (count == 0) continue;
        float logit = logits[token];
        logit = logit > 0.0f ? logit / penalties.repeat : logit * penalties.repeat;
        logits[token] = logit - ((float)count * penalties.frequency + penalties.presence);
    }
}
