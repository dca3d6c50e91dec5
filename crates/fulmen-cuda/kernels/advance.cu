// The tokens that were drawn become the next step's. One thread a row.
#include "common.cuh"

struct AdvanceParams {
    const u32* drawn;
    u32* tokens;
    u32* positions;
    const u32* sequences;  // or null: all 0
    u32* history;          // [n_seqs, capacity]
    Fault* fault;
    u32 m;
    u32 n_seqs;
    u32 capacity;
    u32 unused;
};

extern "C" __global__ void __launch_bounds__(128) advance(const __grid_constant__ AdvanceParams p) {
    // Nothing starts before this is done: attention reads positions, and the cache of earlier steps, before it waits.
    pdl_wait();
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= p.m) return;
    u32 sequence = p.sequences ? p.sequences[row] : 0;
    if (sequence >= p.n_seqs) {
        report(p.fault, FAULT_SEQUENCE, row, sequence, p.n_seqs);
        return;
    }
    u32 token = p.drawn[row], position = p.positions[row], last = p.capacity - 1;
    // Never past the last position, and never past the last number.
    position = position < last ? position + 1 : last;
    p.tokens[row] = token;
    p.positions[row] = position;
    p.history[(u64)sequence * p.capacity + position] = token;
}
