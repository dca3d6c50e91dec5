//! Log-probabilities of a token of each row and of the row's most likely tokens.
//!
//! Two launches: each part of a row gives the sum of its weights and its most likely tokens, and one
//! workgroup per row merges them.

use super::{
    KernelError, LaunchList, Role,
    bind::{KernelBindings, invalid},
    launch_list::{product, threads},
    preprocess::values,
};
use crate::kernel::Caps;

const OP: &str = "log_probs";

/// Logits per workgroup of the first launch.
const PART: u32 = 1024;

/// Log-probabilities of `m` rows of `n` logits, as
/// [`fulmen_core::sampling`](fulmen_core::sampling#log-probabilities) defines them.
///
/// Input 0 is the logits, `[m, n]`, input 1 the `m` tokens; output 0 the values, `[m, 1 + top]`, output 1 the
/// tokens of the values.
///
/// # Errors
/// [`KernelError`] where something is larger than a binding, or rows have no logits.
pub fn log_probs(m: u32, n: u32, top: u32, caps: &Caps) -> Result<LaunchList, KernelError> {
    let mut list = LaunchList::default();
    if m == 0 {
        return Ok(list);
    }
    if n == 0 {
        return Err(invalid(OP, "rows without logits"));
    }
    let logits = product(OP, "the logits", &[m.into(), n.into(), 4])?;
    let (parts, listed) = (n.div_ceil(PART), top.max(1));
    let groups = u64::from(m) * u64::from(parts);
    let best = product(OP, "the most likely tokens of parts", &[groups, listed.into(), 8])?;
    let results = product(OP, "the values", &[m.into(), u64::from(top) + 1, 4])?;
    list.scratch = vec![best, groups * 4];
    let threads = threads(256, caps);
    let values = values![threads];

    let mut bind = KernelBindings::new("log_probs parts", caps);
    bind.read("x", Role::Input(0), "f32", logits)?;
    bind.write("best", Role::Scratch(0), "vec2<u32>", best)?;
    bind.write("sums", Role::Scratch(1), "f32", groups * 4)?;
    let count = u32::try_from(groups).map_err(|_| invalid(OP, "more than 2^32 parts of rows"))?;
    let params = vec![n, PART, parts, count, listed];
    bind.launch(&mut list, "log_probs/parts.wgsl", &values, params, groups)?;

    let mut bind = KernelBindings::new("log_probs rows", caps);
    bind.read("logits", Role::Input(0), "f32", logits)?;
    bind.read("tokens", Role::Input(1), "u32", u64::from(m) * 4)?;
    bind.read("best", Role::Scratch(0), "vec2<u32>", best)?;
    bind.read("sums", Role::Scratch(1), "f32", groups * 4)?;
    bind.write("values", Role::Output(0), "u32", results)?;
    bind.write("indices", Role::Output(1), "u32", results)?;
    bind.launch(&mut list, "log_probs/rows.wgsl", &values, vec![n, parts, m, listed, top], m.into())?;
    Ok(list)
}
