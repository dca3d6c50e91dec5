//! Dequantizes rows of a block-quantized weight to f32, for the f32 GEMM kernels.
//!
//! Family: elementwise over blocks; one thread owns one block of 32 values.
//! Bindings: `w` packed rows (formats/); `dst` [rows, k] f32 as vec4s. `first` is the first row, `count`
//! the number of blocks.
//! Needs: k a multiple of 32.
//! Bound by memory bandwidth, almost all of it the f32 values written; not measured.
struct Params { k: u32, first: u32, count: u32 }

#define suffix ""
#include "qmatmul/formats/{{format}}.wgsl"
fn bytes(quants: u32) -> vec4<f32> { return vec4<f32>({{unpack}}(quants)); }

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let blocks = params.k / 32u;
    let at = (wid.x + grid.x * (wid.y + grid.y * wid.z)) * {{threads}}u + local;
    if (at >= params.count) { return; }
    let ib = at % blocks;
    let block = decode(fetch((params.first + at / blocks) * row_length(), ib), ib);
    for (var i = 0u; i < 4u; i++) {
        dst[at * 8u + i] = bytes(block.lo[i]) * block.scale.x + block.offset.x;
        dst[at * 8u + 4u + i] = bytes(block.hi[i]) * block.scale.y + block.offset.y;
    }
}
