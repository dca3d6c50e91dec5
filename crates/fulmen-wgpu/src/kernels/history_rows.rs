//! Steps between the rows of a decode step and the token history of their sequences.

use super::{
    KernelError, LaunchList, Role,
    bind::{KernelBindings, invalid},
    fault,
    launch_list::{product, threads},
    preprocess::values,
};
use crate::kernel::Caps;

/// The rows of a step, and the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HistoryRows {
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
pub fn advance(spec: &HistoryRows, caps: &Caps) -> Result<LaunchList, KernelError> {
    launch("advance", "advance.wgsl", spec, "drawn", &["tokens", "positions"], caps)
}

/// The token of each row, at its position of its sequence in the history; `NO_TOKEN` becomes 0 there.
///
/// Input 0 is the `m` positions, input 1 (if any) the `m` sequence numbers. Output 0 is the `m` tokens, 1 the
/// history, `[n_seqs][capacity]`, 2 the [record of faults](super::fault).
///
/// # Errors
/// [`KernelError`] where the history is larger than a binding or has no positions.
pub fn gather_tokens(spec: &HistoryRows, caps: &Caps) -> Result<LaunchList, KernelError> {
    launch("gather_tokens", "gather_tokens.wgsl", spec, "positions", &["tokens"], caps)
}

/// A kernel that reads one word per row and writes those named by `outputs`, then the history.
fn launch(
    op: &'static str,
    file: &'static str,
    spec: &HistoryRows,
    input: &'static str,
    outputs: &[&'static str],
    caps: &Caps,
) -> Result<LaunchList, KernelError> {
    let HistoryRows { m, n_seqs, capacity, sequences } = *spec;
    let mut list = LaunchList::default();
    if m == 0 {
        return Ok(list);
    }
    if capacity == 0 {
        return Err(invalid(op, "a history without positions"));
    }
    let rows = u64::from(m) * 4;
    let mut bind = KernelBindings::new(op, caps);
    bind.read(input, Role::Input(0), "u32", rows)?;
    if sequences {
        bind.read("sequences", Role::Input(1), "u32", rows)?;
    }
    for (i, output) in outputs.iter().enumerate() {
        bind.write(output, Role::Output(i), "u32", rows)?;
    }
    let history = product(op, "the history", &[n_seqs.into(), capacity.into(), 4])?;
    bind.write("history", Role::Output(outputs.len()), "u32", history)?;
    bind.write("fault", Role::Output(outputs.len() + 1), fault::ELEMENT, fault::FAULT_BYTES)?;
    let threads = threads(64, caps);
    let groups = u64::from(m.div_ceil(threads));
    bind.launch(&mut list, file, &values![sequences, threads], vec![m, n_seqs, capacity], groups)?;
    Ok(list)
}
