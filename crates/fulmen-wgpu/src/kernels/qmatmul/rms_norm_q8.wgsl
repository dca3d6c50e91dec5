//! Fused RMS norm and quantization of activations: writes the norm of A in f32 and in q8.
//!
//! Family: row reduction, then elementwise over blocks. A workgroup owns a row; one thread strides over
//! its vec4s for the sum of squares, then over its blocks of 32 values.
//! Bindings: `src` [m, k] f32; `gamma` [k] f32; `norm` [m, k] f32; `dst` [m, stride] vec4<u32>, layout in
//! q8_block.wgsl.
//! Needs: k a multiple of 32.
//! Bound by launch latency at decode sizes, else by memory bandwidth; not measured.
struct Params { m: u32, k: u32, stride: u32, epsilon: f32 }

#include "qmatmul/q8_block.wgsl"
#include "workgroup/reduce.wgsl"
@compute @workgroup_size({{threads}})
fn main(
#include "workgroup/main_arguments.wgsl"
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
#include "workgroup/main_init.wgsl"
    let row = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (row >= params.m) { return; }
    let vectors = params.k / 4u;
    let first = row * vectors;
    var sum_of_squares = vec4<f32>();
    for (var i = thread; i < vectors; i += {{threads}}u) {
        let x = src[first + i];
        sum_of_squares += x * x;
    }
    let sum = group_sum((sum_of_squares.x + sum_of_squares.y) + (sum_of_squares.z + sum_of_squares.w));
    let factor = 1.0 / sqrt(sum / f32(params.k) + params.epsilon);
    for (var ib = thread; ib < params.k / 32u; ib += {{threads}}u) {
        let g = ib * 8u;
        let at = first + g;
        let v0 = src[at] * factor * gamma[g];
        let v1 = src[at + 1u] * factor * gamma[g + 1u];
        let v2 = src[at + 2u] * factor * gamma[g + 2u];
        let v3 = src[at + 3u] * factor * gamma[g + 3u];
        let v4 = src[at + 4u] * factor * gamma[g + 4u];
        let v5 = src[at + 5u] * factor * gamma[g + 5u];
        let v6 = src[at + 6u] * factor * gamma[g + 6u];
        let v7 = src[at + 7u] * factor * gamma[g + 7u];
        norm[at] = v0;
        norm[at + 1u] = v1;
        norm[at + 2u] = v2;
        norm[at + 3u] = v3;
        norm[at + 4u] = v4;
        norm[at + 5u] = v5;
        norm[at + 6u] = v6;
        norm[at + 7u] = v7;
        put_q8_block(row * params.stride + (ib >> 3u) * 24u + (ib & 7u), v0, v1, v2, v3, v4, v5, v6, v7);
    }
}
