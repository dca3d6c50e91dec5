//! Cooperative-matrix GEMM, `out[m, n] = epilogue(A · Bᵀ)`: f16 operands, f32 accumulators, on tensor
//! cores.
//!
//! Tile: a workgroup owns `bm` x `bn` of the output, each of its 32-wide subgroups `wm` x `wn` of it as
//! 16 x 16 fragments. k-tiles of depth `bk` (32 or 64) of A and B go through workgroup memory, k
//! contiguous; the next k-tile is loaded into registers while one is multiplied. Rows are padded by two
//! vec4<f16> (80 or 144 bytes) so that eight rows lie in different banks. Accumulators go through
//! workgroup memory, so that epilogue, edges and row scales are the same code as in the other kernels.
//! Tiles are walked in bands of `band` rows of tiles for L2.
//! With split-K each slice of k is a workgroup of its own and split_k_sum.wgsl adds the slices.
//!
//! Bindings: `a` [m, k padded to 64] f16, as convert_f16.wgsl makes it; B as `b_source` declares it, [n,
//! k] f16 (coop_b_f16.wgsl) or block-quantized rows that are dequantized to f16 on the way
//! (qmatmul/coop_b_quantized.wgsl); `scales` [m] f32, what each row of A is multiplied by at the end;
//! `dst` [m, n] f32 or slices of it; then the epilogue's inputs.
//! `b_source` has `row_base(row)`, `fetch_b(base, k)` of type `raw_type`, and `decode_b(raw, k, v)`: the
//! v-th of the `vectors_per_fetch` vec4<f16> from k on.
//!
//! Needs: wm and wn multiples of 16, subgroups of 32. Without `coop` the threads of 32 neighbors multiply
//! fragments by ordinary arithmetic: slow, for tests of everything else on devices without cooperative
//! matrices.
//!
//! Bound by loads into workgroup memory and tensor cores: 151 to 181 TFLOP/s for 4096³ and 8192³ on an
//! H200 (docs/lab/wgpu-kernels.md).
#include "matmul/prelude.wgsl"
#define vectors bk / 4
#define fetches_per_row vectors / vectors_per_fetch
#define all_a bm * vectors
#define all_b bn * fetches_per_row
#define loads_a (all_a + threads - 1) / threads
#define loads_b (all_b + threads - 1) / threads
#define fragments_m wm / 16
#define fragments_n wn / 16
const BM = {{bm}}u;
const BN = {{bn}}u;
const THREADS = {{threads}}u;
// vec4s between rows.
const LD = {{ld}}u;
var<workgroup> tile_a: array<vec4<f16>, {{bm * ld}}>;
var<workgroup> tile_b: array<vec4<f16>, {{bn * ld}}>;
var<workgroup> fragment: array<vec4<f32>, {{threads / 32 * 64}}>;

