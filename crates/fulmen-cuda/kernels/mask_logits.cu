// Logit biases and token masks: what a sampling slot adds to logits, and -inf for the tokens that its mask
// excludes, in place. Launched by src/kernels/mask_logits.rs.
//
// Algorithm: a scatter of the biases, then a masked fill; no reduction. Grid rows x parts, one tile of 4096
// logits per block of 256 threads. A block reads two words of its row's slot and ends there if the slot edits
// nothing. Else it adds the biases of the tokens in its part, one thread per bias, and after a barrier goes
// over its part: 16 logits per thread, a warp shares a word of the mask, and only excluded logits are
// written. No two blocks touch the same logit and biases have different tokens, so the result is
// deterministic.
// Layouts: logits [rows, width] f32; slots [rows] u32 or null: row r has slot r; edits [n_slots, 2 + 2
// capacity] words: masked, count, then pairs (token, bits of the bias); masks [n_slots, mask_words] words,
// bit t % 32 of word t / 32 allows token t.
// Preconditions: the tokens of a slot's biases are distinct; mask_words = ceil(width / 32). Invalid slots,
// tokens and biases are reported as faults and change nothing.
// Bound: latency for slots without edits; else one pass of writes to logits that are in L2. Not measured.
#include "common.cuh"

constexpr u32 PART = 4096;      // logits of a block
constexpr u32 NO_SLOT = ~0u;    // a row whose logits stay as they are
constexpr u32 FAULT_SLOT = 11;  // fulmen_core::fault
constexpr u32 FAULT_BIAS = 12;
constexpr u32 FAULT_BIASES = 13;

struct MaskLogitsArgs {
    float* logits;     // [rows, width]
    const u32* edits;  // [n_slots, 2 + 2 capacity]
    const u32* masks;  // [n_slots, mask_words]
    const u32* slots;  // [rows] or null: row r has slot r
    Fault* fault;
    u32 width;
    u32 n_slots;
    u32 capacity;
    u32 mask_words;
};
#include "layout/mask_logits.cuh"

// Adds the biases of the tokens in [begin, end).
DEVICE void add_biases(const MaskLogitsArgs& args, const u32* pairs, u32 count, u32 row, u32 begin, u32 end) {
    float* logits = args.logits + (u64)row * args.width;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u32 token = pairs[2 * i];
        float bias = __uint_as_float(pairs[2 * i + 1]);
        if (token >= args.width) {
            report(args.fault, FAULT_TOKEN, row, token, args.width);
        } else if (!(bias < INFINITE)) {
            report(args.fault, FAULT_BIAS, row, __float_as_uint(bias), token);
        } else if (token >= begin && token < end) {
            logits[token] = bias == -INFINITE ? bias : logits[token] + bias;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) mask_logits(const __grid_constant__ MaskLogitsArgs args) {
    pdl_begin();
    u32 row = blockIdx.x, slot = args.slots ? args.slots[row] : row;
    if (slot >= args.n_slots) {
        if (slot != NO_SLOT && threadIdx.x == 0 && blockIdx.y == 0)
            report(args.fault, FAULT_SLOT, row, slot, args.n_slots);
        return;
    }
    const u32* edits = args.edits + (u64)slot * (2 + 2 * args.capacity);
    u32 masked = edits[0], count = edits[1];
    if (count > args.capacity) {
        if (threadIdx.x == 0 && blockIdx.y == 0) report(args.fault, FAULT_BIASES, row, count, args.capacity);
        count = 0;
    }
    u32 begin = blockIdx.y * PART, end = min(args.width, begin + PART);
    if (count > 0) {
        add_biases(args, edits + 2, count, row, begin, end);
        __syncthreads();
    }
    if (masked == 0) return;
    const u32* mask = args.masks + (u64)slot * args.mask_words;
    float* logits = args.logits + (u64)row * args.width;
#pragma unroll 4
    for (u32 i = begin + threadIdx.x; i < end; i += blockDim.x) {
        if (!(mask[i / 32] >> (i % 32) & 1)) logits[i] = -INFINITE;
    }
}
