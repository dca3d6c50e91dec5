//! The calls of a mixture of experts behind the [router](super::RouteCall): matmuls by expert id.
//!
//! ```text
//! logits [m, n_experts] ─► Route ─► weights, ids [m, top]
//! x [m, k] ─────────────► ExpertGateUp by ids ─► [m, top · n] ─► ExpertDown by ids and weights ─► [m, k]
//! ```
//!
//! The weights of all experts are one matrix, `[n_experts · n, k]`: expert `e` has rows `e · n` to
//! `(e + 1) · n`. Weights of experts that no row uses are not read.
//!
//! A device may have some of the experts only. Then `Route` gives ids among those
//! ([`ExpertPart`](super::ExpertPart)), and [`NO_EXPERT`] for those of other devices, which add nothing to
//! the sum of `ExpertDown`.

use super::call::WeightArg;
use super::call_check::{matrix, optional};
use super::checks::*;
use super::operands::{apart, area, f32_rows, optional_rows, output, span, weight};
use super::work::{CacheUse, Work};
use crate::{BackendError, LookUp, Problem};

/// The most experts of a layer.
pub const MAX_EXPERTS: u32 = 1024;

/// The most experts of a row.
pub const MAX_EXPERTS_PER_ROW: u32 = 32;

/// An expert that is not on this device. The matmuls skip it: what `ExpertGateUp` gives for it is not
/// defined, and `ExpertDown` adds nothing.
pub const NO_EXPERT: u32 = u32::MAX;

/// The activation between the gate and up projections and the down projection of an expert.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum GatedActivation {
    /// `silu(gate) · up`.
    #[default]
    SwiGlu,
    /// `gelu(gate) · up`, with GELU's tanh approximation.
    GeGlu,
    /// `g · sigmoid(alpha · g) · (u + 1)` with `g = min(gate, limit)` and `u = clamp(up, -limit, limit)`.
    ClampedSwiGlu {
        /// Multiplies the argument of the sigmoid.
        alpha: f32,
        /// The largest gate, and the largest magnitude of up.
        limit: f32,
    },
}

impl GatedActivation {
    pub(crate) fn check(&self) -> Checked<()> {
        let GatedActivation::ClampedSwiGlu { alpha, limit } = *self else { return Ok(()) };
        finite("alpha", alpha)?;
        above_0("the limit", limit).map(|_| ())
    }
}

/// The number of experts of a layer is one that kernels support.
pub(crate) fn check_experts(n_experts: u32) -> Checked<()> {
    let (what, expected) = ("the number of experts", "from 1 to 1024");
    let valid = (1..=MAX_EXPERTS).contains(&n_experts);
    valid.then_some(()).ok_or(Problem::Value { what, expected, got: n_experts.into() })
}

/// A row has no more experts than there are, nor than kernels support.
pub(crate) fn check_experts_per_row(top: u32, n_experts: u32) -> Checked<()> {
    let what = "the number of experts per row";
    if top > n_experts {
        return Err(Problem::Value { what, expected: "at most the number of experts", got: top.into() });
    }
    let valid = (1..=MAX_EXPERTS_PER_ROW).contains(&top);
    valid.then_some(()).ok_or(Problem::Value { what, expected: "from 1 to 32", got: top.into() })
}

/// `output = activation(x · gateᵀ + gate_bias, x · upᵀ + up_bias)` for each row and each of its experts.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertGateUpCall {
    /// `[m, k]`.
    pub input: u64,
    /// `[m, top]` expert ids, or [`NO_EXPERT`].
    pub ids: u64,
    /// `[n_experts · n, k]`.
    pub gate: WeightArg,
    /// `[n_experts · n, k]`.
    pub up: WeightArg,
    /// `[n_experts, n]`.
    pub gate_bias: Option<u64>,
    /// `[n_experts, n]`.
    pub up_bias: Option<u64>,
    /// `[m, top · n]`.
    pub output: u64,
    /// Rows of the input.
    pub m: u32,
    /// Columns of the input.
    pub k: u32,
    /// Experts of a row.
    pub top: u32,
    /// Experts of the layer.
    pub n_experts: u32,
    /// The activation.
    pub activation: GatedActivation,
    /// Whether a row must get the same bits in a call of any number of rows; see
    /// [`PlanOptions::batch_invariant`](crate::PlanOptions::batch_invariant).
    pub batch_invariant: bool,
}

