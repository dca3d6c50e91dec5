//! Layers with a recurrent state: causal convolution, the gated delta rule, sigmoid gates.

use fulmen_core::{DeltaHeads, KeyHeadOrder};

use super::{
    KernelError, LaunchList, Role,
    bind::KernelBindings,
    fault,
    launch_list::{product, threads},
    preprocess::values,
};
use crate::kernel::Caps;

/// The rows of a step and the slots of their states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateRows {
    /// Rows.
    pub m: u32,
    /// Slots of the state.
    pub n_seqs: u32,
    /// Rows have sequence numbers; otherwise all are of sequence 0.
    pub sequences: bool,
}

impl StateRows {
    /// Binds positions, sequence numbers and the record of faults.
    fn bind(self, bind: &mut KernelBindings<'_>) -> Result<(), KernelError> {
        let rows = u64::from(self.m) * 4;
        bind.read("positions", Role::Input(1), "u32", rows)?;
        if self.sequences {
            bind.read("sequences", Role::Input(2), "u32", rows)?;
        }
        bind.write("fault", Role::Output(2), fault::ELEMENT, fault::FAULT_BYTES)
    }

    /// Rows that may be the first of a sequence.
    fn starts(self) -> u64 {
        if self.sequences { self.m.into() } else { 1 }
    }
}

/// Causal convolution of `channels` channels over `taps` inputs, then SiLU.
///
/// Input 0 is `[m, channels]`, 1 the `m` positions, 2 (if any) the `m` sequence numbers, 3 the weight,
/// `[channels, taps]`. Output 0 is as input 0, 1 the state, `[n_seqs, taps - 1, channels]`, 2 the [record of
/// faults](super::fault).
///
/// # Errors
/// [`KernelError`] where something is larger than a binding.
pub fn causal_conv(
    rows: StateRows,
    channels: u32,
    taps: u32,
    caps: &Caps,
) -> Result<LaunchList, KernelError> {
    const OP: &str = "causal_conv";
    let (mut list, StateRows { m, n_seqs, sequences }) = (LaunchList::default(), rows);
    if m == 0 || channels == 0 {
        return Ok(list);
    }
    let bytes = product(OP, "the input", &[m.into(), channels.into(), 4])?;
    let state = product(OP, "the state", &[n_seqs.into(), (taps - 1).into(), channels.into(), 4])?;
    let mut bind = KernelBindings::new(OP, caps);
    bind.read("x", Role::Input(0), "f32", bytes)?;
    bind.read("weight", Role::Input(3), "f32", u64::from(channels) * u64::from(taps) * 4)?;
    rows.bind(&mut bind)?;
    bind.write("y", Role::Output(0), "f32", bytes)?;
    bind.write("state", Role::Output(1), "f32", state)?;
    let threads = threads(64, caps);
    let groups = rows.starts() * u64::from(channels.div_ceil(threads));
    let values = values![sequences, threads, taps];
    bind.launch(&mut list, "recurrent/causal_conv.wgsl", &values, vec![m, n_seqs, channels], groups)?;
    Ok(list)
}

