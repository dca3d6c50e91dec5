//! Logit biases and token masks on logits.

use super::{
    KernelError, LaunchList, Role,
    bind::{KernelBindings, invalid},
    copy::copy_to_edit,
    fault,
    launch_list::{product, threads},
    preprocess::values,
};
use crate::kernel::Caps;

const OP: &str = "mask_logits";

/// Logits per workgroup.
const PART: u32 = 4096;

/// Rows of logits and the sampling slots that edit them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaskLogits {
    /// Rows.
    pub m: u32,
    /// Logits of a row.
    pub n: u32,
    /// Sampling slots.
    pub n_slots: u32,
    /// Room for biases in each.
    pub capacity: u32,
    /// Rows have slot numbers; otherwise row `r` has slot `r`.
    pub slots: bool,
    /// The output is the memory of the logits, so they need not be copied.
    pub in_place: bool,
}

/// Applies [`LogitEdits`](fulmen_core::sampling::LogitEdits) to the logits.
///
/// Input 0 is the logits, `[m, n]`; 1 the edits, `[n_slots, 2 + 2 · capacity]` words, 2 the masks, `[n_slots,
/// ⌈n / 32⌉]` words, 3 (if any) the `m` slots. Output 0 is as input 0, output 1 the [record of
/// faults](super::fault). What is reported changes no logit.
///
/// # Errors
/// [`KernelError`] where something is larger than a binding.
pub fn mask_logits(spec: &MaskLogits, caps: &Caps) -> Result<LaunchList, KernelError> {
    let MaskLogits { m, n, n_slots, capacity, slots, in_place } = *spec;
    let bytes = product(OP, "the logits", &[m.into(), n.into(), 4])?;
    if bytes == 0 {
        return Ok(LaunchList::default());
    }
    let mut list = copy_to_edit(bytes / 4, in_place, caps)?;
    let mask_words = n.div_ceil(32);
    let edit_words = 2 + 2 * u64::from(capacity);
    let mut bind = KernelBindings::new(OP, caps);
    let edits = product(OP, "the logit edits", &[n_slots.into(), edit_words, 4])?;
    bind.read("edits", Role::Input(1), "u32", edits)?;
    let masks = product(OP, "the token masks", &[n_slots.into(), mask_words.into(), 4])?;
    bind.read("masks", Role::Input(2), "u32", masks)?;
    if slots {
        bind.read("slots", Role::Input(3), "u32", u64::from(m) * 4)?;
    }
    bind.write("out", Role::Output(0), "u32", bytes)?;
    bind.write("fault", Role::Output(1), fault::ELEMENT, fault::FAULT_BYTES)?;
    let threads = threads(256, caps);
    let parts = n.div_ceil(PART);
    let groups = u64::from(m) * u64::from(parts);
    let groups = u32::try_from(groups).map_err(|_| invalid(OP, "more than 2^32 parts of rows"))?;
    let params = vec![n, PART, parts, groups, n_slots, capacity, mask_words];
    bind.launch(&mut list, "mask_logits.wgsl", &values![slots, threads], params, groups.into())?;
    Ok(list)
}
