//! Rotary position embedding.

mod turn;

pub(super) use turn::{check, first_and_second, turn_text};

use fulmen_core::RopeSpec;

use super::{
    KernelError, Plan, Role,
    bind::{Bind, invalid},
    plan::{product, threads},
};
use crate::kernel::Caps;

const OP: &str = "rope";

/// Heads to turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Rows.
    pub m: u32,
    /// Heads in a row.
    pub n_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// The rotation.
    pub rope: RopeSpec,
    /// There are frequency factors.
    pub factors: bool,
}

/// Turns the heads of each row by the row's position.
///
/// Input 0 is `[m, n_heads, head_dim]`, input 1 the `m` positions, input 2 (if any) the `n_rot / 2` frequency
/// factors; output 0 is as input 0 and may be its memory.
///
/// # Errors
/// [`KernelError`] where the rotation does not fit the head, or something is larger than a binding.
pub fn rope(spec: &Rope, caps: &Caps) -> Result<Plan, KernelError> {
    let Rope { m, n_heads, head_dim, ref rope, factors } = *spec;
    check(OP, rope, head_dim)?;
    let elements = product(OP, "the rows", &[m.into(), n_heads.into(), head_dim.into(), 4])?;
    let mut plan = Plan::default();
    if elements == 0 {
        return Ok(plan);
    }
    let pairs = rope.n_rot / 2;
    let mut bind = Bind::new(OP, caps);
    bind.read("x", Role::Input(0), "f32", elements)?;
    bind.read("positions", Role::Input(1), "u32", u64::from(m) * 4)?;
    if factors && pairs > 0 {
        bind.read("factors", Role::Input(2), "f32", u64::from(pairs) * 4)?;
    }
    bind.write("out", Role::Output(0), "f32", elements)?;
    let (first, second) = first_and_second(rope, "item");
    let threads = threads(128, caps);
    let items = head_dim - pairs;
    // No more than the elements, which a binding holds.
    let count = u64::from(m) * u64::from(n_heads) * u64::from(items);
    let count_word = u32::try_from(count).map_err(|_| invalid(OP, "more than 2^32 pairs"))?;
    bind.launch(
        &mut plan,
        include_str!("rope.wgsl"),
        &[
            ("turn", &turn_text(rope, factors)),
            ("threads", &threads.to_string()),
            ("items", &items.to_string()),
            ("pairs", &pairs.to_string()),
            ("head_dim", &head_dim.to_string()),
            ("n_heads", &n_heads.to_string()),
            ("first", &first),
            ("second", &second),
        ],
        vec![count_word],
        count.div_ceil(threads.into()),
    )?;
    Ok(plan)
}
