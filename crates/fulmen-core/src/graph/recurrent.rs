//! Layers with a recurrent state: causal convolution, the gated delta rule, and the gates around them.
//!
//! A recurrent state has one slot per sequence, whatever the length of the sequence. Each row of a step
//! carries a sequence number and a position. Rows of one sequence are processed in the order of the rows; a
//! row at position 0 starts from a state of zeros, and every other row continues from the state that the row
//! before it left. The states of sequences without rows are not touched. Inactive rows have no state
//! ([`NO_STATE`]); their output is 0.
//!
//! ```text
//!  state [n_seqs][…]     rows of a step: sequence:position
//!  ┌───────────┐
//!  │ seq 0     │◄──────► 0:17                     one decode row
//!  │ seq 1     │         (no rows: kept)
//!  │ seq 2     │◄──────► 2:0  2:1  2:2            a prompt: starts from zeros
//!  └───────────┘
//! ```

use super::call_check::{matrix, optional};
use super::checks::{Checked, at_least_1, epsilon, same};
use super::operands::{apart, area, f32_rows, optional_rows, output, span};
use super::{CacheUse, Work};
use crate::{BackendError, Extent, LookUp, Problem};

/// The most inputs that a causal convolution combines.
pub const MAX_CONV_TAPS: u32 = 8;

/// The largest head of the gated delta rule.
pub const MAX_DELTA_HEAD: u32 = 256;

/// The sequence number of an inactive row, which has no state.
pub const NO_STATE: u32 = u32::MAX;

/// A state with one slot per sequence, f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecurrentState {
    /// Address of the first slot.
    pub ptr: u64,
    /// Slots.
    pub n_seqs: u32,
}

/// Which key head a value head of the gated delta rule reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeyHeadOrder {
    /// Value head `h` reads key head `h / (n_v_heads / n_k_heads)`: neighbors share one.
    #[default]
    Grouped,
    /// Value head `h` reads key head `h % n_k_heads`.
    Tiled,
}

/// The heads of the gated delta rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeltaHeads {
    /// Heads of queries and of keys.
    pub n_k_heads: u32,
    /// Heads of values, a multiple of `n_k_heads`. Each has its own state.
    pub n_v_heads: u32,
    /// Elements of a head, at most [`MAX_DELTA_HEAD`].
    pub head_dim: u32,
    /// Which key head a value head reads.
    pub order: KeyHeadOrder,
}

impl DeltaHeads {
    /// Columns of a row of queries, or of keys.
    pub fn key_width(self) -> u32 {
        self.n_k_heads.saturating_mul(self.head_dim)
    }

    /// Columns of a row of values.
    pub fn value_width(self) -> u32 {
        self.n_v_heads.saturating_mul(self.head_dim)
    }

    /// Columns of a row of queries, keys and values.
    pub fn width(self) -> u32 {
        self.key_width().saturating_mul(2).saturating_add(self.value_width())
    }

    /// Values of a slot of the state: a square matrix for each value head.
    pub fn state_width(self) -> u32 {
        self.value_width().saturating_mul(self.head_dim)
    }

    /// The key head that a value head reads.
    pub fn key_head(self, value_head: u32) -> u32 {
        match self.order {
            KeyHeadOrder::Grouped => value_head / (self.n_v_heads / self.n_k_heads.max(1)).max(1),
            KeyHeadOrder::Tiled => value_head % self.n_k_heads.max(1),
        }
    }

    pub(crate) fn check(self) -> Checked<()> {
        at_least_1("the number of key heads", self.n_k_heads)?;
        at_least_1("the number of value heads", self.n_v_heads)?;
        if !self.n_v_heads.is_multiple_of(self.n_k_heads) {
            let (of, got) = (self.n_k_heads.into(), self.n_v_heads.into());
            return Err(Problem::Multiple { what: "the number of value heads", of, got });
        }
        let (what, expected) = ("the size of a head", "from 1 to 256");
        if !(1..=MAX_DELTA_HEAD).contains(&self.head_dim) {
            return Err(Problem::Value { what, expected, got: self.head_dim.into() });
        }
        let head = u64::from(self.head_dim);
        let state = u64::from(self.n_v_heads) * head * head;
        same("the values of a state in 32 bits", self.state_width(), state)?;
        let width = (2 * u64::from(self.n_k_heads) + u64::from(self.n_v_heads)) * head;
        same("the width of q, k and v in 32 bits", self.width(), width)
    }
}

