//! GEMV by expert id, for decode and prefill: `out[pair] = epilogue(x · W[id]ᵀ)` for each pair of a row and
//! one of its experts. Activations are f32, weights are dequantized in registers.
//!
//! **Tile.** A workgroup (64 threads where the device allows) computes `threads / lanes` (8) outputs of one
//! pair, `lanes` (8) threads each. The lanes stride over blocks of 32 elements, or over vectors of k, and
//! their partial sums meet in workgroup memory. One stage; pairs of one expert do not share its weights.
//!
//! **Bindings.** `w`: rows `params.first` to `params.end` of the weights of all experts, plain or repacked
//! blocks as in `qmatmul`; `a` [rows][k] f32; `ids` [pairs]; `out` [pairs][n]; `fault`; and what the epilogue
//! reads: `bias` [experts][n], `gate` [pairs][n], `weights` [pairs]. Outputs whose row of W lies in another
//! slice are left alone, and so are pairs without an expert here (id `NO_EXPERT`) and those whose id is out
//! of range, which the launch of the first slice reports.
//!
//! `reader` is the WGSL that reads the weight type: `get_w(i)`, or `fetch` and `decode` of the block format.
//!
//! **Preconditions.** k is a multiple of 32 for block formats, fewer than 2^32 workgroups; vectors of four
//! where k is a multiple of 4.
//!
//! **Bound** by memory bandwidth: the weights of a pair's expert are read for every pair; not measured.
#if f16
enable f16;
#endif
struct Params {
    // Rows of W of an expert, elements of a row, experts; pairs that share a row of `a`, experts of a row.
    n: u32,
    k: u32,
    experts: u32,
    divide: u32,
    top: u32,
    // First and end row of this slice; loads of a row; workgroups per pair and in total.
    first: u32,
    end: u32,
    vecs: u32,
    across: u32,
    groups: u32,
    // Bits of two f32: constants of the activation.
    alpha: u32,
    limit: u32,
}

alias EwF = f32;
alias EwU = u32;
alias EwI = i32;
alias EwB = bool;
#include "elementwise/nan.wgsl"
#include "elementwise/exp.wgsl"
#include "elementwise/sigmoid.wgsl"
#include "elementwise/tanh.wgsl"
{{reader}}
#if blocks
#include "qmatmul/dot_f32.wgsl"
#endif
#include "fault.wgsl"
const NO_EXPERT = 0xffffffffu;
var<workgroup> partial_sums: array<f32, {{threads}}>;

fn gated(gate: f32, up: f32) -> f32 {
#if activation == "geglu"
    let inner = 0.7978845608 * (gate + 0.044715 * gate * gate * gate);
    return 0.5 * gate * (1.0 + ew_tanh(inner)) * up;
#elif activation == "clamped"
    let limit = bitcast<f32>(params.limit);
    let g = ew_keep_nan(gate, min(gate, limit));
    let u = ew_keep_nan(up, clamp(up, -limit, limit));
    return g * ew_sigmoid(bitcast<f32>(params.alpha) * g) * (u + 1.0);
#else
    return ew_gated(gate, ew_sigmoid(gate)) * up;
#endif
}

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.groups) { return; }
    let pair = number / params.across;
    let lane = thread % {{lanes}}u;
    let column = number % params.across * {{threads / lanes}}u + thread / {{lanes}}u;
    let id = ids[pair];
    let invalid = id >= params.experts && id != NO_EXPERT;
    if (invalid && column == 0u && lane == 0u && params.first == 0u) {
        report(FAULT_EXPERT, pair / params.top, id, params.experts);
    }
    let row = id * params.n + column;
    let here = id < params.experts && column < params.n && row >= params.first && row < params.end;
    var sum = 0.0;
    if (here) {
        let a_row = pair / params.divide * params.vecs;
#if blocks
        let base = (row - params.first) * row_length();
        for (var ib = lane; ib < params.k / 32u; ib += {{lanes}}u) {
            sum = dot_block(sum, decode(fetch(base, ib), ib), activations(a_row, ib));
        }
#else
        let base = (row - params.first) * params.vecs;
        for (var i = lane; i < params.vecs; i += {{lanes}}u) {
  #if vector
            sum += dot(get_w(base + i), a[a_row + i]);
  #else
            sum += get_w(base + i) * a[a_row + i];
  #endif
        }
#endif
    }
    partial_sums[thread] = sum;
    workgroupBarrier();
    if (!here || lane != 0u) { return; }
    var v = 0.0;
    for (var i = 0u; i < {{lanes}}u; i++) { v += partial_sums[thread + i]; }
    let at = pair * params.n + column;
#if bias
    v += bias[row];
#endif
#if output == "gated"
    v = gated(gate[at], v);
#elif output == "weighted"
    v *= weights[pair];
#endif
    out[at] = v;
}