/// `output = residual + Σ weights[j] · (input[j] · downᵀ + bias)` over the experts `j` of each row.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertDownCall {
    /// `[m, top · k]`.
    pub input: u64,
    /// `[m, top]` expert ids, or [`NO_EXPERT`].
    pub ids: u64,
    /// `[m, top]` routing weights.
    pub weights: u64,
    /// `[n_experts · n, k]`.
    pub down: WeightArg,
    /// `[n_experts, n]`.
    pub bias: Option<u64>,
    /// `[m, n]`, added to the result. May be the output's address.
    pub residual: Option<u64>,
    /// `[m, n]`.
    pub output: u64,
    /// Rows.
    pub m: u32,
    /// Columns of an expert's input.
    pub k: u32,
    /// Experts of a row.
    pub top: u32,
    /// Experts of the layer.
    pub n_experts: u32,
    /// Whether a row must get the same bits in a call of any number of rows; see
    /// [`PlanOptions::batch_invariant`](crate::PlanOptions::batch_invariant).
    pub batch_invariant: bool,
}

/// The rows of each expert in the weight of all of them.
fn rows_per_expert(what: &'static str, weight: &WeightArg, n_experts: u32) -> Checked<u32> {
    if !weight.rows.is_multiple_of(n_experts) {
        return Err(Problem::Multiple { what, of: n_experts.into(), got: weight.rows.into() });
    }
    Ok(weight.rows / n_experts)
}

/// `top` results of `width` for each row have a width that fits 32 bits.
fn check_width(top: u32, width: u32) -> Checked<()> {
    let all = u64::from(top) * u64::from(width);
    same("the width of all experts of a row in 32 bits", top.saturating_mul(width), all)
}

impl ExpertGateUpCall {
    /// Rows of an expert's weights: columns of its result.
    pub fn n(&self) -> u32 {
        self.gate.rows / self.n_experts.max(1)
    }

    pub(super) fn check(&self) -> Checked<()> {
        at_least_1("k", self.k)?;
        check_experts(self.n_experts)?;
        check_experts_per_row(self.top, self.n_experts)?;
        self.activation.check()?;
        matrix("the input", self.input, self.m, self.k)?;
        matrix("the expert ids", self.ids, self.m, self.top)?;
        self.gate.check("the gate weight", self.k)?;
        self.up.check("the up weight", self.k)?;
        same("the rows of the up weight", self.gate.rows, self.up.rows)?;
        let n = rows_per_expert("the rows of the gate weight", &self.gate, self.n_experts)?;
        check_width(self.top, n)?;
        optional("the gate bias", self.gate_bias, self.gate.rows)?;
        optional("the up bias", self.up_bias, self.up.rows)?;
        matrix("the output", self.output, self.m, n)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0 || self.gate.rows == 0
    }

    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Result<(), BackendError> {
        let width = self.top.saturating_mul(self.n());
        let reads = [
            Some(f32_rows(memory, "the input", self.input, self.m, self.k)?),
            Some(span::<u32>(memory, "the expert ids", self.ids, area(self.m, self.top), false)?),
            Some(weight(memory, "the gate weight", &self.gate, self.k)?),
            Some(weight(memory, "the up weight", &self.up, self.k)?),
            optional_rows(memory, "the gate bias", self.gate_bias, 1, self.gate.rows)?,
            optional_rows(memory, "the up bias", self.up_bias, 1, self.up.rows)?,
        ];
        apart(&[output(memory, "the output", self.output, self.m, width)?], &reads)
    }

    pub(super) fn work(&self, _: CacheUse) -> Work {
        let pairs = area(self.m, self.top) as u64;
        let used = used_experts(self.m, self.top, self.n_experts);
        let weights =
            expert_bytes(&self.gate, self.k, self.n_experts) + expert_bytes(&self.up, self.k, self.n_experts);
        let moved = area(self.m, self.k) as u64 + pairs * (1 + u64::from(self.n()));
        Work {
            flops: 4 * pairs * u64::from(self.n()) * u64::from(self.k),
            bytes: (weights * used) as u64 + 4 * moved,
        }
    }
}

impl ExpertDownCall {
    /// Rows of an expert's weight: columns of the result.
    pub fn n(&self) -> u32 {
        self.down.rows / self.n_experts.max(1)
    }