/// A causal convolution combines 2 to [`MAX_CONV_TAPS`] inputs.
pub(crate) fn check_taps(taps: u32) -> Checked<()> {
    let (what, expected) = ("the taps of the convolution", "from 2 to 8");
    let valid = (2..=MAX_CONV_TAPS).contains(&taps);
    valid.then_some(()).ok_or(Problem::Value { what, expected, got: taps.into() })
}

/// The gates of a row divide it into equal parts.
pub(crate) fn check_gates(n: u32, gates: u32) -> Checked<()> {
    at_least_1("the width of the gate", gates)?;
    match n.is_multiple_of(gates) {
        true => Ok(()),
        false => Err(Problem::Multiple { what: "the width of the input", of: gates.into(), got: n.into() }),
    }
}

/// Depthwise causal convolution over the last `taps` inputs of each channel, then SiLU:
/// `output[t] = silu(Σ weight[j] · input[t - taps + 1 + j])`. Inputs before the sequence's start are 0; the
/// last `taps - 1` of them are the state.
#[derive(Clone, Debug, PartialEq)]
pub struct CausalConvCall {
    /// `[m, channels]`.
    pub input: u64,
    /// `[channels, taps]`; the last tap is that of the row itself.
    pub weight: u64,
    /// `[n_seqs, taps - 1, channels]`, the oldest input first.
    pub state: RecurrentState,
    /// `m` positions.
    pub positions: u64,
    /// `m` sequence numbers, or [`NO_STATE`]; all 0 if not given.
    pub sequences: Option<u64>,
    /// `[m, channels]`.
    pub output: u64,
    /// Rows.
    pub m: u32,
    /// Channels.
    pub channels: u32,
    /// Inputs that are combined.
    pub taps: u32,
    /// Whether hardly any two rows are of one sequence. Results do not depend on it; a backend may use it to
    /// choose kernels.
    pub decode: bool,
}

/// The gated delta rule, a linear attention with a matrix `S` as state. For each row and value head, with
/// `k` and `q` divided by their L2 norms (but at least by epsilon):
///
/// ```text
/// S ← exp(decay · softplus(alpha + dt)) · S
/// S ← S + k ⊗ (sigmoid(beta) · (v - k · S))
/// output = q · S / √head_dim
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct GatedDeltaRuleCall {
    /// `[m, width]`: the heads of q, of k and of v.
    pub input: u64,
    /// `[m, n_v_heads]`.
    pub alpha: u64,
    /// `[m, n_v_heads]`.
    pub beta: u64,
    /// `n_v_heads` rates of decay, usually negative.
    pub decay: u64,
    /// `n_v_heads` values that are added to `alpha`.
    pub dt: u64,
    /// `[n_seqs, n_v_heads, head_dim, head_dim]`: rows are elements of k, columns elements of v.
    pub state: RecurrentState,
    /// `m` positions.
    pub positions: u64,
    /// `m` sequence numbers, or [`NO_STATE`]; all 0 if not given.
    pub sequences: Option<u64>,
    /// `[m, n_v_heads · head_dim]`.
    pub output: u64,
    /// Rows.
    pub m: u32,
    /// Heads.
    pub heads: DeltaHeads,
    /// The smallest divisor of q and k.
    pub epsilon: f32,
    /// As in [`CausalConvCall::decode`].
    pub decode: bool,
    /// Whether a row has the same bits in any batch:
    /// [`PlanOptions::batch_invariant`](crate::PlanOptions::batch_invariant).
    pub batch_invariant: bool,
}

