//! Fused multi-weight GEMV and small-M GEMM: one input of q8 activations by several block-quantized
//! weights in one launch (Q, K and V; or gate and up), for m up to 8.
//!
//! Tile: the workgroups of all outputs lie in one grid, output o up to `params.end<o>`. In a workgroup, a
//! group of `lanes` neighboring threads owns one row of W for all m rows of A; its lanes stride over the
//! blocks of 32 elements and their partial sums are added at the end. An output has one weight, or two of
//! one shape and then is `silu(first) * second`, or with `gelu[o]` `gelu(first) * second`. With `q8_output`
//! a workgroup owns 32 neighboring columns, in rounds where it has fewer groups, and also quantizes them
//! for the next matmul: there, one thread takes one row.
//!
//! Bindings: `a` q8 activations (quantize_q8.wgsl); for each output o its weights `w_<o>_<p>` (packed
//! rows, formats/), with `bias[o]` `bias_<o>` [n] f32, and `dst_<o>` [m, n] f32; with `q8_output` last
//! `dst`, q8 activations of the only output, rows of `q8_stride` vectors.
//! Needs: all weights have the same k; with `q8_output` one output of two weights and n a multiple of 32.
//!
//! Bound by memory bandwidth, and for small weights by the latency of a launch, which fusing saves; not
//! measured alone.
#include "matmul/sum_lanes.wgsl"
#include "qmatmul/dot_q8.wgsl"
#define outputs len(formats)
struct Params {
    m: u32, k: u32, span: u32,
#for o in 0..outputs
    n{{o}}: u32, end{{o}}: u32,
#endfor
}
#if q8_output
var<workgroup> made: array<f32, {{32 * m}}>;
#endif
#expand dot_q8_functions()
#for o in 0..outputs
  #for p in 0..len(formats[o])
    #define suffix "_" + o + "_" + p
    #include "qmatmul/formats/{{formats[o][p]}}.wgsl"
    #expand dot_q8_block(suffix, dots[o][p])
  #endfor
#endfor
#if q8_output
  #include "qmatmul/q8_block.wgsl"
#endif
#include "qmatmul/gemv_main.wgsl"
//! `count` blocks of the row of every weight of output o: all loads first.
#macro multiply(o, weights, count)
  #for u in 0..count
    #for p in 0..weights
            let raw{{p}}_{{u}} = fetch_{{o}}_{{p}}(w_row{{p}}, ib + {{u * lanes}}u);
    #endfor
  #endfor
  #for u in 0..count
    #for p in 0..weights
            let block{{p}}_{{u}} = decode_{{o}}_{{p}}(raw{{p}}_{{u}}, ib + {{u * lanes}}u);
    #endfor
    #for i in 0..m
            let a{{i}}_{{u}} = activations(a_row{{i}}, ib + {{u * lanes}}u);
      #for p in 0..weights
            sum{{p}}_{{i}} = dot_block_{{o}}_{{p}}(sum{{p}}_{{i}}, block{{p}}_{{u}}, a{{i}}_{{u}});
      #endfor
    #endfor
  #endfor
#endmacro
#for o in 0..outputs
  #define weights len(formats[o])
  #define first o == 0 ? "0u" : "params.end" + (o - 1)
  #if o == 0
    if (group < params.end{{o}}) {
  #else
    if (group >= {{first}} && group < params.end{{o}}) {
  #endif
  #if q8_output
        for (var round = 0u; round < 32u; round += {{threads / lanes}}u) {
        let slot = round + thread / {{lanes}}u;
        let row = group * 32u + slot;
  #else
        let row = (group - {{first}}) * {{threads / lanes}}u + thread / {{lanes}}u;
  #endif
        let clamped = min(row, params.n{{o}} - 1u);
  #for p in 0..weights
        let w_row{{p}} = clamped * row_length_{{o}}_{{p}}();
  #endfor
  #for p in 0..weights
    #for i in 0..m
        var sum{{p}}_{{i}} = 0.0;
    #endfor
  #endfor
        var ib = lane;
        for (; ib + {{(unroll - 1) * lanes}}u < blocks; ib += {{unroll * lanes}}u) {
  #expand multiply(o, weights, unroll)
        }
  #if unroll > 1
        for (; ib < blocks; ib += {{lanes}}u) {
    #expand multiply(o, weights, 1)
        }
  #endif
  #for p in 0..weights
    #for i in 0..m
      #if shuffle
        #expand sum_by_shuffle("t" + (p * m + i), "sum" + p + "_" + i, log2_lanes)
      #else
        #expand sum_by_memory("t" + (p * m + i), "sum" + p + "_" + i, log2_lanes)
      #endif
    #endfor
  #endfor
  #for i in 0..m
    #define inside q8_output ? "slot < 32u" : "row < params.n" + o
        if (lane == {{i % lanes}}u && {{i}}u < params.m && {{inside}}) {
    #define plus_bias bias[o] ? " + bias_" + o + "[row]" : ""
    #if weights == 2
      #if gelu[o]
            // 0.5 (1 + tanh(y)) = 1 / (1 + exp(-2 y)).
            let inner = t{{i}} * (1.5957691216 + 0.0713548163 * t{{i}} * t{{i}});
            let value = t{{i}} / (1.0 + exp(-inner)) * t{{m + i}}{{plus_bias}};
      #else
            let value = t{{i}} / (1.0 + exp(-t{{i}})) * t{{m + i}}{{plus_bias}};
      #endif
    #else
            let value = t{{i}}{{plus_bias}};
    #endif
            dst_{{o}}[{{i}}u * params.n{{o}} + row] = value;
    #if q8_output
            made[{{32 * i}}u + slot] = value;
    #endif
        }
  #endfor
  #if q8_output
        }
        workgroupBarrier();
        if (local < params.m) {
            put_q8_block(
                local * {{q8_stride}}u + (group >> 3u) * 24u + (group & 7u),
    #for v in 0..8
                vec4<f32>(
      #for c in 0..4
                    made[local * 32u + {{v * 4 + c}}u],
      #endfor
                ),
    #endfor
            );
        }
  #endif
    }
#endfor
}
