// RoPE: rotates the first n_rot dims of every head by the angle of its row's position and copies the others.
// One thread per pair (or per copied dim) of HEADS_PER_BLOCK heads of one row: sin and cos are computed once
// for all of them, in f64. Launched by src/kernels/rope.rs.
//
// Grid: x = rows * head groups * chunks of a head; up to 128 threads. Pairing: NeoX (i, i + n_rot / 2) or
// interleaved (2 i, 2 i + 1); see rope.cuh.
// Layouts: x, out [m, n_heads, head_dim] f32; out may be x.
// Preconditions: n_rot even and at most head_dim. Numerics: f32, angles in f64.
// Bound: memory bandwidth; the f64 angles matter only for short batches. Not measured.
#include "rope.cuh"

// Mirrored by `RopeKernelArgs` in src/kernels/rope.rs.
struct RopeKernelArgs {
    const float* x;  // [m, n_heads, head_dim]
    const u32* positions;
    float* out;
    RopeArgs rope;
    u32 n_heads;
    u32 head_dim;
    u32 heads_per_block;
    u32 head_groups;  // blocks per row along the heads
    u32 chunks;       // blocks per head group along the dims
    u32 unused;
};
#include "layout/rope.cuh"

extern "C" __global__ void __launch_bounds__(128) rope(const __grid_constant__ RopeKernelArgs args) {
    pdl_begin();
    u32 block = blockIdx.x;
    u32 chunk = block % args.chunks, group = block / args.chunks % args.head_groups;
    u32 row = block / args.chunks / args.head_groups;
    u32 item = chunk * blockDim.x + threadIdx.x, pairs = args.rope.n_rot / 2;
    if (item >= args.head_dim - pairs) return;
    u32 begin = group * args.heads_per_block, end = min(begin + args.heads_per_block, args.n_heads);
    u64 offset = ((u64)row * args.n_heads + begin) * args.head_dim;
    const float* x = args.x + offset;
    float* out = args.out + offset;
    if (item >= pairs) {
        u32 dim = item + pairs;
        for (u32 head = begin; head < end; head++, x += args.head_dim, out += args.head_dim)
            out[dim] = x[dim];
        return;
    }
    const float2 cos_sin = rope_cos_sin(args.rope, args.positions[row], item);
    u32 i = rope_first_dim(item, args.rope.neox), j = rope_second_dim(item, args.rope.n_rot, args.rope.neox);
    for (u32 head = begin; head < end; head++, x += args.head_dim, out += args.head_dim) {
        float first = x[i], second = x[j];
        rope_rotate(first, second, cos_sin);
        out[i] = first;
        out[j] = second;
    }
}