/// `output = input · sigmoid(gate)`, where each gate of a row covers `n / gates` neighboring elements. In
/// place of the input is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct SigmoidGateCall {
    /// `[m, n]`.
    pub input: u64,
    /// `[m, gates]`.
    pub gate: u64,
    /// `[m, n]`.
    pub output: u64,
    /// Rows.
    pub m: u32,
    /// Columns.
    pub n: u32,
    /// Gates of a row.
    pub gates: u32,
}

impl RecurrentState {
    fn check(&self) -> Checked<()> {
        at_least_1("the sequences of the state", self.n_seqs)?;
        matrix("the state", self.ptr, 1, 1)
    }

    fn look_up(&self, memory: &impl LookUp, width: usize) -> Result<Extent, BackendError> {
        span::<f32>(memory, "the state", self.ptr, (self.n_seqs as usize).saturating_mul(width), true)
    }
}

/// Positions and sequence numbers of the rows.
fn slots(
    memory: &impl LookUp,
    positions: u64,
    sequences: Option<u64>,
    m: u32,
) -> Result<[Option<Extent>; 2], BackendError> {
    let m = m as usize;
    let positions = span::<u32>(memory, "positions", positions, m, false)?;
    let sequences = sequences.map(|ptr| span::<u32>(memory, "sequences", ptr, m, false)).transpose()?;
    Ok([Some(positions), sequences])
}

impl CausalConvCall {
    /// Values of a slot of the state.
    pub fn state_width(&self) -> usize {
        area(self.taps.saturating_sub(1), self.channels)
    }

    pub(super) fn check(&self) -> Checked<()> {
        at_least_1("the channels", self.channels)?;
        check_taps(self.taps)?;
        matrix("the input", self.input, self.m, self.channels)?;
        matrix("the weight", self.weight, self.channels, self.taps)?;
        self.state.check()?;
        matrix("positions", self.positions, self.m, 1)?;
        optional("sequences", self.sequences, self.m)?;
        matrix("the output", self.output, self.m, self.channels)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0
    }

    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Result<(), BackendError> {
        let [positions, sequences] = slots(memory, self.positions, self.sequences, self.m)?;
        let reads = [
            Some(f32_rows(memory, "the input", self.input, self.m, self.channels)?),
            Some(f32_rows(memory, "the weight", self.weight, self.channels, self.taps)?),
            positions,
            sequences,
        ];
        let state = self.state.look_up(memory, self.state_width())?;
        let out = output(memory, "the output", self.output, self.m, self.channels)?;
        apart(&[state, out], &reads)?;
        state.apart_from(out)
    }

    /// The states of all rows are counted as if each were of another sequence.
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let elements = area(self.m, self.channels) as u64;
        let taps = u64::from(self.taps);
        let states = 2 * elements.min(area(self.state.n_seqs, self.channels) as u64) * (taps - 1);
        let weight = u64::from(self.channels) * taps;
        Work { flops: 2 * taps * elements, bytes: 4 * (2 * elements + states + weight) }
    }
}

impl GatedDeltaRuleCall {
    pub(super) fn check(&self) -> Checked<()> {
        self.heads.check()?;
        epsilon(self.epsilon)?;
        let (m, values) = (self.m, self.heads.n_v_heads);
        matrix("the input", self.input, m, 1)?;
        matrix("alpha", self.alpha, m, values)?;
        matrix("beta", self.beta, m, values)?;
        matrix("the decay", self.decay, values, 1)?;
        matrix("dt", self.dt, values, 1)?;
        self.state.check()?;
        matrix("positions", self.positions, m, 1)?;
        optional("sequences", self.sequences, m)?;
        matrix("the output", self.output, m, 1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0
    }

    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Result<(), BackendError> {
        let (m, heads, values) = (self.m, self.heads, self.heads.n_v_heads);
        let [positions, sequences] = slots(memory, self.positions, self.sequences, m)?;
        let reads = [
            Some(f32_rows(memory, "the input", self.input, m, heads.width())?),
            Some(f32_rows(memory, "alpha", self.alpha, m, values)?),
            Some(f32_rows(memory, "beta", self.beta, m, values)?),
            optional_rows(memory, "the decay", Some(self.decay), 1, values)?,
            optional_rows(memory, "dt", Some(self.dt), 1, values)?,
            positions,
            sequences,
        ];
        let state = self.state.look_up(memory, heads.state_width() as usize)?;
        let out = output(memory, "the output", self.output, m, heads.value_width())?;
        apart(&[state, out], &reads)?;
        state.apart_from(out)
    }

    /// As for the convolution, each row is counted with a state, as far as there are some.
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let (m, heads) = (u64::from(self.m), self.heads);
        let state = u64::from(heads.state_width());
        let moved = m * u64::from(heads.width() + heads.value_width() + 2 * heads.n_v_heads);
        let states = 2 * m.min(self.state.n_seqs.into()) * state;
        // Three passes over the state: k · S, the update, q · S.
        Work { flops: 7 * m * state, bytes: 4 * (moved + states) }
    }
}

