// Rotary position embedding. A thread takes one pair, or one element that is only copied, in some heads of one row: the
// angle is the same for all of them.
#include "rope.cuh"

struct RopeParams {
    const float* x;  // [m, n_heads, head_dim]
    const u32* positions;
    float* out;
    RopeSpec rope;
    u32 n_heads;
    u32 head_dim;
    u32 heads_per_block;
    u32 head_groups;  // blocks that share a row's heads
    u32 chunks;       // blocks that share a head's items
    u32 unused;
};

extern "C" __global__ void __launch_bounds__(128) rope(const __grid_constant__ RopeParams p) {
    pdl_begin();
    u32 block = blockIdx.x;
    u32 chunk = block % p.chunks, group = block / p.chunks % p.head_groups, row = block / p.chunks / p.head_groups;
    u32 item = chunk * blockDim.x + threadIdx.x, pairs = p.rope.n_rot / 2;
    if (item >= p.head_dim - pairs) return;
    u32 from = group * p.heads_per_block, to = min(from + p.heads_per_block, p.n_heads);
    u64 start = ((u64)row * p.n_heads + from) * p.head_dim;
    const float* x = p.x + start;
    float* out = p.out + start;
    if (item >= pairs) {
        u32 at = item + pairs;
        for (u32 head = from; head < to; head++, x += p.head_dim, out += p.head_dim) out[at] = x[at];
        return;
    }
    float2 turn = turn_of(p.rope, p.positions[row], item);
    u32 i = first_of(p.rope, item), j = second_of(p.rope, item);
    for (u32 head = from; head < to; head++, x += p.head_dim, out += p.head_dim) {
        float a = x[i], b = x[j];
        out[i] = a * turn.x - b * turn.y;
        out[j] = a * turn.y + b * turn.x;
    }
}
