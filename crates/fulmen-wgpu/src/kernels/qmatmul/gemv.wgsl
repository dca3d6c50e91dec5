//! GEMV and small-M GEMM with block-quantized weights, `out[m, n] = epilogue(A · Wᵀ)`, for m up to 8.
//!
//! Tile: a group of `lanes` neighboring threads owns `rows` rows of W (columns of the output) and all m
//! rows of A; its lanes stride over the blocks of 32 elements, `unroll` blocks of every row at a time,
//! and their partial sums are added at the end, by shuffles or in workgroup memory.
//!
//! Bindings: `a` [m, k], as q8 activations (quantize_q8.wgsl) or f32 (`q8`); `w` packed rows of W
//! (formats/); `dst` [m, n] f32; then the epilogue's inputs. `params.span` is the number of vectors in a
//! row of A.
//! Needs: `lanes` a power of two from 8 on that divides `threads`; with `shuffle` no subgroup smaller
//! than `lanes`.
//!
//! Bound by memory bandwidth: W is read once. Q4_K 151,936 x 2560 reaches 72 % of it on an H200
//! (docs/lab/wgpu-kernels.md).
#include "matmul/prelude.wgsl"
#include "matmul/sum_lanes.wgsl"
#define suffix ""
#include "qmatmul/formats/{{format}}.wgsl"
#if q8
  #include "qmatmul/dot_q8.wgsl"
  #expand dot_q8_functions()
  #expand dot_q8_block("", dot)
#else
  #include "qmatmul/dot_f32.wgsl"
#endif
#define outputs m * rows
#include "qmatmul/gemv_main.wgsl"
    if (group >= params.count) { return; }
    let row0 = (group * {{threads / lanes}}u + thread / {{lanes}}u) * {{rows}}u;
    let w_row = row_length();
#for r in 0..rows
    let w_row{{r}} = min(row0 + {{r}}u, params.n - 1u) * w_row;
#endfor
#for s in 0..outputs
    var sum{{s}} = 0.0;
#endfor
//! `count` blocks of every row: all loads of W first.
#macro multiply(count)
  #for u in 0..count
    #for r in 0..rows
        let raw{{r}}_{{u}} = fetch(w_row{{r}}, ib + {{u * lanes}}u);
    #endfor
  #endfor
  #for u in 0..count
    #for r in 0..rows
        let block{{r}}_{{u}} = decode(raw{{r}}_{{u}}, ib + {{u * lanes}}u);
    #endfor
    #for i in 0..m
        let a{{i}}_{{u}} = activations(a_row{{i}}, ib + {{u * lanes}}u);
      #for r in 0..rows
        #define s i * rows + r
        sum{{s}} = dot_block(sum{{s}}, block{{r}}_{{u}}, a{{i}}_{{u}});
      #endfor
    #endfor
  #endfor
#endmacro
    var ib = lane;
    for (; ib + {{(unroll - 1) * lanes}}u < blocks; ib += {{unroll * lanes}}u) {
#expand multiply(unroll)
    }
#if unroll > 1
    for (; ib < blocks; ib += {{lanes}}u) {
  #expand multiply(1)
    }
#endif
#for s in 0..outputs
  #if shuffle
    #expand sum_by_shuffle("t" + s, "sum" + s, log2_lanes)
  #else
    #expand sum_by_memory("t" + s, "sum" + s, log2_lanes)
  #endif
#endfor
    // Every lane has every total: each stores its own outputs.
#for batch in 0..(outputs + lanes - 1) / lanes
  #define first batch * lanes
  #define here min(lanes, outputs - first)
    {
        var v = t{{first}};
  #for l in 1..here
        if (lane == {{l}}u) { v = t{{first + l}}; }
  #endfor
        let row = (lane + {{first}}u) / {{rows}}u;
        let col = row0 + (lane + {{first}}u) % {{rows}}u;
        if (lane < {{here}}u && row < params.m && col < params.n) { store1(v, 0u, row, col); }
    }
#endfor
}
