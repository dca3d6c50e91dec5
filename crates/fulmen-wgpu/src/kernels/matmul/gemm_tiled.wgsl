//! Tiled GEMM in f32, `out[m, n] = epilogue(A · B)`, for many rows of A. B is `[n, k]` or `[k, n]` in
//! f32, f16 or bf16; a pair of weights (gate and up) is computed in one launch.
//!
//! Tile: a workgroup owns `bm` x `bn` of the output (in a pair `bn / 2` columns of each matmul), a
//! thread `tm` x `tn` of it in registers. k-tiles of depth `bk` go through workgroup memory with k
//! outermost, `stages` of them; the next k-tile is loaded into registers while one is multiplied. 32
//! neighboring threads are 4 by 8; a thread owns groups of four rows, 16 apart, and of four columns, 32
//! apart, so that its loads are free of bank conflicts.
//! Tiles are walked in bands of `band` rows of tiles, which keeps what concurrent workgroups read in L2.
//! With split-K each slice of k is a workgroup of its own and split_k_sum.wgsl adds the slices.
//!
//! Bindings: `a` [m, k] f32; `b0` (and `b1`) [n, k] or [k, n]; `dst` [m, n] f32 or slices of it; then the
//! epilogue's inputs. Vectors of four elements where rows are multiples of four.
//! Needs: bm a multiple of 4 tm, bn of 8 tn, bk of 4, bk of `unroll`; `mask_a` and `mask_b` are 0 without
//! swizzle.
//!
//! Bound by FMA throughput: 45 TFLOP/s at 8192³ on an H200, where cuBLAS reaches 50.7 in f32
//! (docs/lab/wgpu-kernels.md).
#include "matmul/prelude.wgsl"
#include "matmul/element.wgsl"
#define cols bn / matmuls
#define lda (bm + pad) / 4
#define ldb (bn + pad) / 4
#define quads bk / 4
#define loads_a (bm * quads + threads - 1) / threads
#define loads_b (bn * quads + threads - 1) / threads
#expand getter("a", "f32", k_width)
#for p in 0..matmuls
  #expand getter("b" + p, form, b_nk ? k_width : width)
#endfor
// vec4s between rows of a k-tile, and in a stage.
const LDA = {{lda}}u;
const LDB = {{ldb}}u;
const STAGE_A = {{bk * lda}}u;
const STAGE_B = {{bk * ldb}}u;
var<workgroup> tile_a: array<vec4<f32>, {{stages * bk * lda}}>;
var<workgroup> tile_b: array<vec4<f32>, {{stages * bk * ldb}}>;

//! Four values along k, zero past k.
#macro load_along_k(name)
  #if k_width == 4 && even_k
fn load_{{name}}(base: u32, k: u32) -> vec4<f32> { return get_{{name}}(base + k / 4u); }
  #elif k_width == 4
fn load_{{name}}(base: u32, k: u32) -> vec4<f32> {
    let v = get_{{name}}(base + min(k, params.k - 4u) / 4u);
    return select(vec4<f32>(), v, k < params.k);
}
  #else
fn one_{{name}}(base: u32, k: u32) -> f32 {
    return select(0.0, get_{{name}}(base + min(k, params.k - 1u)), k < params.k);
}
fn load_{{name}}(base: u32, k: u32) -> vec4<f32> {
    return vec4<f32>(
        one_{{name}}(base, k), one_{{name}}(base, k + 1u),
        one_{{name}}(base, k + 2u), one_{{name}}(base, k + 3u),
    );
}
  #endif
#endmacro
//! Four values along n, zero past k.
#macro load_along_n(name)
  #if width == 4 && even_k
fn load_{{name}}(k: u32, col: u32) -> vec4<f32> { return get_{{name}}((k * params.n + col) / 4u); }
  #elif width == 4
fn load_{{name}}(k: u32, col: u32) -> vec4<f32> {
    let v = get_{{name}}((min(k, params.k - 1u) * params.n + col) / 4u);
    return select(vec4<f32>(), v, k < params.k);
}
  #else
fn one_{{name}}(row: u32, col: u32) -> f32 { return get_{{name}}(row + min(col, params.n - 1u)); }
fn load_{{name}}(k: u32, col: u32) -> vec4<f32> {
    let row = min(k, params.k - 1u) * params.n;
    let v = vec4<f32>(
        one_{{name}}(row, col), one_{{name}}(row, col + 1u),
        one_{{name}}(row, col + 2u), one_{{name}}(row, col + 3u),
    );
    return select(vec4<f32>(), v, k < params.k);
}
  #endif
#endmacro
#expand load_along_k("a")
#for p in 0..matmuls
  #if b_nk
    #expand load_along_k("b" + p)
  #else
    #expand load_along_n("b" + p)
  #endif
