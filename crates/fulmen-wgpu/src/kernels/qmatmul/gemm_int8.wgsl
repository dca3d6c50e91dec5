//! Tiled int8 GEMM with block-quantized weights, `out[m, n] = epilogue(A · Wᵀ)`, from q8 activations.
//!
//! Tile: a workgroup owns `bm` x `bn` of the output, a thread `tm` x `tn` of it: rows and columns as far
//! apart as there are threads beside it, so that neighboring threads read neighboring memory. k-tiles of
//! `depth` blocks of 32 elements go through workgroup memory as int8 quants with their scales (36 bytes a
//! block instead of 128 as f32); a block is multiplied with `dot4I8Packed`, its scales are applied once.
//! With split-K each slice of k is a workgroup of its own and matmul/split_k_sum.wgsl adds the slices.
//!
//! Bindings: `a` q8 activations (quantize_q8.wgsl); `w` packed rows of W (formats/); `dst` [m, n] f32 or
//! slices of it; then the epilogue's inputs.
//! Needs: bm a multiple of tm, bn of tn. `half_scales`: each 16 elements of a block have a scale of their own
//! (Q6_K).
//!
//! Bound by integer ALU throughput: Q4_K 9728 x 2560 with m = 512 takes 498 µs on an H200
//! (docs/lab/wgpu-kernels.md).
#include "matmul/prelude.wgsl"
#define suffix ""
#include "qmatmul/formats/{{format}}.wgsl"
#define tx bn / tn
#define ty bm / tm
#define threads tx * ty
#define lda bm + 1
#define ldb bn + 1
const BM = {{bm}}u;
const BN = {{bn}}u;
const TX = {{tx}}u;
const TY = {{ty}}u;
const DEPTH = {{depth}}u;
const THREADS = {{threads}}u;
// Padded by one: the blocks of a row lie in different banks.
const LDA = {{lda}}u;
const LDB = {{ldb}}u;
var<workgroup> quants_a: array<vec4<u32>, {{2 * depth * lda}}>;
var<workgroup> quants_b: array<vec4<u32>, {{2 * depth * ldb}}>;
var<workgroup> scales_a: array<vec2<f32>, {{depth * bm}}>;
var<workgroup> scales_b: array<vec2<f32>, {{depth * bn}}>;

fn dot16(x: vec4<u32>, y: vec4<u32>) -> i32 {
    return dot4I8Packed(x.x, y.x) + dot4I8Packed(x.y, y.y) + dot4I8Packed(x.z, y.z) + dot4I8Packed(x.w, y.w);
}

// Quants as bytes that count as signed.
fn signed(quants: vec4<u32>) -> vec4<u32> {
#if half_scales
    // Bytes of 0 to 63, less 32.
    return ((quants | vec4<u32>(0x80808080u)) - vec4<u32>(0x20202020u)) ^ vec4<u32>(0x80808080u);
#else
    return quants;
#endif
}

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let group = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (group >= params.count) { return; }
    let tiles_m = (params.m + BM - 1u) / BM;
    let tiles_n = (params.n + BN - 1u) / BN;
    let slice = group / (tiles_m * tiles_n);
    let tile = group % (tiles_m * tiles_n);
    let row0 = (tile % tiles_m) * BM;
    let col0 = (tile / tiles_m) * BN;
    let blocks = params.k / 32u;
    let a_row = ((blocks + 7u) / 8u) * 24u;
    let w_row = row_length();
    let tx = local % TX;
    let ty = local / TX;
#for s in 0..tm * tn
    var sum{{s}} = 0.0;
#endfor
    let begin = slice * params.span;
    let end = min(begin + params.span, blocks);
    for (var first = begin; first < end; first += DEPTH) {
        for (var p = local; p < BM * DEPTH; p += THREADS) {
            let t = p % DEPTH;
            let row = p / DEPTH;
            let ib = min(first + t, end - 1u);
            let at = min(row0 + row, params.m - 1u) * a_row + (ib >> 3u) * 24u + (ib & 7u);
            let sums = bitcast<vec4<f32>>(a[at + 16u]);
            quants_a[2u * t * LDA + row] = a[at];
            quants_a[(2u * t + 1u) * LDA + row] = a[at + 8u];
            // Zero past the end.
            scales_a[t * BM + row] = select(vec2<f32>(), sums.xw, first + t < end);
        }
        for (var p = local; p < BN * DEPTH; p += THREADS) {
            let t = p % DEPTH;
            let col = p / DEPTH;
            let ib = min(first + t, end - 1u);
            let block = decode(fetch(min(col0 + col, params.n - 1u) * w_row, ib), ib);
            quants_b[2u * t * LDB + col] = signed(block.lo);
            quants_b[(2u * t + 1u) * LDB + col] = signed(block.hi);
#if half_scales
            scales_b[t * BN + col] = block.scale;
#else
            scales_b[t * BN + col] = vec2<f32>(block.scale.x, block.offset.x);
#endif
        }
        workgroupBarrier();
        for (var t = 0u; t < DEPTH; t++) {
#for h in 0..2
  #for i in 0..tm
            let a{{h}}_{{i}} = quants_a[(2u * t + {{h}}u) * LDA + ty + {{i}}u * TY];
  #endfor
#endfor
#for i in 0..tm
            let scale_a{{i}} = scales_a[t * BM + ty + {{i}}u * TY];
#endfor
#for j in 0..tn
            {
            let b0 = quants_b[2u * t * LDB + tx + {{j}}u * TX];
            let b1 = quants_b[(2u * t + 1u) * LDB + tx + {{j}}u * TX];
            let scale_b = scales_b[t * BN + tx + {{j}}u * TX];
  #for i in 0..tm
    #define s i * tn + j
    #if half_scales
            sum{{s}} = fma(
                scale_a{{i}}.x,
                fma(scale_b.x, f32(dot16(a0_{{i}}, b0)), scale_b.y * f32(dot16(a1_{{i}}, b1))),
                sum{{s}},
            );
    #else
            sum{{s}} = fma(
                scale_a{{i}}.x * scale_b.x,
                f32(dot16(a0_{{i}}, b0) + dot16(a1_{{i}}, b1)),
                fma(scale_a{{i}}.y, scale_b.y, sum{{s}}),
            );
    #endif
  #endfor
            }
#endfor
        }
        workgroupBarrier();
    }
#for i in 0..tm
    {
        let row = row0 + ty + {{i}}u * TY;
        if (row < params.m) {
  #for j in 0..tn
            if (col0 + tx + {{j}}u * TX < params.n) {
                store1(sum{{i * tn + j}}, slice, row, col0 + tx + {{j}}u * TX);
            }
  #endfor
        }
    }
#endfor
}
