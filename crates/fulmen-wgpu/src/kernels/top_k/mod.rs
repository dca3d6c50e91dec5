//! The largest values of each row, and their columns.
//!
//! Two launches: each part of a row gives its largest values in order, and one workgroup per row merges them.

use super::{
    KernelError, LaunchList, Role,
    bind::{KernelBindings, invalid},
    launch_list::{product, threads},
    preprocess::values,
};
use crate::kernel::Caps;

const OP: &str = "top_k";

/// The fewest values per workgroup of the first launch.
const PART: u32 = 1024;

/// The `k` largest of each of `m` rows of `n` values in descending order, as
/// [`TopKCall`](fulmen_core::TopKCall) defines them.
///
/// Input 0 is the rows, `[m, n]`; output 0 the values, `[m, k]`, output 1 their columns plus `first`.
///
/// # Errors
/// [`KernelError`] where something is larger than a binding, or rows are empty.
pub fn top_k(m: u32, n: u32, k: u32, first: u32, caps: &Caps) -> Result<LaunchList, KernelError> {
    let mut list = LaunchList::default();
    if m == 0 || k == 0 {
        return Ok(list);
    }
    if n == 0 {
        return Err(invalid(OP, "rows without values"));
    }
    let threads = threads(256, caps);
    // One list for each thread of the second launch at most.
    let part = PART.max(n.div_ceil(threads));
    let parts = n.div_ceil(part);
    let groups = u64::from(m) * u64::from(parts);
    let count = u32::try_from(groups).map_err(|_| invalid(OP, "more than 2^32 parts of rows"))?;
    let rows = product(OP, "the rows", &[m.into(), n.into(), 4])?;
    let best = product(OP, "the largest values of parts", &[groups, k.into(), 8])?;
    let results = product(OP, "the values", &[m.into(), k.into(), 4])?;
    list.scratch = vec![best];
    let values = values![threads];

    let mut bind = KernelBindings::new("top_k parts", caps);
    bind.read("x", Role::Input(0), "f32", rows)?;
    bind.write("best", Role::Scratch(0), "vec2<u32>", best)?;
    bind.launch(&mut list, "top_k/parts.wgsl", &values, vec![n, part, parts, count, k], groups)?;

    let mut bind = KernelBindings::new("top_k rows", caps);
    bind.read("best", Role::Scratch(0), "vec2<u32>", best)?;
    bind.write("values", Role::Output(0), "u32", results)?;
    bind.write("indices", Role::Output(1), "u32", results)?;
    bind.launch(&mut list, "top_k/rows.wgsl", &values, vec![parts, m, k, first], m.into())?;
    Ok(list)
}