impl SigmoidGateCall {
    pub(super) fn check(&self) -> Checked<()> {
        check_gates(self.n, self.gates)?;
        matrix("the input", self.input, self.m, self.n)?;
        matrix("the gate", self.gate, self.m, self.gates.min(self.n))?;
        matrix("the output", self.output, self.m, self.n)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0 || self.n == 0
    }

    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Result<(), BackendError> {
        let input = f32_rows(memory, "the input", self.input, self.m, self.n)?;
        let gate = f32_rows(memory, "the gate", self.gate, self.m, self.gates)?;
        let out = output(memory, "the output", self.output, self.m, self.n)?;
        out.apart_or_same(input)?;
        out.apart_from(gate)
    }

    pub(super) fn work(&self, _: CacheUse) -> Work {
        let (elements, gates) = (area(self.m, self.n) as u64, area(self.m, self.gates) as u64);
        Work { flops: elements + gates, bytes: 4 * (2 * elements + gates) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_heads_read_key_heads_in_groups_or_in_turn() {
        let heads = DeltaHeads { n_k_heads: 2, n_v_heads: 6, head_dim: 4, order: KeyHeadOrder::Grouped };
        let read = |heads: DeltaHeads| (0..6).map(|head| heads.key_head(head)).collect::<Vec<u32>>();
        assert_eq!(read(heads), [0, 0, 0, 1, 1, 1]);
        assert_eq!(read(DeltaHeads { order: KeyHeadOrder::Tiled, ..heads }), [0, 1, 0, 1, 0, 1]);
        assert_eq!((heads.width(), heads.value_width(), heads.state_width()), (40, 24, 96));
    }

    #[test]
    fn sizes_out_of_range_are_refused_by_name() {
        let heads = DeltaHeads { n_k_heads: 2, n_v_heads: 4, head_dim: 8, order: KeyHeadOrder::Grouped };
        assert_eq!(heads.check(), Ok(()));
        let problem = |heads: DeltaHeads| heads.check().unwrap_err().to_string();
        let head_dim = DeltaHeads { head_dim: 257, ..heads };
        assert_eq!(problem(head_dim), "the size of a head must be from 1 to 256, got 257");
        let odd = DeltaHeads { n_v_heads: 3, ..heads };
        assert_eq!(problem(odd), "the number of value heads must be a multiple of 2, got 3");
        assert_eq!(
            problem(DeltaHeads { n_k_heads: 0, ..heads }),
            "the number of key heads must be at least 1, got 0"
        );
        let large = DeltaHeads { n_v_heads: 1 << 20, head_dim: 256, ..heads };
        assert!(problem(large).starts_with("the values of a state in 32 bits must be"), "{}", problem(large));
        let taps = |taps| check_taps(taps).unwrap_err().to_string();
        assert_eq!(taps(1), "the taps of the convolution must be from 2 to 8, got 1");
        assert_eq!(taps(9), "the taps of the convolution must be from 2 to 8, got 9");
        assert_eq!(check_gates(12, 3), Ok(()));
        let gates = check_gates(12, 5).unwrap_err().to_string();
        assert_eq!(gates, "the width of the input must be a multiple of 5, got 12");
    }
}
