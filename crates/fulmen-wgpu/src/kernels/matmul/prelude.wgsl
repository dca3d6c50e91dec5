//! Start of every matmul kernel: extensions, `Params`, the epilogue, and the functions that store
//! results.
//!
//! Family: shared part of GEMV, tiled GEMM, cooperative-matrix GEMM and the split-K reduction.
//!
//! `finish` is the epilogue of one value of `out[m, n]`: elementwise operations that need no launch of
//! their own.
//! `store1` and `store4` take accumulated sums of one or four neighboring columns and write them
//! - to the output through `finish`, or
//! - with `to_slices` unchanged to slice `slice` of the split-K scratch, `[slices, m, n]` in f32.
//! With `width == 4` rows start at multiples of four columns and `dst` is `array<vec4<f32>>`; with `width
//! == 1` it is `array<f32>` and `store4` checks every column.
//!
//! Values: `coop`, `uses_f16`, `scalars` (count), `to_slices`, `pair`, `second_of_pair`, `inputs` (index
//! expression of each epilogue input), `functions` and `expr` of the epilogue, `width`.
//!
//! `params`: m, k, n: sizes of this launch; ldo: columns of a row of the output; col0: first column of
//! the output; count: workgroups with work; span: length of a split-K slice (or vectors in a row of A);
//! slices: split-K slices.
#if coop
enable wgpu_cooperative_matrix;
#endif
#if uses_f16
enable f16;
#endif
struct Params {
    m: u32, k: u32, n: u32, ldo: u32, col0: u32, count: u32, span: u32, slices: u32,
#for i in 0..scalars
    s{{i}}: f32,
#endfor
}
#if !to_slices
{{functions}}
fn finish({{pair ? "v0: f32, v1: f32" : "v: f32"}}, row: u32, col: u32) -> f32 {
  #for i in 0..len(inputs)
    let e{{i}} = x{{i}}[{{inputs[i]}}];
  #endfor
  #if second_of_pair
    let v0 = first[row * params.ldo + col];
    let v1 = v;
  #endif
    return {{expr}};
}
#endif
#define two_values pair && !to_slices
#define at to_slices ? "(slice * params.m + row) * params.n + col" : "row * params.ldo + params.col0 + col"
#if width == 1
  #define scalars1 two_values ? "v0: f32, v1: f32" : "v: f32"
fn store1({{scalars1}}, slice: u32, row: u32, col: u32) {
  #if to_slices
    dst[{{at}}] = v;
  #else
    dst[{{at}}] = finish({{two_values ? "v0, v1" : "v"}}, row, params.col0 + col + 0u);
  #endif
}
#endif
#define vectors two_values ? "v0: vec4<f32>, v1: vec4<f32>" : "v: vec4<f32>"
fn store4({{vectors}}, slice: u32, row: u32, col: u32) {
#if width == 1
  #for i in 0..4
    #define c "xyzw"[i]
    if (col + {{i}}u < params.n) {
        store1({{two_values ? "v0." + c + ", v1." + c : "v." + c}}, slice, row, col + {{i}}u);
    }
  #endfor
#elif to_slices
    if (col < params.n) { dst[({{at}}) / 4u] = v; }
#else
    if (col < params.n) {
        dst[({{at}}) / 4u] = vec4<f32>(
  #for i in 0..4
    #define c "xyzw"[i]
            finish({{two_values ? "v0." + c + ", v1." + c : "v." + c}}, row, params.col0 + col + {{i}}u),
  #endfor
        );
    }
#endif
}
