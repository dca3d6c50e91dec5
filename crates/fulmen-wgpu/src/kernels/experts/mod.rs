//! Mixture of experts: routing, matmuls by expert id, and the sum over the experts of a row.

use std::ops::Range;

use fulmen_core::{DType, ExpertPart, GatedActivation, RouteSpec, RouterScores};
use fulmen_core::{MAX_EXPERT_GROUPS, MAX_EXPERTS_PER_ROW};

use super::{
    KernelError, LaunchList, Role,
    bind::{KernelBindings, invalid},
    embed::plain,
    fault,
    launch_list::{product, threads},
    preprocess::values,
    qmatmul::QuantWeight,
};
use crate::kernel::Caps;

/// The experts of each row and their weights: see [`RouteSpec`].
///
/// Input 0 is the logits, `[m, n_experts]`, 1 (if any) the selection biases; output 0 the weights, `[m,
/// top]`, output 1 the ids among the experts of the `part`.
///
/// # Errors
/// [`KernelError`] where something is larger than a binding.
pub fn route(
    m: u32,
    n_experts: u32,
    spec: &RouteSpec,
    bias: bool,
    part: ExpertPart,
    caps: &Caps,
) -> Result<LaunchList, KernelError> {
    const OP: &str = "route";
    let mut list = LaunchList::default();
    if m == 0 {
        return Ok(list);
    }
    let logits = product(OP, "the logits", &[m.into(), n_experts.into(), 4])?;
    let chosen = product(OP, "the expert ids", &[m.into(), spec.top.into(), 4])?;
    let mut bind = KernelBindings::new(OP, caps);
    bind.read("logits", Role::Input(0), "f32", logits)?;
    if bias {
        bind.read("bias", Role::Input(1), "f32", u64::from(n_experts) * 4)?;
    }
    bind.write("weights", Role::Output(0), "f32", chosen)?;
    bind.write("ids", Role::Output(1), "u32", chosen)?;
    let scores = match spec.scores {
        RouterScores::Softmax => "softmax",
        RouterScores::Sigmoid => "sigmoid",
        RouterScores::SelectedSoftmax => "selected",
    };
    // As many partial values as experts of a row, and as groups.
    let threads = threads(64, caps).max(MAX_EXPERTS_PER_ROW).max(MAX_EXPERT_GROUPS);
    let experts = n_experts.next_power_of_two();
    let groups = spec.groups.is_some();
    let values = values![threads, experts, scores, bias, groups, renormalize: spec.renormalize];
    let [count, used] = spec.groups.map_or([0; 2], |groups| [groups.count, groups.used]);
    let params = vec![m, n_experts, spec.top, part.first, part.count, spec.scale.to_bits(), count, used];
    bind.launch(&mut list, "experts/route.wgsl", &values, params, m.into())?;
    Ok(list)
}

/// What the results of a matmul by expert id are combined with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PairOutput {
    /// Nothing.
    Plain,
    /// The gate projections, input 4, by an activation.
    Gated(GatedActivation),
    /// The routing weights of the pairs, input 4.
    Weighted,
}

/// One projection of every pair of a row and one of its experts.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertMatmul {
    /// The type of the weight: F32, F16, BF16 or a block format of [`qmatmul`](super::qmatmul), repacked as
    /// there.
    pub dtype: DType,
    /// Rows of an expert's weight.
    pub n: u32,
    /// Elements of a row.
    pub k: u32,
    /// Experts of the layer.
    pub n_experts: u32,
    /// Experts of a row.
    pub top: u32,
    /// Rows.
    pub m: u32,
    /// Every pair has a row of activations, not only every row.
    pub by_pair: bool,
    /// The rows that input 0 holds, of those of all experts.
    pub slice: Range<u32>,
    /// There are biases.
    pub bias: bool,
    /// What becomes of the result.
    pub output: PairOutput,
}