    pub(super) fn check(&self) -> Checked<()> {
        at_least_1("k", self.k)?;
        check_experts(self.n_experts)?;
        check_experts_per_row(self.top, self.n_experts)?;
        check_width(self.top, self.k)?;
        matrix("the input", self.input, self.m, self.k)?;
        matrix("the expert ids", self.ids, self.m, self.top)?;
        matrix("the routing weights", self.weights, self.m, self.top)?;
        self.down.check("the down weight", self.k)?;
        let n = rows_per_expert("the rows of the down weight", &self.down, self.n_experts)?;
        optional("the bias", self.bias, self.down.rows)?;
        self.residual.map_or(Ok(()), |residual| matrix("the residual", residual, self.m, n))?;
        matrix("the output", self.output, self.m, n)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0 || self.down.rows == 0
    }

    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Result<(), BackendError> {
        let (m, n, count) = (self.m, self.n(), area(self.m, self.top));
        let reads = [
            Some(f32_rows(memory, "the input", self.input, m, self.top.saturating_mul(self.k))?),
            Some(span::<u32>(memory, "the expert ids", self.ids, count, false)?),
            Some(span::<f32>(memory, "the routing weights", self.weights, count, false)?),
            Some(weight(memory, "the down weight", &self.down, self.k)?),
            optional_rows(memory, "the bias", self.bias, 1, self.down.rows)?,
        ];
        let out = output(memory, "the output", self.output, m, n)?;
        if let Some(residual) = optional_rows(memory, "the residual", self.residual, m, n)? {
            out.apart_or_same(residual)?;
        }
        apart(&[out], &reads)
    }

    pub(super) fn work(&self, _: CacheUse) -> Work {
        let pairs = area(self.m, self.top) as u64;
        let used = used_experts(self.m, self.top, self.n_experts);
        let weights = expert_bytes(&self.down, self.k, self.n_experts) * used;
        let results = area(self.m, self.n()) as u64 * if self.residual.is_some() { 2 } else { 1 };
        let moved = pairs * (2 + u64::from(self.k)) + results;
        Work { flops: 2 * pairs * u64::from(self.n()) * u64::from(self.k), bytes: weights as u64 + 4 * moved }
    }
}

/// The experts that `m` rows use, on average, if each chooses any `top` of them: exactly `top` for one row.
pub fn used_experts(m: u32, top: u32, n_experts: u32) -> f64 {
    let (all, top) = (f64::from(n_experts.max(1)), f64::from(top));
    all * (1.0 - (1.0 - top / all).max(0.0).powi(i32::try_from(m).unwrap_or(i32::MAX)))
}

/// Bytes of one expert's weight.
fn expert_bytes(weight: &WeightArg, k: u32, n_experts: u32) -> f64 {
    let row = weight.dtype.bytes(k as usize).unwrap_or(usize::MAX);
    row as f64 * f64::from(weight.rows / n_experts.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn the_work_of_one_row_is_that_of_its_experts() {
        let weight = WeightArg { ptr: 1, dtype: DType::Q4_K, rows: 128 * 768 };
        let call = ExpertGateUpCall {
            input: 1,
            ids: 1,
            gate: weight,
            up: weight,
            gate_bias: None,
            up_bias: None,
            output: 1,
            m: 1,
            k: 2048,
            top: 8,
            n_experts: 128,
            activation: GatedActivation::SwiGlu,
            batch_invariant: false,
        };
        let row = 2048 / 256 * 144;
        let work = call.work(CacheUse::default());
        assert_eq!(work.bytes, 8 * 2 * 768 * row + 4 * (2048 + 8 * 769));
        assert_eq!(work.flops, 8 * 2 * 2 * 768 * 2048);
        // 16 rows share some of theirs, and very many use all.
        assert!((used_experts(16, 8, 128) - 82.4).abs() < 0.1);
        assert_eq!(used_experts(u32::MAX, 8, 128), 128.0);
        assert_eq!(used_experts(1, 4, 4), 4.0);
    }

    #[test]
    fn a_limit_of_0_is_refused() {
        let limit = GatedActivation::ClampedSwiGlu { alpha: 1.7, limit: 0.0 };
        assert_eq!(limit.check().unwrap_err().to_string(), "the limit must be finite and above 0, got 0");
    }
}
