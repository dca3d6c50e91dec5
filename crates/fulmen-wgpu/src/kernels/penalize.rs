//! Repetition, frequency and presence penalties on logits.

use super::{
    KernelError, LaunchList, Role,
    bind::KernelBindings,
    copy::copy_to_edit,
    fault,
    launch_list::{product, threads},
    preprocess::values,
};
use crate::kernel::Caps;

const OP: &str = "penalize";

/// Rows of logits, and the token history they are penalized by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Penalize {
    /// Rows.
    pub m: u32,
    /// Logits of a row.
    pub n: u32,
    /// Sequences of the history.
    pub n_seqs: u32,
    /// Positions of each.
    pub capacity: u32,
    /// Rows have sequence numbers; otherwise all are of sequence 0.
    pub sequences: bool,
    /// The output is the memory of the logits, so they need not be copied.
    pub in_place: bool,
}

/// Applies [`Penalties`](fulmen_core::sampling::Penalties) to the logits.
///
/// Input 0 is the logits, `[m, n]`; 1 one `Penalties` for each row, 2 the history, `[n_seqs][capacity]`
/// tokens, 3 the `m` positions, 4 (if any) the `m` sequence numbers. Output 0 is as input 0, output 1
/// the [record of faults](super::fault). A row that is reported keeps its logits.
///
/// # Errors
/// [`KernelError`] where something is larger than a binding.
pub fn penalize(spec: &Penalize, caps: &Caps) -> Result<LaunchList, KernelError> {
    let Penalize { m, n, n_seqs, capacity, sequences, in_place } = *spec;
    let bytes = product(OP, "the logits", &[m.into(), n.into(), 4])?;
    if bytes == 0 {
        return Ok(LaunchList::default());
    }
    let mut list = copy_to_edit(bytes / 4, in_place, caps)?;
    let rows = u64::from(m) * 4;
    let mut bind = KernelBindings::new(OP, caps);
    bind.read("penalties", Role::Input(1), "vec4<u32>", rows * 4)?;
    let history = product(OP, "the history", &[n_seqs.into(), capacity.into(), 4])?;
    bind.read("history", Role::Input(2), "u32", history)?;
    bind.read("positions", Role::Input(3), "u32", rows)?;
    if sequences {
        bind.read("sequences", Role::Input(4), "u32", rows)?;
    }
    bind.write("out", Role::Output(0), "f32", bytes)?;
    bind.write("fault", Role::Output(1), fault::ELEMENT, fault::FAULT_BYTES)?;
    bind.write("counts", Role::Scratch(list.scratch.len()), "atomic<u32>", bytes)?;
    list.scratch.push(bytes);
    let threads = threads(256, caps);
    bind.launch(
        &mut list,
        "penalize.wgsl",
        &values![sequences, threads],
        vec![m, n, n_seqs, capacity],
        m.into(),
    )?;
    Ok(list)
}
