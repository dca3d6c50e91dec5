//! The index of each row's largest element.

use super::{
    KernelError, Plan, Role,
    bind::{Bind, invalid},
    plan::{product, threads},
    template::expand,
};
use crate::kernel::Caps;

const OP: &str = "argmax";

/// Elements that are worth a workgroup.
const PART: u32 = 1024;

/// The most parts of a row.
pub(super) const MOST_PARTS: u32 = 256;

/// The index of the largest of the `n` elements of each of `m` rows: the lowest among equals. NaN and -inf never win; a
/// row of nothing else gives 0.
///
/// Input 0 is `[m, n]` in f32, output 0 the `m` indices.
///
/// # Errors
/// [`KernelError`] where something is larger than a binding, or rows have no elements.
pub fn argmax(m: u32, n: u32, caps: &Caps) -> Result<Plan, KernelError> {
    let mut plan = Plan::default();
    if m == 0 {
        return Ok(plan);
    }
    if n == 0 {
        return Err(invalid(OP, "rows without elements"));
    }
    let parts = largest_of_parts(m, n, &mut plan, caps)?;
    if parts > 1 {
        let mut bind = Bind::new("argmax of parts", caps);
        bind.read("x", Role::Scratch(0), "vec2<u32>", u64::from(m) * u64::from(parts) * 8)?;
        bind.write("out", Role::Output(0), "u32", u64::from(m) * 4)?;
        let element = "x[row * params.n + i]";
        launch(bind, &mut plan, &Rows { m, n: parts, part: parts, parts: 1 }, 64, [element, INDEX], caps)?;
    }
    Ok(plan)
}

struct Rows {
    m: u32,
    n: u32,
    part: u32,
    parts: u32,
}

const ELEMENT: &str = "key_of(x[row * params.n + i], i)";
const INDEX: &str = "out[number] = select(best.y, 0u, best.x == 0u);";

/// The largest of each part of a row, as keys in scratch 0, or, where rows have one part, its index in output 0. Gives
/// the number of parts.
fn largest_of_parts(m: u32, n: u32, plan: &mut Plan, caps: &Caps) -> Result<u32, KernelError> {
    let parts = n.div_ceil(PART).min(MOST_PARTS);
    let bytes = product(OP, "the rows", &[m.into(), n.into(), 4])?;
    let mut bind = Bind::new(OP, caps);
    bind.read("x", Role::Input(0), "f32", bytes)?;
    let store = if parts > 1 {
        let keys = u64::from(m) * u64::from(parts) * 8;
        bind.write("out", Role::Scratch(0), "vec2<u32>", keys)?;
        plan.scratch.push(keys);
        "out[number] = best;"
    } else {
        bind.write("out", Role::Output(0), "u32", u64::from(m) * 4)?;
        INDEX
    };
    let rows = Rows { m, n, part: n.div_ceil(parts), parts };
    launch(bind, plan, &rows, 256, [ELEMENT, store], caps)?;
    Ok(parts)
}

fn launch(
    bind: Bind<'_>,
    plan: &mut Plan,
    rows: &Rows,
    wanted: u32,
    [element, store]: [&str; 2],
    caps: &Caps,
) -> Result<(), KernelError> {
    let Rows { m, n, part, parts } = *rows;
    let threads = threads(wanted, caps).to_string();
    let groups = u64::from(m) * u64::from(parts);
    let groups_word = u32::try_from(groups).map_err(|_| invalid(OP, "more than 2^32 parts of rows"))?;
    bind.launch(
        plan,
        include_str!("argmax.wgsl"),
        &[("functions", &functions(&threads)), ("element", element), ("store", store), ("threads", &threads)],
        vec![n, part, parts, groups_word],
        groups,
    )
}

/// `key_of`, `larger` and `largest_of_all`.
pub(super) fn functions(threads: &str) -> String {
    let text = concat!(include_str!("key.wgsl"), include_str!("largest.wgsl"));
    expand(text, &[("threads", threads)])
}
