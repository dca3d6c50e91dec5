//! Quantizes activations, f32 to q8: the first launch of a matmul with quantized weights.
//!
//! Family: elementwise over blocks; one thread owns one block of 32 values.
//! Bindings: `src` [m, k] f32 as vec4s; `dst` [m, stride] vec4<u32>, layout in q8_block.wgsl. `count` is
//! the number of blocks. Needs: k a multiple of 32.
//! Bound by launch latency at decode sizes, else by memory bandwidth; not measured.
struct Params { m: u32, k: u32, stride: u32, count: u32 }

#include "qmatmul/q8_block.wgsl"
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let blocks = params.k / 32u;
    let at = (wid.x + grid.x * (wid.y + grid.y * wid.z)) * {{threads}}u + local;
    if (at >= params.count) { return; }
    let row = at / blocks;
    let ib = at % blocks;
    let first = at * 8u;
    let v0 = src[first];
    let v1 = src[first + 1u];
    let v2 = src[first + 2u];
    let v3 = src[first + 3u];
    let v4 = src[first + 4u];
    let v5 = src[first + 5u];
    let v6 = src[first + 6u];
    let v7 = src[first + 7u];
    put_q8_block(row * params.stride + (ib >> 3u) * 24u + (ib & 7u), v0, v1, v2, v3, v4, v5, v6, v7);
}
