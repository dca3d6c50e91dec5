// Depthwise causal convolution with a state, then SiLU. A thread has one channel, blocks have 128 threads.
// Launched by src/kernels/causal_conv.rs.
//
// causal_conv_<TAPS>: sequential over rows. The threads of the first row of a sequence walk over all rows of
//   that sequence in their order (sequence_walk.cuh), with the last TAPS inputs of their channel in
//   registers; those of later rows exit at once. Grid: blocks of channels, rows or, where there is a list of
//   rows (sequence_chunk_list.cu), blocks that share it.
// causal_conv_chunks_<TAPS>: for prefill, chunks of rows in parallel (sequence_chunks.cuh). A thread first
//   takes in the TAPS - 1 rows before its chunk, or the state if there are none, then AT_ONCE rows at a time,
//   whose loads do not wait for each other. The threads of the first chunk of a range alone touch the state:
//   they read it, and write the last inputs of the range, which has more than TAPS rows. Grid: blocks of
//   channels, most chunks.
//
// A row at position 0 starts from zeros. Nothing is in shared memory. Both kernels give the same bits.
//
// Layouts: x and y [m, channels]; weight [channels, TAPS]; state [n_seqs, TAPS - 1, channels], the oldest
// input first; all f32.
// Preconditions: 2 to 8 taps; y apart from x. Numerics: f32 FMA.
// Bound: memory bandwidth, for the rows of one sequence in causal_conv_<TAPS> the latency of a load for each
// row. Not measured.
#include "sequence_chunks.cuh"
#include "silu.cuh"

constexpr u32 AT_ONCE = 8;

// Mirrored by `CausalConvArgs` in src/kernels/causal_conv.rs.
struct CausalConvArgs {
    const float* x;
    const float* weight;
    float* state;
    float* y;
    StateRows rows;
    WalkStarts starts;      // causal_conv
    SequenceChunks chunks;  // causal_conv_chunks
    u32 channels;
    u32 unused;
};
#include "layout/causal_conv.cuh"

// The last inputs of a channel, and its weights.
template <int TAPS>
struct Channel {
    float weight[TAPS], window[TAPS];
    u32 index, stride;

    DEVICE Channel(const CausalConvArgs& args, u32 channel) : index(channel), stride(args.channels) {
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) weight[tap] = args.weight[(u64)channel * TAPS + tap];
        clear();
    }
    DEVICE void clear() {
#pragma unroll
        for (int old = 0; old < TAPS; old++) window[old] = 0.0f;
    }
    DEVICE float* slot(const CausalConvArgs& args, u32 sequence) const {
        return args.state + (u64)sequence * (TAPS - 1) * stride + index;
    }
    DEVICE void load(const float* slot) {
#pragma unroll
        for (int old = 0; old < TAPS - 1; old++) window[old] = slot[(u64)old * stride];
    }
    DEVICE void store(float* slot) const {
#pragma unroll
        for (int old = 0; old < TAPS - 1; old++) slot[(u64)old * stride] = window[old];
    }
    // The next input; `start`: it is the first one of the sequence.
    DEVICE void take(float x, bool start) {
        if (start) clear();
        window[TAPS - 1] = x;
    }
    DEVICE float output() const {
        float sum = 0.0f;
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) sum = fmaf(weight[tap], window[tap], sum);
        return silu_of(sum);
    }
    DEVICE void shift() {
#pragma unroll
        for (int old = 0; old < TAPS - 1; old++) window[old] = window[old + 1];
    }
    // Takes in rows without output.
    DEVICE void pass(const CausalConvArgs& args, u32 first, u32 end) {
        for (u32 row = first; row < end; row++) {
            take(args.x[(u64)row * stride + index], args.rows.positions[row] == 0);
            shift();
        }
    }
};

// Walks over the rows of the sequence that begins at row `start`. Threads behind the last channel compute
// that one too and write nothing: whole warps search for rows.
template <int TAPS>
DEVICE void walk(const CausalConvArgs& args, u32 start, Channel<TAPS>& channel, bool inside) {
    u32 row = args.rows.first(start);
    if (row == NO_ROW) {
        if (inside && args.rows.inactive(start)) args.y[(u64)start * args.channels + channel.index] = 0.0f;
        return;
    }
    float* slot = channel.slot(args, args.rows.sequence(row));
    channel.load(slot);
    for (; row != NO_ROW; row = args.rows.next(row)) {
        const u64 at = (u64)row * args.channels + channel.index;
        channel.take(args.x[at], args.rows.positions[row] == 0);
        if (inside) args.y[at] = channel.output();
        channel.shift();
    }
    if (inside) channel.store(slot);
}

template <int TAPS>
DEVICE void causal_conv(const CausalConvArgs& args) {
    pdl_begin();
    const u32 index = blockIdx.x * blockDim.x + threadIdx.x, count = args.starts.count();
    Channel<TAPS> channel(args, min(index, args.channels - 1));
    for (u32 i = blockIdx.y; i < count; i += gridDim.y)
        walk<TAPS>(args, args.starts.row(i), channel, index < args.channels);
}

template <int TAPS>
DEVICE void causal_conv_chunks(const CausalConvArgs& args) {
    pdl_begin();
    const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= args.channels || blockIdx.y >= args.chunks.n_chunks()) return;
    const RowChunk chunk = args.chunks.chunk(blockIdx.y);
    const RowRange range = args.chunks.range(chunk.range);
    Channel<TAPS> channel(args, index);
    if (chunk.first > range.first) {
        channel.pass(args, chunk.first - (TAPS - 1), chunk.first);
    } else {
        float* slot = channel.slot(args, range.sequence);
        channel.load(slot);
        const u32 end = range.first + range.rows;
        Channel<TAPS> last = channel;
        last.pass(args, end - (TAPS - 1), end);
        last.store(slot);
    }
    const float* x = args.x + (u64)chunk.first * args.channels + index;
    float* y = args.y + (u64)chunk.first * args.channels + index;
    for (u32 first = 0; first < chunk.rows; first += AT_ONCE) {
        float inputs[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++)
            inputs[i] = first + i < chunk.rows ? x[(u64)(first + i) * args.channels] : 0.0f;
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            if (first + i >= chunk.rows) break;
            channel.take(inputs[i], args.rows.positions[chunk.first + first + i] == 0);
            y[(u64)(first + i) * args.channels] = channel.output();
            channel.shift();
        }
    }
}

#define KERNEL(TAPS)                                                             \
    extern "C" __global__ void __launch_bounds__(128)                            \
        causal_conv_##TAPS(const __grid_constant__ CausalConvArgs args) {        \
        causal_conv<TAPS>(args);                                                 \
    }                                                                            \
    extern "C" __global__ void __launch_bounds__(128)                            \
        causal_conv_chunks_##TAPS(const __grid_constant__ CausalConvArgs args) { \
        causal_conv_chunks<TAPS>(args);                                          \
    }
KERNEL(2)
KERNEL(3)
KERNEL(4)
KERNEL(5)
KERNEL(6)
KERNEL(7)
KERNEL(8)
