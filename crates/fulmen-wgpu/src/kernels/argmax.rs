//! Argmax: the index of the largest element of each row.

use super::{
    KernelError, LaunchList, Role,
    bind::{KernelBindings, invalid},
    launch_list::{product, threads},
    preprocess::values,
};
use crate::kernel::Caps;

const OP: &str = "argmax";

/// The fewest elements that are worth a workgroup.
const PART: u32 = 1024;

/// The most parts per row.
pub(super) const MAX_PARTS: u32 = 256;

/// The index of the largest of the `n` elements of each of `m` rows; of equal elements the lowest
/// index. NaN and -inf never win; a row of nothing else gives 0.
///
/// Input 0 is `[m, n]` in f32, output 0 the `m` indices.
///
/// # Errors
/// [`KernelError`] where something is larger than a binding, or rows have no elements.
pub fn argmax(m: u32, n: u32, caps: &Caps) -> Result<LaunchList, KernelError> {
    let mut list = LaunchList::default();
    if m == 0 {
        return Ok(list);
    }
    if n == 0 {
        return Err(invalid(OP, "rows without elements"));
    }
    let parts = launch_parts(m, n, &mut list, caps)?;
    if parts > 1 {
        let mut bind = KernelBindings::new("argmax of parts", caps);
        bind.read("x", Role::Scratch(0), "vec2<u32>", u64::from(m) * u64::from(parts) * 8)?;
        bind.write("out", Role::Output(0), "u32", u64::from(m) * 4)?;
        let rows = RowParts { m, n: parts, part: parts, parts: 1 };
        launch(bind, &mut list, &rows, true, threads(64, caps))?;
    }
    Ok(list)
}

/// How rows are divided among workgroups.
struct RowParts {
    m: u32,
    /// Elements per row.
    n: u32,
    /// Elements per part.
    part: u32,
    /// Parts per row.
    parts: u32,
}

/// The first launch: the largest element of each part of a row, as keys in scratch 0, or, where rows
/// have one part, its index in output 0. Returns the number of parts.
fn launch_parts(m: u32, n: u32, list: &mut LaunchList, caps: &Caps) -> Result<u32, KernelError> {
    let parts = n.div_ceil(PART).min(MAX_PARTS);
    let bytes = product(OP, "the rows", &[m.into(), n.into(), 4])?;
    let mut bind = KernelBindings::new(OP, caps);
    bind.read("x", Role::Input(0), "f32", bytes)?;
    if parts > 1 {
        let keys = u64::from(m) * u64::from(parts) * 8;
        bind.write("out", Role::Scratch(0), "vec2<u32>", keys)?;
        list.scratch.push(keys);
    } else {
        bind.write("out", Role::Output(0), "u32", u64::from(m) * 4)?;
    }
    let rows = RowParts { m, n, part: n.div_ceil(parts), parts };
    launch(bind, list, &rows, false, threads(256, caps))?;
    Ok(parts)
}

fn launch(
    bind: KernelBindings<'_>,
    list: &mut LaunchList,
    rows: &RowParts,
    of_keys: bool,
    threads: u32,
) -> Result<(), KernelError> {
    let RowParts { m, n, part, parts } = *rows;
    let groups = u64::from(m) * u64::from(parts);
    let groups_word = u32::try_from(groups).map_err(|_| invalid(OP, "more than 2^32 parts of rows"))?;
    let values = values![threads, of_keys, to_keys: parts > 1];
    bind.launch(list, "argmax.wgsl", &values, vec![n, part, parts, groups_word], groups)
}