#include "{{b_source}}"
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
#if coop
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
#endif
) {
    let group = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (group >= params.count) { return; }
    let tiles_m = (params.m + BM - 1u) / BM;
    let tiles_n = (params.n + BN - 1u) / BN;
    let slice = group / (tiles_m * tiles_n);
    let tile = group % (tiles_m * tiles_n);
    // Bands of {{band}} rows of tiles.
    let band = tile / ({{band}}u * tiles_n);
    let in_band = tile % ({{band}}u * tiles_n);
    let height = min(tiles_m - band * {{band}}u, {{band}}u);
    let row0 = (band * {{band}}u + in_band % height) * BM;
    let col0 = (in_band / height) * BN;
#if !coop
    let subgroup = local / 32u;
    let lane = local % 32u;
#endif
    let my_row0 = (subgroup / {{bn / wn}}u) * {{wm}}u;
    let my_col0 = (subgroup % {{bn / wn}}u) * {{wn}}u;
    // Rows of A are padded to multiples of 64 elements.
    let a_row = (params.k + 63u) / 64u * 16u;
#for l in 0..loads_a
    let row_a{{l}} = (local + {{l * threads}}u) / {{vectors}}u;
    let k_a{{l}} = (local + {{l * threads}}u) % {{vectors}}u;
    let base_a{{l}} = min(row0 + row_a{{l}}, params.m - 1u) * a_row;
#endfor
#for l in 0..loads_b
    let row_b{{l}} = (local + {{l * threads}}u) / {{fetches_per_row}}u;
    let k_b{{l}} = (local + {{l * threads}}u) % {{fetches_per_row}}u;
    let base_b{{l}} = row_base(min(col0 + row_b{{l}}, params.n - 1u));
#endfor
#for l in 0..loads_a
    var next_a{{l}} = vec4<f16>();
#endfor
#for l in 0..loads_b
    var next_b{{l}} = {{raw_type}}();
#endfor
#for f in 0..fragments_m * fragments_n
    var acc{{f}} = {{coop ? "coop_mat16x16<f32, C>" : "array<f32, 8>"}}();
#endfor
    let k_tiles = (params.k + {{bk}}u - 1u) / {{bk}}u;
    var k_tile = slice * params.span;
    let end = min(k_tile + params.span, k_tiles);
//! From memory into registers.
#macro fetch(k_tile)
  #for l in 0..loads_a
            next_a{{l}} = a[base_a{{l}} + ({{k_tile}}) * {{vectors}}u + k_a{{l}}];
  #endfor
  #for l in 0..loads_b
    #define offset "k_b" + l + " * " + vectors_per_fetch * 4 + "u"
            next_b{{l}} = fetch_b(base_b{{l}}, ({{k_tile}}) * {{bk}}u + {{offset}});
  #endfor
#endmacro
//! From registers into workgroup memory; B is decoded here.
#macro put()
  #for l in 0..loads_a
    #define guarded l + 1 == loads_a && all_a % threads != 0
    #if guarded
        if (local + {{l * threads}}u < {{all_a}}u) {
    #endif
        tile_a[row_a{{l}} * LD + k_a{{l}}] = next_a{{l}};
    #if guarded
        }
    #endif
  #endfor
  #for l in 0..loads_b
    #define guarded l + 1 == loads_b && all_b % threads != 0
    #if guarded
        if (local + {{l * threads}}u < {{all_b}}u) {
    #endif
    #for v in 0..vectors_per_fetch
      #define k "k_tile * " + bk + "u + k_b" + l + " * " + vectors_per_fetch * 4 + "u"
        tile_b[row_b{{l}} * LD + k_b{{l}} * {{vectors_per_fetch}}u + {{v}}u]
            = decode_b(next_b{{l}}, {{k}}, {{v}}u);
    #endfor
    #if guarded
        }
    #endif
  #endfor
#endmacro
//! The fragments of one k-tile, 16 of k at a time.
#macro multiply()
  #for step in 0..bk / 16
    #define k step * 4
        {
    #if coop
      #for i in 0..fragments_m
        let a{{i}} = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[(my_row0 + {{i * 16}}u) * LD + {{k}}u], LD);
      #endfor
      #for j in 0..fragments_n
        let b{{j}} = coopLoad<coop_mat16x16<f16, B>>(&tile_b[(my_col0 + {{j * 16}}u) * LD + {{k}}u], LD);
        #for i in 0..fragments_m
          #define f i * fragments_n + j
        acc{{f}} = coopMultiplyAdd(a{{i}}, b{{j}}, acc{{f}});
        #endfor
      #endfor
    #else
      #for f in 0..fragments_m * fragments_n
        #define i f / fragments_n * 16
        #define j f % fragments_n * 16
        for (var e = 0u; e < 8u; e++) {
            for (var q = 0u; q < 4u; q++) {
                let x = vec4<f32>(tile_a[(my_row0 + {{i}}u + lane / 2u) * LD + {{k}}u + q]);
                let y = vec4<f32>(tile_b[(my_col0 + {{j}}u + (lane % 2u) * 8u + e) * LD + {{k}}u + q]);
                acc{{f}}[e] += dot(x, y);
            }
        }
      #endfor
    #endif
        }
  #endfor
#endmacro
#expand fetch("k_tile")
    for (; k_tile < end; k_tile++) {
#expand put()
        workgroupBarrier();
        if (k_tile + 1u < end) {
#expand fetch("k_tile + 1u")
        }
#expand multiply()
        workgroupBarrier();
    }
    // A lane stores four columns of two rows of each fragment: neighboring lanes write whole cache lines.
    let at_row = lane / 4u;
    let at_col = (lane % 4u) * 4u;
#for f in 0..fragments_m * fragments_n
  #if coop
    coopStoreT(acc{{f}}, &fragment[subgroup * 64u], 4u);
  #else
    for (var e = 0u; e < 8u; e++) {
        fragment[subgroup * 64u + lane * 2u + e / 4u][e % 4u] = acc{{f}}[e];
    }
  #endif
    workgroupBarrier();
    for (var half = 0u; half < 16u; half += 8u) {
        let row = row0 + my_row0 + {{f / fragments_n * 16}}u + at_row + half;
        if (row < params.m) {
            let values = fragment[subgroup * 64u + (at_row + half) * 4u + lane % 4u];
            store4(values * scales[row], slice, row, col0 + my_col0 + {{f % fragments_n * 16}}u + at_col);
        }
    }
    workgroupBarrier();
#endfor
}
