//! Gathers the tokens of rows from the history.

use super::{
    KernelError, LaunchList, Role,
    bind::{KernelBindings, invalid},
    fault,
    launch_list::{product, threads},
    preprocess::values,
};
use crate::kernel::Caps;

const OP: &str = "gather_tokens";

/// The rows of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GatherTokens {
    /// Rows.
    pub m: u32,
    /// Sequences of the history.
    pub n_seqs: u32,
    /// Positions of each.
    pub capacity: u32,
    /// Rows have sequence numbers; otherwise all are of sequence 0.
    pub sequences: bool,
}

/// The token of each row, at its position of its sequence in the history; `NO_TOKEN` becomes 0 there.
///
/// Input 0 is the `m` positions, input 1 (if any) the `m` sequence numbers. Output 0 is the `m` tokens, 1 the
/// history, `[n_seqs][capacity]`, 2 the [record of faults](super::fault).
///
/// # Errors
/// [`KernelError`] where the history is larger than a binding or has no positions.
pub fn gather_tokens(spec: &GatherTokens, caps: &Caps) -> Result<LaunchList, KernelError> {
    let GatherTokens { m, n_seqs, capacity, sequences } = *spec;
    let mut list = LaunchList::default();
    if m == 0 {
        return Ok(list);
    }
    if capacity == 0 {
        return Err(invalid(OP, "a history without positions"));
    }
    let rows = u64::from(m) * 4;
    let mut bind = KernelBindings::new(OP, caps);
    bind.read("positions", Role::Input(0), "u32", rows)?;
    if sequences {
        bind.read("sequences", Role::Input(1), "u32", rows)?;
    }
    bind.write("tokens", Role::Output(0), "u32", rows)?;
    let history = product(OP, "the history", &[n_seqs.into(), capacity.into(), 4])?;
    bind.write("history", Role::Output(1), "u32", history)?;
    bind.write("fault", Role::Output(2), fault::ELEMENT, fault::FAULT_BYTES)?;
    let threads = threads(64, caps);
    bind.launch(
        &mut list,
        "gather_tokens.wgsl",
        &values![sequences, threads],
        vec![m, n_seqs, capacity],
        u64::from(m.div_ceil(threads)),
    )?;
    Ok(list)
}