/// The gated delta rule: see [`GatedDeltaRuleCall`](fulmen_core::GatedDeltaRuleCall). Two launches: the gates
/// of all rows, so that no launch binds more than eight buffers, and the rule.
///
/// Input 0 is `[m, width]`, 1 the `m` positions, 2 (if any) the `m` sequence numbers, 3 alpha and 4 beta,
/// `[m, n_v_heads]`, 5 the decay, 6 dt. Output 0 is `[m, n_v_heads · head_dim]`, 1 the state, 2 the [record
/// of faults](super::fault).
///
/// # Errors
/// [`KernelError`] where something is larger than a binding.
pub fn gated_delta_rule(
    rows: StateRows,
    heads: DeltaHeads,
    epsilon: f32,
    caps: &Caps,
) -> Result<LaunchList, KernelError> {
    const OP: &str = "gated_delta_rule";
    let (mut list, StateRows { m, n_seqs, sequences }) = (LaunchList::default(), rows);
    if m == 0 {
        return Ok(list);
    }
    let (n_v_heads, head_dim) = (heads.n_v_heads, heads.head_dim);
    let pairs = product(OP, "alpha", &[m.into(), n_v_heads.into(), 4])?;
    let vector = u64::from(n_v_heads) * 4;
    let mut bind = KernelBindings::new("delta_gates", caps);
    bind.read("alpha", Role::Input(3), "f32", pairs)?;
    bind.read("beta", Role::Input(4), "f32", pairs)?;
    bind.read("decay", Role::Input(5), "f32", vector)?;
    bind.read("dt", Role::Input(6), "f32", vector)?;
    bind.write("gates", Role::Scratch(0), "vec2<f32>", 2 * pairs)?;
    list.scratch = vec![2 * pairs];
    let threads = threads(64, caps);
    let groups = (pairs / 4).div_ceil(threads.into());
    let gates = values![threads];
    bind.launch(&mut list, "recurrent/delta_gates.wgsl", &gates, vec![m, n_v_heads], groups)?;

    let input = product(OP, "the input", &[m.into(), heads.width().into(), 4])?;
    let output = product(OP, "the output", &[m.into(), heads.value_width().into(), 4])?;
    let state = product(OP, "the state", &[n_seqs.into(), heads.state_width().into(), 4])?;
    let mut bind = KernelBindings::new(OP, caps);
    bind.read("x", Role::Input(0), "f32", input)?;
    bind.read("gates", Role::Scratch(0), "vec2<f32>", 2 * pairs)?;
    rows.bind(&mut bind)?;
    bind.write("y", Role::Output(0), "f32", output)?;
    bind.write("state", Role::Output(1), "f32", state)?;
    // Workgroup memory for the largest head of a power of two, at most 8 KiB for the state.
    let head = head_dim.next_power_of_two().max(4);
    let columns = if head > 128 { 8u32 } else { 16 };
    let blocks = head_dim.div_ceil(columns);
    let groups = rows.starts() * u64::from(n_v_heads) * u64::from(blocks);
    let tiled = heads.order == KeyHeadOrder::Tiled;
    let values = values![sequences, columns, head, tiled];
    let params = vec![m, n_seqs, heads.n_k_heads, n_v_heads, head_dim, epsilon.to_bits()];
    bind.launch(&mut list, "recurrent/gated_delta_rule.wgsl", &values, params, groups)?;
    Ok(list)
}

/// `x · sigmoid(gate)` of `m` rows of `n` elements with `gates` gates each.
///
/// Input 0 is `[m, n]` (not bound in place), 1 the gates, `[m, gates]`; output 0 is as input 0.
///
/// # Errors
/// [`KernelError`] where something is larger than a binding.
pub fn sigmoid_gate(
    m: u32,
    n: u32,
    gates: u32,
    in_place: bool,
    caps: &Caps,
) -> Result<LaunchList, KernelError> {
    const OP: &str = "sigmoid_gate";
    let mut list = LaunchList::default();
    let bytes = product(OP, "the input", &[m.into(), n.into(), 4])?;
    if bytes == 0 {
        return Ok(list);
    }
    let mut bind = KernelBindings::new(OP, caps);
    if !in_place {
        bind.read("x", Role::Input(0), "f32", bytes)?;
    }
    bind.read("gate", Role::Input(1), "f32", product(OP, "the gate", &[m.into(), gates.into(), 4])?)?;
    bind.write("y", Role::Output(0), "f32", bytes)?;
    let (threads, elements) = (threads(64, caps), bytes / 4);
    // A binding has less than 2^32 bytes.
    let params = vec![elements as u32, n / gates];
    let groups = elements.div_ceil(threads.into());
    bind.launch(&mut list, "recurrent/sigmoid_gate.wgsl", &values![threads, in_place], params, groups)?;
    Ok(list)
}
