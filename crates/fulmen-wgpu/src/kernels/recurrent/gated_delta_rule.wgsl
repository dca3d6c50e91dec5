//! The gated delta rule as a sequential scan (recurrent form). One workgroup per sequence, value head and
//! block of 16 columns of its state (8 where a head has more than 128 elements); 64 threads, 4 (or 8) for
//! each column.
//!
//! **Tile.** A head's rows x 16 (8) columns of the state in workgroup memory, at most 8 KiB; no pipeline.
//!
//! **Algorithm.** The workgroup of the first row of a sequence walks over all rows of that sequence in their
//! order, with its columns of the state in workgroup memory; workgroups of later rows have nothing to do. A
//! thread owns every 4th (or 8th) element of its column. For each row: q and k are divided by their L2
//! norms, `k · S` is summed over the threads of a column, the state is updated, and `q · S` is summed. Sums
//! over threads are unrolled: Mesa's software GPU leaves the loops of a thread after 65,535 iterations in
//! all, which 486 rows of 128 elements took; now about 950 do.
//!
//! **Bindings.** `x` [m][q, k, v]; `gates` [m][value heads], the factors of the state and of the update;
//! `state` [n_seqs][value heads][head][head], rows by k and columns by v; `y` [m][value heads][head];
//! `positions`, `sequences` [m]; `fault`.
//!
//! **Preconditions.** A head has at most `head` elements, a power of two up to 256.
//!
//! **Bound** by memory bandwidth for one row of many sequences, by the latency of its barriers for prefill;
//! not measured.
struct Params {
    m: u32,
    n_seqs: u32,
    key_heads: u32,
    value_heads: u32,
    head_dim: u32,
    // Bits of an f32.
    epsilon: u32,
}

alias EwF = f32;
alias EwU = u32;
alias EwI = i32;
alias EwB = bool;
#include "elementwise/nan.wgsl"
#include "fault.wgsl"
#include "recurrent/sequence_walk.wgsl"

#define parts 64 / columns

var<workgroup> tile: array<f32, {{head * columns}}>;
var<workgroup> query: array<f32, {{head}}>;
var<workgroup> key: array<f32, {{head}}>;
var<workgroup> partial_sums: array<vec2<f32>, 64>;
var<workgroup> current: u32;
var<workgroup> is_start: u32;

// 1 / the L2 norm, but at most 1 / epsilon.
fn inverse_norm(squares: f32) -> f32 {
    let norm = sqrt(squares);
    return 1.0 / ew_keep_nan(squares, max(norm, bitcast<f32>(params.epsilon)));
}

// The sum over the threads of a column, or over all threads.
fn column_sum(thread: u32, value: f32) -> f32 {
    workgroupBarrier();
    partial_sums[thread].x = value;
    workgroupBarrier();
    var sum = 0.0;
#for part in 0..parts
    sum += partial_sums[{{part * columns}}u + thread % {{columns}}u].x;
#endfor
    return sum;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    let d = params.head_dim;
    let blocks = (d + {{columns - 1}}u) / {{columns}}u;
    let head = number / blocks % params.value_heads;
    let start = number / (blocks * params.value_heads);
    if (start >= {{sequences ? "params.m" : "1u"}}) { return; }
#if tiled
    let key_head = head % params.key_heads;
#else
    let key_head = head / (params.value_heads / params.key_heads);
#endif
    let column = number % blocks * {{columns}}u + thread % {{columns}}u;
    let part = thread / {{columns}}u;
    let inside = column < d;
    let key_width = params.key_heads * d;
    let width = 2u * key_width + params.value_heads * d;

    if (thread == 0u) { current = first_row(start); }
    var row = workgroupUniformLoad(&current);
    if (row == NO_ROW) {
        if (inside && part == 0u && sequence_of(start) == NO_STATE) {
            y[(start * params.value_heads + head) * d + column] = 0.0;
        }
        return;
    }
    let slot = (sequence_of(row) * params.value_heads + head) * d * d + column;
    if (inside) {
        for (var i = part; i < d; i += {{parts}}u) {
            tile[i * {{columns}}u + thread % {{columns}}u] = state[slot + i * d];
        }
    }
    loop {
        if (row == NO_ROW) { break; }
        if (thread == 0u) { is_start = u32(positions[row] == 0u); }
        let from_zeros = workgroupUniformLoad(&is_start) != 0u;
        // q and k, and the sums of their squares.
        var squares = vec2<f32>(0.0);
        for (var i = thread; i < d; i += 64u) {
            let q = x[row * width + key_head * d + i];
            let k = x[row * width + key_width + key_head * d + i];
            query[i] = q;
            key[i] = k;
            squares += vec2<f32>(q * q, k * k);
        }
        partial_sums[thread] = squares;
        workgroupBarrier();
        squares = vec2<f32>(0.0);
#for i in 0..64
        squares += partial_sums[{{i}}];
#endfor
        let of_query = inverse_norm(squares.x) * inverseSqrt(f32(d));
        let of_key = inverse_norm(squares.y);
        let factors = gates[row * params.value_heads + head];

        var predicted = 0.0;
        if (inside) {
            for (var i = part; i < d; i += {{parts}}u) {
                let at = i * {{columns}}u + thread % {{columns}}u;
                if (from_zeros) { tile[at] = 0.0; }
                predicted += key[i] * of_key * tile[at];
            }
        }
        predicted = column_sum(thread, predicted);
        var result = 0.0;
        if (inside) {
            let v = x[row * width + 2u * key_width + head * d + column];
            let update = factors.y * (v - factors.x * predicted);
            for (var i = part; i < d; i += {{parts}}u) {
                let at = i * {{columns}}u + thread % {{columns}}u;
                let element = fma(key[i] * of_key, update, factors.x * tile[at]);
                tile[at] = element;
                result += query[i] * of_query * element;
            }
        }
        result = column_sum(thread, result);
        if (inside && part == 0u) { y[(row * params.value_heads + head) * d + column] = result; }
        if (thread == 0u) { current = next_row(row); }
        row = workgroupUniformLoad(&current);
    }
    if (inside) {
        for (var i = part; i < d; i += {{parts}}u) {
            state[slot + i * d] = tile[i * {{columns}}u + thread % {{columns}}u];
        }
    }
}