#endfor

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let group = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (group >= params.count) { return; }

    // Bands of {{band}} rows of tiles.
    let tiles_m = (params.m + {{bm}}u - 1u) / {{bm}}u;
    let tiles_n = (params.n + {{cols}}u - 1u) / {{cols}}u;
    let slice = group / (tiles_m * tiles_n);
    let tile = group % (tiles_m * tiles_n);
    let band = tile / ({{band}}u * tiles_n);
    let in_band = tile % ({{band}}u * tiles_n);
    let height = min(tiles_m - band * {{band}}u, {{band}}u);
    let row0 = (band * {{band}}u + in_band % height) * {{bm}}u;
    let col0 = (in_band / height) * {{cols}}u;

    // This thread's first groups of four rows and of four columns.
    let warp = local / 32u;
    let my_rows = (warp / {{bn / (8 * tn)}}u) * {{tm}}u + (local % 32u) / 8u;
    let my_cols = (warp % {{bn / (8 * tn)}}u) * {{2 * tn / matmuls}}u + local % 8u;

    // Load l of a thread: `base` in the source, `k` in the k-tile, `col` there, and the row (or column)
    // `row`.
#define row_length k_width == 4 ? "(params.k / 4u)" : "params.k"
#for l in 0..loads_a
    let row_a{{l}} = (local + {{l * threads}}u) / {{quads}}u;
    let k_a{{l}} = ((local + {{l * threads}}u) % {{quads}}u) * 4u;
  #if mask_a > 0
    #define swizzle "((local + " + l * threads + "u) % " + quads + "u) * " + swizzle_step + "u"
    let col_a{{l}} = ((row_a{{l}} / 4u) ^ (({{swizzle}}) & {{mask_a}}u));
  #else
    let col_a{{l}} = (row_a{{l}} / 4u);
  #endif
    let base_a{{l}} = min(row0 + row_a{{l}}, params.m - 1u) * {{row_length}};
#endfor
#for l in 0..loads_b
  #if b_nk
    let row_b{{l}} = (local + {{l * threads}}u) / {{quads}}u;
    let k_b{{l}} = ((local + {{l * threads}}u) % {{quads}}u) * 4u;
    #if mask_b > 0
      #define swizzle "((local + " + l * threads + "u) % " + quads + "u) * " + swizzle_step + "u"
    let col_b{{l}} = ((row_b{{l}} / 4u) ^ (({{swizzle}}) & {{mask_b}}u));
    #else
    let col_b{{l}} = (row_b{{l}} / 4u);
    #endif
    let base_b{{l}} = min(col0 + row_b{{l}} % {{cols}}u, params.n - 1u) * {{row_length}};
    #if product_of_load[l] == 2
    let second{{l}} = row_b{{l}} >= {{cols}}u;
    #endif
  #else
    // A thread without a load of its own must not read past the k-tile.
    let k_b{{l}} = min((local + {{l * threads}}u) / {{bn / 4}}u, {{bk - 1}}u);
    let row_b{{l}} = (local + {{l * threads}}u) % {{bn / 4}}u;
    #if mask_b > 0
    let col_b{{l}} = (row_b{{l}} ^ (((k_b{{l}} / 4u) * {{swizzle_step}}u) & {{mask_b}}u));
    #else
    let col_b{{l}} = row_b{{l}};
    #endif
    let base_b{{l}} = min(col0 + (row_b{{l}} % {{cols / 4}}u) * 4u, params.n - {{width}}u);
    #if product_of_load[l] == 2
    let second{{l}} = row_b{{l}} >= {{cols / 4}}u;
    #endif
  #endif
#endfor
#for l in 0..loads_a
    var next_a{{l}} = vec4<f32>();
#endfor
#for l in 0..loads_b
    var next_b{{l}} = vec4<f32>();
#endfor
#for i in 0..tm
  #for j in 0..tn / 4
    var acc{{i}}_{{j}} = vec4<f32>();
  #endfor
#endfor
    let k_tiles = (params.k + {{bk}}u - 1u) / {{bk}}u;
    var k_tile = slice * params.span;
    let end = min(k_tile + params.span, k_tiles);
//! From memory into registers.
#macro fetch(k_tile)
  #for l in 0..loads_a
        next_a{{l}} = load_a(base_a{{l}}, ({{k_tile}}) * {{bk}}u + k_a{{l}});
  #endfor
  #for l in 0..loads_b
    #define k "(" + k_tile + ") * " + bk + "u + k_b" + l
    #define arguments b_nk ? "(base_b" + l + ", " + k + ")" : "(" + k + ", base_b" + l + ")"
    #if product_of_load[l] == 2
        if (second{{l}}) { next_b{{l}} = load_b1{{arguments}}; } else { next_b{{l}} = load_b0{{arguments}}; }
    #else
        next_b{{l}} = load_b{{product_of_load[l]}}{{arguments}};
    #endif
  #endfor
