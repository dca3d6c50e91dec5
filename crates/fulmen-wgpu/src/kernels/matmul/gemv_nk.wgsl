//! GEMV and small-M GEMM, `out[m, n] = epilogue(A · Bᵀ)`, for B as `[n, k]` in f32, f16 or bf16 and m up
//! to 16.
//!
//! Tile: a group of `lanes` threads owns `rows` rows of B (columns of the output) and all m rows of A;
//! its lanes stride over k, `unroll` loads of every row at a time, and their partial sums are added at
//! the end. The group is a subgroup, the whole workgroup, or `lanes` neighboring threads, as `reduce`
//! says.
//!
//! Bindings: `a` [m, k] f32; `b0` (and `b1` of a pair) [n, k]; `dst` [m, n] f32; then the epilogue's
//! inputs. `a` and `b` are vectors of four elements where k is a multiple of 4 (`k_width`).
//!
//! Needs: `lanes` a power of two that divides `threads`; `m * rows * matmuls` sums fit the registers.
//! With `fixed_k` the length of a row is a constant and the loop has no remainder.
//!
//! Bound by memory bandwidth: B is read once. 9728 x 2560 in f32 at m = 1 takes 29 µs on an H200, 3.44 TB/s
//! (docs/lab/wgpu-kernels.md).
#include "matmul/prelude.wgsl"
#include "matmul/element.wgsl"
#include "matmul/sum_lanes.wgsl"
#for p in 0..matmuls
  #expand getter("b" + p, form, k_width)
#endfor
#define outputs m * rows
#define sums outputs * matmuls
#if shared_words > 0
var<workgroup> partial_sums: array<f32, {{shared_words}}>;
#endif
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
#if reduce != "lanes"
    @builtin(subgroup_invocation_id) lane_in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
#endif
) {
    let group = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (group >= params.count) { return; }
#if reduce == "subgroup"
    let lane = lane_in_subgroup;
    let row0 = (group * {{threads / lanes}}u + subgroup) * {{rows}}u;
#elif reduce == "workgroup"
    let lane = local;
    let row0 = (group * {{threads / lanes}}u + 0u) * {{rows}}u;
#else
    let lane = local % {{lanes}}u;
    let row0 = (group * {{threads / lanes}}u + local / {{lanes}}u) * {{rows}}u;
#endif
    // Loads of a row.
#if fixed_k
    const kv = {{k / k_width}}u;
#else
    let kv = params.k / {{k_width}}u;
#endif
#for r in 0..rows
    let b_row{{r}} = min(row0 + {{r}}u, params.n - 1u) * kv;
#endfor
#for i in 0..m
    let a_row{{i}} = min({{i}}u, params.m - 1u) * kv;
#endfor
#for s in 0..sums
    var sum{{s}} = {{vector_sums ? "vec4<f32>" : "f32"}}();
#endfor
//! `count` loads from every row of B, then their use.
#macro multiply(count)
  #for u in 0..count
    #for r in 0..rows
      #for p in 0..matmuls
        let w{{p}}_{{r}}_{{u}} = get_b{{p}}(b_row{{r}} + i + {{u * lanes}}u);
      #endfor
    #endfor
  #endfor
  #for u in 0..count
    #for i in 0..m
        let a{{i}}_{{u}} = a[a_row{{i}} + i + {{u * lanes}}u];
      #for r in 0..rows
        #for p in 0..matmuls
          #define s (p * m + i) * rows + r
          #if k_width == 4 && !vector_sums
            #for c in 0..4
              #define lane "xyzw"[c]
        sum{{s}} = fma(w{{p}}_{{r}}_{{u}}.{{lane}}, a{{i}}_{{u}}.{{lane}}, sum{{s}});
            #endfor
          #else
        sum{{s}} = fma(w{{p}}_{{r}}_{{u}}, a{{i}}_{{u}}, sum{{s}});
          #endif
        #endfor
      #endfor
    #endfor
  #endfor
#endmacro
#if fixed_k && k / k_width % (unroll * lanes) == 0
    for (var step = 0u; step < {{k / k_width / (unroll * lanes)}}u; step++) {
        let i = lane + step * {{unroll * lanes}}u;
  #expand multiply(unroll)
    }
#else
    var i = lane;
    for (; i + {{(unroll - 1) * lanes}}u < kv; i += {{unroll * lanes}}u) {
  #expand multiply(unroll)
    }
  #if unroll > 1
    for (; i < kv; i += {{lanes}}u) {
    #expand multiply(1)
    }
  #endif
#endif
//! Stores `v0` (and `v1`) as output number `q` of the group.
#macro store_output(condition, q)
        let out_row = {{q}} / {{rows}}u;
        let out_col = row0 + {{q}} % {{rows}}u;
        if ({{condition}} && out_row < params.m && out_col < params.n) {
            store1({{matmuls == 2 ? "v0, v1" : "v0"}}, 0u, out_row, out_col);
        }
#endmacro
#for s in 0..sums
  #define sum "sum" + s
  #define value vector_sums ? "((" + sum + ".x + " + sum + ".y) + (" + sum + ".z + " + sum + ".w))" : sum
  #if reduce == "lanes"
    #expand sum_by_memory("t" + s, value, log2_lanes)
  #else
    let t{{s}} = subgroupAdd({{value}});
    #if reduce == "workgroup"
    if (lane_in_subgroup == 0u) { partial_sums[{{s * subgroup_slots}}u + subgroup] = t{{s}}; }
    #endif
  #endif
#endfor
#if reduce == "workgroup"
    // Thread `q` adds what the subgroups left of output `q`.
    workgroupBarrier();
    for (var q = local; q < {{outputs}}u; q += {{lanes}}u) {
  #for p in 0..matmuls
        var v{{p}} = 0.0;
        for (var g = 0u; g < subgroups; g++) {
            v{{p}} += partial_sums[(q + {{p * outputs}}u) * {{subgroup_slots}}u + g];
        }
  #endfor
  #expand store_output("true", "q")
    }
#else
    // Every lane has every total: each stores its own outputs.
  #for batch in 0..(outputs + lanes - 1) / lanes
    #define first batch * lanes
    #define here min(lanes, outputs - first)
    {
    #for p in 0..matmuls
        var v{{p}} = t{{p * outputs + first}};
      #for l in 1..here
        if (lane == {{l}}u) { v{{p}} = t{{p * outputs + first + l}}; }
      #endfor
    #endfor
    #expand store_output("lane < " + here + "u", "(lane + " + first + "u)")
    }
  #endfor
#endif
}
