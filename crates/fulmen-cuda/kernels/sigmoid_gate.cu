// Sigmoid gates: y = x · sigmoid(gate), where a gate covers `span` neighboring elements. One thread per
// element, blocks of 256. Launched by src/kernels/sigmoid_gate.rs.
//
// Layouts: x and y [n] f32, which may be the same address; gate [n / span] f32.
// Preconditions: n a multiple of span.
// Bound: memory bandwidth. Not measured.
#include "common.cuh"
#include "silu.cuh"

// Mirrored by `SigmoidGateArgs` in src/kernels/sigmoid_gate.rs.
struct SigmoidGateArgs {
    const float* x;
    const float* gate;
    float* y;
    u64 n;
    u64 span;
};
#include "layout/sigmoid_gate.cuh"

extern "C" __global__ void __launch_bounds__(256) sigmoid_gate(const __grid_constant__ SigmoidGateArgs args) {
    pdl_begin();
    const u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < args.n) args.y[at] = args.x[at] * sigmoid(args.gate[at / args.span]);
}