#endmacro
//! From registers into the stage that starts at `at_a` and `at_b`; values along k are transposed.
#macro put(at_a, at_b)
  #for l in 0..loads_a
    #define guarded l + 1 == loads_a && bm * quads % threads != 0
    #if guarded
        if (local + {{l * threads}}u < {{bm * quads}}u) {
    #endif
    #for c in 0..4
      #define value "next_a" + l + "." + "xyzw"[c]
        tile_a[{{at_a}} + (k_a{{l}} + {{c}}u) * LDA + col_a{{l}}][row_a{{l}} % 4u] = {{value}};
    #endfor
    #if guarded
        }
    #endif
  #endfor
  #for l in 0..loads_b
    #define guarded l + 1 == loads_b && bn * quads % threads != 0
    #if guarded
        if (local + {{l * threads}}u < {{bn * quads}}u) {
    #endif
    #if b_nk
      #for c in 0..4
        #define value "next_b" + l + "." + "xyzw"[c]
        tile_b[{{at_b}} + (k_b{{l}} + {{c}}u) * LDB + col_b{{l}}][row_b{{l}} % 4u] = {{value}};
      #endfor
    #else
        tile_b[{{at_b}} + k_b{{l}} * LDB + col_b{{l}}] = next_b{{l}};
    #endif
    #if guarded
        }
    #endif
  #endfor
#endmacro
//! The outer product of one k; `quad` is k / 4.
#macro multiply_at(kk, quad, at_a, at_b)
        {
  #for i in 0..tm / 4
    #define group "(my_rows + " + i * 4 + "u)"
    #if mask_a > 0
        let a{{i}} = tile_a[
            {{at_a}} + ({{kk}}) * LDA + ({{group}} ^ (({{quad}} * {{swizzle_step}}u) & {{mask_a}}u))
        ];
    #else
        let a{{i}} = tile_a[{{at_a}} + ({{kk}}) * LDA + {{group}}];
    #endif
  #endfor
  #for j in 0..tn / 4
    //! The columns of the second matmul of a pair are the second half of the tile.
    #define here tn / 4 / matmuls
    #define at j % here * 8 + j / here * (bn / 8)
    #if mask_b > 0
        let b{{j}} = tile_b[
            {{at_b}} + ({{kk}}) * LDB + (my_cols ^ (({{quad}} * {{swizzle_step}}u) & {{mask_b}}u)) + {{at}}u
        ];
    #else
        let b{{j}} = tile_b[{{at_b}} + ({{kk}}) * LDB + my_cols + {{at}}u];
    #endif
  #endfor
  #for i in 0..tm
    #for j in 0..tn / 4
        acc{{i}}_{{j}} = fma(vec4<f32>(a{{i / 4}}.{{"xyzw"[i % 4]}}), b{{j}}, acc{{i}}_{{j}});
    #endfor
  #endfor
        }
#endmacro
#macro multiply(at_a, at_b)
  #if unroll == bk
    #for kk in 0..bk
      #expand multiply_at(kk + "u", kk / 4 + "u", at_a, at_b)
    #endfor
  #else
        for (var kk = 0u; kk < {{bk}}u; kk += {{unroll}}u) {
    #for u in 0..unroll
      #define quad unroll % 4 == 0 ? "(kk / 4u + " + u / 4 + "u)" : "((kk + " + u + "u) / 4u)"
      #expand multiply_at("kk + " + u + "u", quad, at_a, at_b)
    #endfor
        }
  #endif
#endmacro
#expand fetch("k_tile")
#if stages == 1
    for (; k_tile < end; k_tile++) {
  #expand put("0u", "0u")
        workgroupBarrier();
        if (k_tile + 1u < end) {
  #expand fetch("k_tile + 1u")
        }
  #expand multiply("0u", "0u")
        workgroupBarrier();
    }
#else
  #expand put("0u", "0u")
    workgroupBarrier();
    var from_a = 0u;
    var from_b = 0u;
    for (; k_tile < end; k_tile++) {
        let to_a = STAGE_A - from_a;
        let to_b = STAGE_B - from_b;
        let more = k_tile + 1u < end;
        if (more) {
  #expand fetch("k_tile + 1u")
        }
  #expand multiply("from_a", "from_b")
        if (more) {
  #expand put("to_a", "to_b")
        }
        workgroupBarrier();
        from_a = to_a;
        from_b = to_b;
    }
#endif
#for i in 0..tm
    {
        let row = row0 + my_rows * 4u + {{i / 4 * 16 + i % 4}}u;
        if (row < params.m) {
  #define here tn / 4 / matmuls
  #for j in 0..here
    #define col "col0 + my_cols * 4u + " + j * 32 + "u"
    #if matmuls == 1
            store4(acc{{i}}_{{j}}, slice, row, {{col}});
    #elif to_slices
            store4(acc{{i}}_{{j}}, slice, row, {{col}});
            store4(acc{{i}}_{{j + here}}, params.slices + slice, row, {{col}});
    #else
            store4(acc{{i}}_{{j}}, acc{{i}}_{{j + here}}, slice, row, {{col}});
    #endif
  #endfor
        }
    }
#endfor
}