/// A matmul by expert id.
///
/// Input 0 is the weight (those rows of it that `slice` says), 1 the activations, `[m, k]` or `[m, top, k]`,
/// 2 the ids, `[m, top]`, 3 (if any) the biases, `[n_experts, n]`, 4 what `output` says; output 0 is `[m,
/// top, n]`, output 1 the [record of faults](super::fault).
///
/// # Errors
/// [`KernelError`] where there are no kernels for the type, or something is larger than a binding.
pub fn expert_matmul(spec: &ExpertMatmul, caps: &Caps) -> Result<LaunchList, KernelError> {
    const OP: &str = "expert_matmul";
    let ExpertMatmul { dtype, n, k, n_experts, top, m, by_pair, ref slice, bias, output } = *spec;
    let mut list = LaunchList::default();
    let pairs = u64::from(m) * u64::from(top);
    if pairs == 0 || n == 0 || slice.is_empty() {
        return Ok(list);
    }
    let held = u64::from(slice.end - slice.start);
    let (element, bytes, width, reader, unpack) = match plain(dtype) {
        Some(kind) => {
            let width = if k.is_multiple_of(4) { 4 } else { 1 };
            let bytes = product(OP, "the weight", &[held, k.into(), kind.bytes()])?;
            (kind.element(width, caps), bytes, width, kind.getter("w", width, caps), None)
        }
        None => {
            let weight = QuantWeight { dtype, n: n.saturating_mul(n_experts), k };
            let (reader, unpack) = weight.reader().map_err(|error| invalid(OP, error.to_string()))?;
            let row = weight.packed_row_bytes().map_err(|error| invalid(OP, error.to_string()))?;
            ("vec4<u32>", product(OP, "the weight", &[held, row])?, 4, reader, Some(unpack))
        }
    };
    let rows = if by_pair { pairs } else { m.into() };
    let results = product(OP, "the output", &[pairs, n.into(), 4])?;
    let mut bind = KernelBindings::new(OP, caps);
    bind.read("w", Role::Input(0), element, bytes)?;
    let activations = product(OP, "the input", &[rows, k.into(), 4])?;
    bind.read("a", Role::Input(1), if width == 4 { "vec4<f32>" } else { "f32" }, activations)?;
    bind.read("ids", Role::Input(2), "u32", pairs * 4)?;
    if bias {
        let biases = product(OP, "the bias", &[n_experts.into(), n.into(), 4])?;
        bind.read("bias", Role::Input(3), "f32", biases)?;
    }
    let (name, activation) = match output {
        PairOutput::Plain => ("plain", GatedActivation::SwiGlu),
        PairOutput::Gated(activation) => ("gated", activation),
        PairOutput::Weighted => ("weighted", GatedActivation::SwiGlu),
    };
    match output {
        PairOutput::Plain => {}
        PairOutput::Gated(_) => bind.read("gate", Role::Input(4), "f32", results)?,
        PairOutput::Weighted => bind.read("weights", Role::Input(4), "f32", pairs * 4)?,
    }
    bind.write("out", Role::Output(0), "f32", results)?;
    bind.write("fault", Role::Output(1), fault::ELEMENT, fault::FAULT_BYTES)?;
    let (activation, [alpha, limit]) = match activation {
        GatedActivation::SwiGlu => ("swiglu", [0.0; 2]),
        GatedActivation::GeGlu => ("geglu", [0.0; 2]),
        GatedActivation::ClampedSwiGlu { alpha, limit } => ("clamped", [alpha, limit]),
    };
    let threads = threads(64, caps);
    let lanes = threads.min(8);
    let across = n.div_ceil(threads / lanes);
    let groups = pairs * u64::from(across);
    let groups = u32::try_from(groups).map_err(|_| invalid(OP, "more than 2^32 parts of results"))?;
    let params = vec![
        n,
        k,
        n_experts,
        if by_pair { 1 } else { top },
        top,
        slice.start,
        slice.end,
        k / width,
        across,
        groups,
        alpha.to_bits(),
        limit.to_bits(),
    ];
    let values = values![
        threads,
        lanes,
        reader,
        f16: matches!(element, "f16" | "vec4<f16>"),
        vector: width == 4,
        blocks: unpack.is_some(),
        unpack: unpack.unwrap_or_default(),
        bias,
        output: name,
        activation,
    ];
    bind.launch(&mut list, "experts/matmul.wgsl", &values, params, groups.into())?;
    Ok(list)
}

/// Where the residual of [`expert_sum`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SumResidual {
    /// There is none.
    None,
    /// Input 1.
    Operand,
    /// In the output.
    InPlace,
}

/// The sum over the experts of each row. Input 0 is `[m, top, n]`, 1 (if any) the residual, `[m, n]`, 2 the
/// ids, `[m, top]`, of which [`NO_EXPERT`](fulmen_core::NO_EXPERT) adds nothing; output 0 is `[m, n]`.
///
/// # Errors
/// [`KernelError`] where something is larger than a binding.
pub fn expert_sum(
    m: u32,
    top: u32,
    n: u32,
    residual: SumResidual,
    caps: &Caps,
) -> Result<LaunchList, KernelError> {
    const OP: &str = "expert_sum";
    let mut list = LaunchList::default();
    let elements = u64::from(m) * u64::from(n);
    if elements == 0 {
        return Ok(list);
    }
    let count = u32::try_from(elements).map_err(|_| invalid(OP, "more than 2^32 elements"))?;
    let mut bind = KernelBindings::new(OP, caps);
    bind.read("pairs", Role::Input(0), "f32", product(OP, "the results", &[elements, top.into(), 4])?)?;
    let ids = product(OP, "the expert ids", &[m.into(), top.into(), 4])?;
    bind.read("ids", Role::Input(2), "u32", ids)?;
    if residual == SumResidual::Operand {
        bind.read("residual", Role::Input(1), "f32", elements * 4)?;
    }
    bind.write("out", Role::Output(0), "f32", elements * 4)?;
    let threads = threads(128, caps);
    let residual = match residual {
        SumResidual::None => "none",
        SumResidual::Operand => "operand",
        SumResidual::InPlace => "in_place",
    };
    let groups = elements.div_ceil(threads.into());
    bind.launch(&mut list, "experts/sum.wgsl", &values![threads, residual], vec![n, top, count], groups)?;
    Ok(list)
}
