//! Sampling: draws a token from each row of logits by the rule of [`fulmen_core::sampling`].
//!
//! Rows are not sorted. Three launches: the largest logit of each part of a row; a histogram of the
//! row's weights over the distance from the largest; and one workgroup per row that finds positions in
//! the sorted order by rank or by cumulative weight.

use super::{
    KernelError, LaunchList, Role, argmax,
    bind::{KernelBindings, invalid},
    fault,
    launch_list::{product, threads},
    preprocess::values,
};
use crate::kernel::Caps;

const OP: &str = "sample";

/// Bins of the histogram.
const BINS: u32 = 1024;

/// Logits per workgroup: to find the largest, and for the histogram.
const PART: u32 = 1024;
const HISTOGRAM_PART: u32 = 4096;

/// Bytes of workgroup memory per thread of the last launch.
const DRAW_BYTES: u32 = 40;

/// Samples a token from each of `m` rows of `n` logits.
///
/// Input 0 is the logits, `[m, n]`, and with `tokens` input 1 the token of each; output 0 the `m` tokens,
/// output 1 one
/// [`SampleState`](fulmen_core::sampling::SampleState) for each row, whose step counter goes up, output 2 the
/// [record of faults](super::fault). A row with an invalid state is reported and gets no token.
///
/// # Errors
/// [`KernelError`] where something is larger than a binding, or rows have no logits.
pub fn sample(m: u32, n: u32, tokens: bool, caps: &Caps) -> Result<LaunchList, KernelError> {
    let mut list = LaunchList::default();
    if m == 0 {
        return Ok(list);
    }
    if n == 0 {
        return Err(invalid(OP, "rows without logits"));
    }
    let logits = product(OP, "the logits", &[m.into(), n.into(), 4])?;
    let parts = n.div_ceil(PART).min(argmax::MAX_PARTS);
    let keys = u64::from(m) * u64::from(parts) * 8;
    let bins = u64::from(m) * u64::from(BINS) * 12;
    let states = u64::from(m) * 32;
    list.scratch = vec![keys, bins];

    let threads_per_part = threads(256, caps);
    let mut bind = KernelBindings::new("sample largest", caps);
    bind.read("logits", Role::Input(0), "f32", logits)?;
    bind.write("keys", Role::Scratch(0), "vec2<u32>", keys)?;
    bind.write("bins", Role::Scratch(1), "u32", bins)?;
    let groups = word(u64::from(m) * u64::from(parts))?;
    let values = values![bins: BINS, threads: threads_per_part];
    let params = vec![n, n.div_ceil(parts), parts, groups];
    bind.launch(&mut list, "sample/largest.wgsl", &values, params, groups.into())?;

    let histogram_parts = n.div_ceil(HISTOGRAM_PART).min(argmax::MAX_PARTS);
    let mut bind = KernelBindings::new("sample histogram", caps);
    bind.read("logits", Role::Input(0), "f32", logits)?;
    bind.read("states", Role::Output(1), "u32", states)?;
    bind.read("keys", Role::Scratch(0), "vec2<u32>", keys)?;
    bind.write("bins", Role::Scratch(1), "atomic<u32>", bins)?;
    let groups = word(u64::from(m) * u64::from(histogram_parts))?;
    let params = vec![n, n.div_ceil(histogram_parts), histogram_parts, groups, parts];
    bind.launch(&mut list, "sample/histogram.wgsl", &values, params, groups.into())?;

    let mut bind = KernelBindings::new("sample draw", caps);
    bind.read("logits", Role::Input(0), "f32", logits)?;
    if tokens {
        bind.read("tokens", Role::Input(1), "u32", logits)?;
    }
    bind.write("states", Role::Output(1), "u32", states)?;
    bind.read("keys", Role::Scratch(0), "vec2<u32>", keys)?;
    bind.write("bins", Role::Scratch(1), "u32", bins)?;
    bind.write("out", Role::Output(0), "u32", u64::from(m) * 4)?;
    bind.write("fault", Role::Output(2), fault::ELEMENT, fault::FAULT_BYTES)?;
    let fitting = (caps.workgroup_memory.saturating_sub(64) / DRAW_BYTES).max(1);
    let threads = threads(1 << fitting.min(BINS).ilog2(), caps);
    let values = values![threads, tokens, bins: BINS, own: BINS / threads, unroll: 8u32];
    bind.launch(&mut list, "sample/draw.wgsl", &values, vec![n, m, parts], m.into())?;
    Ok(list)
}

fn word(count: u64) -> Result<u32, KernelError> {
    u32::try_from(count).map_err(|_| invalid(OP, "more than 2^32 parts of rows"))
}
