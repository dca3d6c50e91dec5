//! Rotary position embedding.

mod sin_cos;

pub(super) use sin_cos::{check, sin_cos_values};

use fulmen_core::{RopePairing, RopeSpec};

use super::{
    KernelError, LaunchList, Role,
    bind::{KernelBindings, invalid},
    launch_list::{product, threads},
    preprocess::values,
};
use crate::kernel::Caps;

const OP: &str = "rope";

/// Heads to rotate.
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

/// Rotates the heads of each row by the row's position.
///
/// Input 0 is `[m, n_heads, head_dim]`, input 1 the `m` positions, input 2 (if any) the `n_rot / 2` frequency
/// factors; output 0 is as input 0 and may be its memory.
///
/// # Errors
/// [`KernelError`] where the rotation does not fit the head, or something is larger than a binding.
pub fn rope(spec: &Rope, caps: &Caps) -> Result<LaunchList, KernelError> {
    let Rope { m, n_heads, head_dim, ref rope, factors } = *spec;
    check(OP, rope, head_dim)?;
    let elements = product(OP, "the rows", &[m.into(), n_heads.into(), head_dim.into(), 4])?;
    let mut list = LaunchList::default();
    if elements == 0 {
        return Ok(list);
    }
    let pairs = rope.n_rot / 2;
    let mut bind = KernelBindings::new(OP, caps);
    bind.read("x", Role::Input(0), "f32", elements)?;
    bind.read("positions", Role::Input(1), "u32", u64::from(m) * 4)?;
    if factors && pairs > 0 {
        bind.read("factors", Role::Input(2), "f32", u64::from(pairs) * 4)?;
    }
    bind.write("out", Role::Output(0), "f32", elements)?;
    let threads = threads(128, caps);
    let items = head_dim - pairs;
    // No more than the elements, which a binding holds.
    let count = u64::from(m) * u64::from(n_heads) * u64::from(items);
    let count_word = u32::try_from(count).map_err(|_| invalid(OP, "more than 2^32 pairs"))?;
    let mut values = sin_cos_values(rope, factors).to_vec();
    let neox = rope.pairing == RopePairing::NeoX;
    values.extend(values![threads, items, head_dim, n_heads, neox]);
    let groups = count.div_ceil(threads.into());
    bind.launch(&mut list, "rope/rope.wgsl", &values, vec![count_word], groups)?;
    Ok(list)
}
