// Gathers the token of each row from the history, at its position of its sequence. NO_TOKEN, left by a row
// whose logits had no finite maximum, becomes token 0, in the history as well. Element-wise: one thread per
// row, blocks of 128. Launched by src/kernels/gather_tokens.rs.
//
// Layouts: in the struct below, u32.
// Preconditions: none. Sequences and positions out of range are reported.
// Bound: launch latency. Not measured.
#include "common.cuh"

struct GatherTokensArgs {
    u32* history;          // [n_seqs, capacity]
    const u32* positions;  // [m]
    const u32* sequences;  // [m] or null: all 0
    u32* tokens;           // [m]
    Fault* fault;
    u32 m;
    u32 n_seqs;
    u32 capacity;
    u32 unused;
};
#include "layout/gather_tokens.cuh"

extern "C" __global__ void __launch_bounds__(128)
    gather_tokens(const __grid_constant__ GatherTokensArgs args) {
    pdl_begin();
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= args.m) return;
    u32 sequence = args.sequences ? args.sequences[row] : 0, position = args.positions[row];
    if (sequence >= args.n_seqs) {
        report(args.fault, FAULT_SEQUENCE, row, sequence, args.n_seqs);
        return;
    }
    if (position >= args.capacity) {
        report(args.fault, FAULT_POSITION, row, position, args.capacity);
        return;
    }
    u32* at = args.history + (u64)sequence * args.capacity + position;
    u32 token = *at;
    if (token == 0xFFFFFFFFu) *at = token = 0;
    args.tokens[row] = token;
}
