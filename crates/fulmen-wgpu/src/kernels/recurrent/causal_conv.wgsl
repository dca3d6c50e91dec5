//! Depthwise causal convolution with a state, then SiLU. One thread per sequence and channel, workgroups of
//! 64 threads where the device allows, the taps in registers.
//!
//! **Algorithm.** The thread of the first row of a sequence walks over all rows of that sequence in their
//! order, with the last inputs of its channel in registers; threads of later rows have nothing to do. A row
//! at position 0 starts from zeros.
//!
//! **Bindings.** `x` and `y` [m][channels]; `weight` [channels][taps]; `state` [n_seqs][taps - 1][channels],
//! the oldest input first; `positions`, `sequences` [m]; `fault`.
//!
//! **Preconditions.** At least 2 taps.
//!
//! **Bound** by memory bandwidth for many sequences, by the latency of its loads for one; not measured.
struct Params {
    m: u32,
    n_seqs: u32,
    channels: u32,
}

alias EwF = f32;
alias EwU = u32;
alias EwI = i32;
alias EwB = bool;
#include "elementwise/nan.wgsl"
#include "elementwise/exp.wgsl"
#include "elementwise/sigmoid.wgsl"
#include "fault.wgsl"
#include "recurrent/sequence_walk.wgsl"

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    let blocks = (params.channels + {{threads - 1}}u) / {{threads}}u;
    let channel = number % blocks * {{threads}}u + thread;
    let start = number / blocks;
    if (start >= {{sequences ? "params.m" : "1u"}} || channel >= params.channels) { return; }
    var row = first_row(start);
    if (row == NO_ROW) {
        if (sequence_of(start) == NO_STATE) { y[start * params.channels + channel] = 0.0; }
        return;
    }
    let slot = sequence_of(row) * {{taps - 1}}u * params.channels + channel;
#for tap in 0..taps
    let weight{{tap}} = weight[channel * {{taps}}u + {{tap}}u];
#endfor
#for old in 0..taps - 1
    var old{{old}} = state[slot + {{old}}u * params.channels];
#endfor
    loop {
        if (row == NO_ROW) { break; }
        if (positions[row] == 0u) {
#for old in 0..taps - 1
            old{{old}} = 0.0;
#endfor
        }
        let at = row * params.channels + channel;
        let input = x[at];
        var sum = weight{{taps - 1}} * input;
#for old in 0..taps - 1
        sum = fma(weight{{old}}, old{{old}}, sum);
#endfor
        y[at] = ew_swish(sum);
#for old in 0..taps - 2
        old{{old}} = old{{old + 1}};
#endfor
        old{{taps - 2}} = input;
        row = next_row(row);
    }
#for old in 0..taps - 1
    state[slot + {{old}}u * params.channels] = old{{old}};
#endfor
}
