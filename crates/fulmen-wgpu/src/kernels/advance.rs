//! Advances tokens, positions and history to the next decode step.

use super::{
    KernelError, LaunchList, Role,
    bind::{KernelBindings, invalid},
    fault,
    launch_list::{product, threads},
    preprocess::values,
};
use crate::kernel::Caps;

const OP: &str = "advance";

/// The rows of a decode step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Advance {
    /// Rows.
    pub m: u32,
    /// Sequences of the history.
    pub n_seqs: u32,
    /// Positions of each.
    pub capacity: u32,
    /// Rows have sequence numbers; otherwise all are of sequence 0.
    pub sequences: bool,
}

/// The sampled tokens become the input of the next decode step: positions go up by one, but stay below
/// the capacity, and each token is added to the history at its new position.
///
/// Input 0 is the `m` sampled tokens, input 1 (if any) the `m` sequence numbers, no two the same.
/// Output 0 is the `m` tokens that the next decode step reads, 1 the `m` positions, 2 the history,
/// `[n_seqs][capacity]`, 3 the [record of faults](super::fault).
///
/// # Errors
/// [`KernelError`] where the history is larger than a binding or has no positions.
pub fn advance(spec: &Advance, caps: &Caps) -> Result<LaunchList, KernelError> {
    let Advance { m, n_seqs, capacity, sequences } = *spec;
    let mut list = LaunchList::default();
    if m == 0 {
        return Ok(list);
    }
    if capacity == 0 {
        return Err(invalid(OP, "a history without positions"));
    }
    let rows = u64::from(m) * 4;
    let mut bind = KernelBindings::new(OP, caps);
    bind.read("drawn", Role::Input(0), "u32", rows)?;
    if sequences {
        bind.read("sequences", Role::Input(1), "u32", rows)?;
    }
    bind.write("tokens", Role::Output(0), "u32", rows)?;
    bind.write("positions", Role::Output(1), "u32", rows)?;
    let history = product(OP, "the history", &[n_seqs.into(), capacity.into(), 4])?;
    bind.write("history", Role::Output(2), "u32", history)?;
    bind.write("fault", Role::Output(3), fault::ELEMENT, fault::FAULT_BYTES)?;
    let threads = threads(64, caps);
    bind.launch(
        &mut list,
        "advance.wgsl",
        &values![sequences, threads],
        vec![m, n_seqs, capacity],
        u64::from(m.div_ceil(threads)),
    )?;
    Ok(list)
}
