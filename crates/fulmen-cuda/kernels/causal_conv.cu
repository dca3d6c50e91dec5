// Depthwise causal convolution with a state, then SiLU. One thread per channel, sequential over rows, blocks
// of 128 threads; the second grid dimension is the rows. Launched by src/kernels/causal_conv.rs.
//
// The threads of the first row of a sequence walk over all rows of that sequence in their order, with the
// last TAPS inputs of their channel in registers and nothing in shared memory; those of later rows exit at
// once. A row at position 0 starts from zeros. `causal_conv_<TAPS>`: TAPS inputs are combined.
//
// Layouts: x and y [m, channels]; weight [channels, TAPS]; state [n_seqs, TAPS - 1, channels], the oldest
// input first; all f32.
// Preconditions: 2 to 8 taps. Numerics: f32 FMA.
// Bound: memory bandwidth for many sequences, latency of the loads for one. Not measured.
#include "sequence_walk.cuh"
#include "silu.cuh"

// Mirrored by `CausalConvArgs` in src/kernels/causal_conv.rs.
struct CausalConvArgs {
    const float* x;
    const float* weight;
    float* state;
    float* y;
    StateRows rows;
    u32 channels;
    u32 unused;
};
#include "layout/causal_conv.cuh"

template <int TAPS>
DEVICE void causal_conv(const CausalConvArgs& args) {
    pdl_begin();
    const u32 channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= args.channels) return;
    u32 row = args.rows.first(blockIdx.y);
    if (row == NO_ROW) {
        if (args.rows.inactive(blockIdx.y)) args.y[(u64)blockIdx.y * args.channels + channel] = 0.0f;
        return;
    }
    float* slot = args.state + (u64)args.rows.sequence(row) * (TAPS - 1) * args.channels + channel;
    float weight[TAPS], window[TAPS];
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) weight[tap] = args.weight[(u64)channel * TAPS + tap];
#pragma unroll
    for (int old = 0; old < TAPS - 1; old++) window[old] = slot[(u64)old * args.channels];
    for (; row != NO_ROW; row = args.rows.next(row)) {
        if (args.rows.positions[row] == 0) {
#pragma unroll
            for (int old = 0; old < TAPS - 1; old++) window[old] = 0.0f;
        }
        const u64 at = (u64)row * args.channels + channel;
        window[TAPS - 1] = args.x[at];
        float sum = 0.0f;
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) sum = fmaf(weight[tap], window[tap], sum);
        args.y[at] = silu_of(sum);
#pragma unroll
        for (int old = 0; old < TAPS - 1; old++) window[old] = window[old + 1];
    }
#pragma unroll
    for (int old = 0; old < TAPS - 1; old++) slot[(u64)old * args.channels] = window[old];
}

#define KERNEL(TAPS)                                                      \
    extern "C" __global__ void __launch_bounds__(128)                     \
        causal_conv_##TAPS(const __grid_constant__ CausalConvArgs args) { \
        causal_conv<TAPS>(args);                                          \
    }
KERNEL(2)
KERNEL(3)
KERNEL(4)
KERNEL(5)
KERNEL(6)
KERNEL(7)
KERNEL(8)
