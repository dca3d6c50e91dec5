// Advances each sequence by the token that was sampled: it becomes the input of the next step, the position
// grows by one, and the token is appended to the history. Element-wise: one thread per row, blocks of 128.
// Launched by src/kernels/advance.rs.
//
// Layouts: in the struct below, u32.
// Preconditions: none. A row with a sequence out of range is reported and left as it is; positions stay below
// the capacity.
// Bound: launch latency. Not measured.
#include "common.cuh"

struct AdvanceArgs {
    const u32* sampled;    // [m]
    u32* tokens;           // [m]
    u32* positions;        // [m]
    const u32* sequences;  // [m] or null: all 0
    u32* history;          // [n_seqs, capacity]
    Fault* fault;
    u32 m;
    u32 n_seqs;
    u32 capacity;
    u32 unused;
};
#include "layout/advance.cuh"

extern "C" __global__ void __launch_bounds__(128) advance(const __grid_constant__ AdvanceArgs args) {
    // No `pdl_launch_dependents`: attention reads positions, and the cache of earlier steps, before its
    // `pdl_wait`.
    pdl_wait();
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= args.m) return;
    u32 sequence = args.sequences ? args.sequences[row] : 0;
    if (sequence >= args.n_seqs) {
        report(args.fault, FAULT_SEQUENCE, row, sequence, args.n_seqs);
        return;
    }
    u32 token = args.sampled[row], position = args.positions[row], last = args.capacity - 1;
    // Clamped to the last position, without overflow.
    position = position < last ? position + 1 : last;
    args.tokens[row] = token;
    args.positions[row] = position;
    args.history[(u64)sequence * args.capacity + position] = token;
}
