// Repetition, frequency and presence penalties: makes the logits of recent tokens less likely, in place.
//
// Algorithm: a histogram of the tokens in the row's window by atomic reduction, then a scatter update; no
// atomics on floats, so results are deterministic. Launched by src/kernels/penalize.rs.
//
// One block of 256 threads per row, three passes over the window with a barrier between them:
//   1. clear the count of each token of the window (the table has an entry per token; only these are
//      touched);
//   2. count with atomicAdd;
//   3. take the count with atomicExch: the thread that gets it applies the penalty, once per distinct token.
//
// Layouts: logits f32 and counts u32 [rows, width]; history [n_seqs, capacity].
// Preconditions: none; a window that is longer than the history is all of it. Invalid tokens, positions and
// penalties are reported as faults and leave the row unchanged.
// Bound: latency. Not measured.
#include "common.cuh"

// Of one row.
struct Penalties {
    float repeat;
    float frequency;
    float presence;
    u32 window;  // tokens that count, back from the current one
};

struct PenalizeArgs {
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
#include "layout/penalize.cuh"

// The fault of a row, or 0; the value that is wrong, and its limit.
DEVICE u32 fault_of(const PenalizeArgs& args, const Penalties& penalties, u32 position, u32 sequence,
                    u32* value, u32* limit) {
    *value = sequence, *limit = args.n_seqs;
    if (sequence >= args.n_seqs) return FAULT_SEQUENCE;
    *value = position, *limit = args.capacity;
    if (position >= args.capacity) return FAULT_POSITION;
    *value = __float_as_uint(penalties.repeat);
    if (!(is_finite(penalties.repeat) && penalties.repeat > 0.0f)) return FAULT_REPEAT;
    *value = __float_as_uint(penalties.frequency);
    if (!is_finite(penalties.frequency)) return FAULT_FREQUENCY;
    *value = __float_as_uint(penalties.presence);
    if (!is_finite(penalties.presence)) return FAULT_PRESENCE;
    return 0;
}

extern "C" __global__ void __launch_bounds__(256) penalize(const __grid_constant__ PenalizeArgs args) {
    __shared__ u32 invalid_token;
    pdl_begin();
    u32 row = blockIdx.x, position = args.positions[row], sequence = args.sequences ? args.sequences[row] : 0;
    Penalties penalties = args.penalties[row];
    u32 value, limit;
    if (u32 code = fault_of(args, penalties, position, sequence, &value, &limit)) {
        if (threadIdx.x == 0) report(args.fault, code, row, value, limit);
        return;
    }
    u64 end = (u64)position + 1, start = end > penalties.window ? end - penalties.window : 0;
    const u32* tokens = args.history + (u64)sequence * args.capacity;
    float* logits = args.logits + (u64)row * args.width;
    u32* counts = args.counts + (u64)row * args.width;
    if (threadIdx.x == 0) invalid_token = 0;
    __syncthreads();
    for (u64 i = start + threadIdx.x; i < end; i += blockDim.x) {
        u32 token = tokens[i];
        if (token < args.width) {
            counts[token] = 0;
        } else {
            invalid_token = 1;
            report(args.fault, FAULT_TOKEN, row, token, args.width);
        }
    }
    __syncthreads();
    if (invalid_token) return;
    for (u64 i = start + threadIdx.x; i < end; i += blockDim.x) atomicAdd(&counts[tokens[i]], 1u);
    __syncthreads();
    for (u64 i = start + threadIdx.x; i < end; i += blockDim.x) {
        u32 token = tokens[i], count = atomicExch(&counts[token], 0u);
        if (count == 0) continue;
        float logit = logits[token];
        logit = logit > 0.0f ? logit / penalties.repeat : logit * penalties.repeat;
        logits[token] = logit - ((float)count * penalties.frequency + penalties.presence);
    }
}
