//! The gates of the gated delta rule: the factor of the state, `exp(decay · softplus(alpha + dt))`, and that
//! of the update, `sigmoid(beta)`. Element-wise, one thread per row and value head.
//!
//! **Bindings.** `alpha` and `beta` [m][heads]; `decay` and `dt` [heads]; `gates` [m][heads]
//! vec2<f32>: the factor of the state, then that of the update.
//!
//! **Preconditions.** None.
//!
//! **Bound** by launch latency; not measured.
struct Params {
    m: u32,
    heads: u32,
}

alias EwF = f32;
alias EwU = u32;
alias EwI = i32;
alias EwB = bool;
#include "elementwise/nan.wgsl"
#include "elementwise/exp.wgsl"
#include "elementwise/log.wgsl"
#include "elementwise/sigmoid.wgsl"

// log(1 + e^x). Far left the sum would lose the exponential, and two terms of the series are enough.
fn softplus(x: f32) -> f32 {
    let e = ew_exp(x);
    let near = select(ew_log(1.0 + e), e * (1.0 - 0.5 * e), x < -10.0);
    return ew_keep_nan(x, select(near, x, x > 20.0));
}

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let at = (group.x + grid.x * (group.y + grid.y * group.z)) * {{threads}}u + thread;
    if (at >= params.m * params.heads) { return; }
    let head = at % params.heads;
    let rate = decay[head] * softplus(alpha[at] + dt[head]);
    gates[at] = vec2<f32>(ew_exp(rate), ew_keep_nan(beta[at], ew_sigmoid(beta[at])));
}
