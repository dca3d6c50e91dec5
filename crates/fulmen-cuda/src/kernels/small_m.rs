//! Matmuls of 1 to 256 rows, with an RMS norm before them if there is one: which kernel takes a call, and how
//! it is divided into launches. With block-quantized weights that is the GEMV (one row), the small-M GEMM (up
//! to 32 rows) or the mixed-input GEMM (up to 256 rows), with float weights the GEMV for those (up to 16
//! rows).

use fulmen_core::{
    ActivationForm, DType, GateActivation, GateUpCall, MulMatCall, Projection, RmsNormCall, WeightArg,
};

use super::f16_panels::panel_order;
use super::gemm_weight::MAX_WEIGHTS;
use super::{Launched, apart, gemm_mixed_input, gemm_small_m, gemv, gemv_float};
use crate::device::Caps;
use crate::forward::Forwarding;
use crate::queue::Queue;

/// The most rows that the small-M GEMM takes where there is a mixed-input GEMM: up to 16 always, above only
/// if one launch takes all rows.
const MAX_SMALL_M: u32 = 32;
const ALWAYS_SMALL_M: u32 = 16;

/// The most rows where there is no mixed-input GEMM: up to here launches of 16 rows, one after the other, are
/// faster than a GEMM that dequantizes the weights to memory.
const MAX_ROWS: u32 = 48;

/// An RMS norm of the input or of the result that is computed with the matmul.
#[derive(Clone, Copy, Debug)]
pub(super) struct FusedNorm {
    pub(super) input: u64,
    pub(super) gamma: u64,
    pub(super) output: u64,
    pub(super) epsilon: f32,
}

impl FusedNorm {
    fn new(norm: &RmsNormCall) -> FusedNorm {
        FusedNorm { input: norm.input, gamma: norm.gamma, output: norm.output, epsilon: norm.epsilon }
    }
}

/// One weight matrix, its output, and what is added to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matmul {
    pub(super) weight: WeightArg,
    pub(super) out: u64,
    pub(super) bias: u64,
    pub(super) residual: u64,
}

impl Matmul {
    /// Bytes of a row of the weight matrix.
    pub(super) fn row_bytes(&self, k: u32) -> Option<u32> {
        self.weight.dtype.bytes(k as usize).ok().and_then(|bytes| u32::try_from(bytes).ok())
    }
}

/// The activations `[m, k]` that matmuls share.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatmulInput {
    pub(super) x: u64,
    pub(super) norm: Option<FusedNorm>,
    pub(super) m: u32,
    pub(super) k: u32,
}

impl MatmulInput {
    fn new(x: u64, m: u32, k: u32, norm: Option<&RmsNormCall>) -> MatmulInput {
        MatmulInput { x, norm: norm.map(FusedNorm::new), m, k }
    }
}

/// The matmuls of one launch: all of one weight format, or the first of Q4_K and the others of Q6_K, or gate
/// and up.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchGroup<'a> {
    pub(super) matmuls: &'a [Matmul],
    /// How many have the first format.
    pub(super) first_format: usize,
    pub(super) gate_up: bool,
    /// Of gate and up.
    pub(super) activation: GateActivation,
}

impl<'a> LaunchGroup<'a> {
    /// The first format.
    pub(super) fn format(&self) -> Option<DType> {
        self.matmuls.first().map(|matmul| matmul.weight.dtype)
    }

    /// 1 if the activation of gate and up is GELU, else 0.
    pub(super) fn gelu(&self) -> u32 {
        u32::from(self.activation == GateActivation::GeluTanh)
    }

    pub(super) fn two_formats(&self) -> bool {
        self.first_format < self.matmuls.len()
    }

    /// The part of an entry's name that says formats and kind: `q4_k`, `gate_up_q4_k`, `q4_k_q6_k`.
    pub(super) fn name(&self) -> String {
        let format = super::type_name(self.matmuls[0].weight.dtype);
        match (self.gate_up, self.two_formats()) {
            (true, _) => format!("gate_up_{format}"),
            (_, true) => "q4_k_q6_k".to_owned(),
            _ => format.to_owned(),
        }
    }

    /// Divides matmuls into launches of at most `max_weights`.
    fn split(mut left: &'a [Matmul], max_weights: usize) -> Vec<LaunchGroup<'a>> {
        let mut groups = Vec::new();
        while let Some(first) = left.first() {
            let same = left.iter().take_while(|matmul| matmul.weight.dtype == first.weight.dtype).count();
            let most = left.len().min(max_weights);
            let two_formats = first.weight.dtype == DType::Q4_K
                && same < most
                && left[same..most].iter().all(|matmul| matmul.weight.dtype == DType::Q6_K);
            let count = if two_formats { most } else { same.min(max_weights) };
            groups.push(LaunchGroup {
                matmuls: &left[..count],
                first_format: if two_formats { same } else { count },
                gate_up: false,
                activation: GateActivation::Silu,
            });
            left = &left[count..];
        }
        groups
    }
}

/// A call's matmuls, what they read, and how they are divided into launches.
struct Work {
    input: MatmulInput,
    matmuls: Vec<Matmul>,
    /// Of gate and up.
    gate_up: Option<GateActivation>,
}

impl Work {
    fn new(call: &MulMatCall, norm: Option<&RmsNormCall>) -> Work {
        let matmul = |part: &Projection| Matmul {
            weight: part.weight,
            out: part.output,
            bias: part.bias.unwrap_or(0),
            residual: call.residual.unwrap_or(0),
        };
        let input = MatmulInput::new(call.input, call.m, call.k, norm);
        Work { input, matmuls: call.parts.iter().map(matmul).collect(), gate_up: None }
    }

    /// `None` if gate and up have different formats: one launch multiplies by both.
    fn of_gate_up(call: &GateUpCall, norm: Option<&RmsNormCall>) -> Option<Work> {
        let matmul = |weight| Matmul { weight, out: call.output, bias: 0, residual: 0 };
        let matmuls = vec![matmul(call.gate), matmul(call.up)];
        let input = MatmulInput::new(call.input, call.m, call.k, norm);
        (call.gate.dtype == call.up.dtype).then_some(Work { input, matmuls, gate_up: Some(call.activation) })
    }

    /// The launches, of which those of the GEMV may have one weight more.
    fn groups(&self) -> Vec<LaunchGroup<'_>> {
        let gemv = self.input.m == 1 && !gemv_float::takes(&self.input, &self.matmuls);
        self.groups_of(if gemv { gemv::MAX_WEIGHTS } else { MAX_WEIGHTS })
    }

    fn groups_of(&self, max_weights: usize) -> Vec<LaunchGroup<'_>> {
        if let Some(activation) = self.gate_up {
            let matmuls = &self.matmuls;
            return vec![LaunchGroup { matmuls, first_format: 2, gate_up: true, activation }];
        }
        LaunchGroup::split(&self.matmuls, max_weights)
    }

    /// Whether the operands and the weight formats are such that these kernels may take it.
    fn may_run(&self, caps: Caps) -> bool {
        operands_allow(&self.input, &self.matmuls)
            && (gemv_float::takes(&self.input, &self.matmuls) || takes(caps, &self.input, &self.matmuls))
    }

    /// Whether its kernel reads block-quantized weights in other forms than f32.
    fn has_forms(&self, caps: Caps) -> bool {
        self.may_run(caps)
            && !gemv_float::takes(&self.input, &self.matmuls)
            && (self.input.m <= MAX_SMALL_M && !prefers_mixed_input(caps, &self.input, &self.groups()))
    }

    /// Whether its kernel is the mixed-input GEMM.
    fn takes_panels(&self, caps: Caps) -> bool {
        self.may_run(caps)
            && !gemv_float::takes(&self.input, &self.matmuls)
            && prefers_mixed_input(caps, &self.input, &self.groups())
    }

    /// Whether the reduction of the mixed-input GEMM finishes whole rows of the result.
    fn ends_rows(&self, caps: Caps) -> bool {
        self.takes_panels(caps) && gemm_mixed_input::ends_rows(caps, &self.input, &self.groups())
    }

    /// Whether that reduction computes the norm of the result: blocks write rows of both, while others still
    /// read the residual.
    fn norms_result(&self, caps: Caps, norm: &RmsNormCall) -> bool {
        let [matmul] = self.matmuls.as_slice() else { return false };
        let bytes = u64::from(self.input.m) * u64::from(matmul.weight.rows) * 4;
        let normed = (norm.output, bytes);
        norm.input == matmul.out
            && (norm.rows, norm.width) == (self.input.m, matmul.weight.rows)
            && norm.gamma.is_multiple_of(16)
            && norm.output.is_multiple_of(16)
            && apart(normed, (matmul.out, bytes))
            && (matmul.residual == 0 || apart(normed, (matmul.residual, bytes)))
            && self.ends_rows(caps)
    }

    fn accepted_forms(&self, caps: Caps) -> Vec<ActivationForm> {
        match self.input.m {
            _ if self.takes_panels(caps) => {
                gemm_mixed_input::accepted_form(&self.input, &self.groups()).into_iter().collect()
            }
            _ if !self.has_forms(caps) => Vec::new(),
            1 => gemv::accepted_forms(caps, &self.input, &self.groups()),
            _ => gemm_small_m::accepted_forms(caps, &self.input, &self.groups()),
        }
    }

    fn forwards(&self, caps: Caps, activation: &ActivationForm) -> bool {
        match self.input.m {
            _ if self.ends_rows(caps) => {
                let (output, width) = (self.matmuls[0].out, self.matmuls[0].weight.rows);
                gemm_mixed_input::forwards(output, self.input.m, width, activation)
            }
            _ if !self.has_forms(caps) => false,
            1 => gemv::forwards(caps, &self.input, &self.groups(), activation),
            _ => gemm_small_m::forwards(caps, &self.input, &self.groups(), activation),
        }
    }

    fn launch_batch_invariant(&self, queue: &mut Queue) -> Option<Launched> {
        let takes = queue.caps().has_clusters()
            && operands_allow(&self.input, &self.matmuls)
            && block_quantized(&self.matmuls);
        if takes {
            gemm_small_m::run_batch_invariant(queue, &self.input, &self.groups_of(MAX_WEIGHTS))
        } else {
            None
        }
    }

    /// `norm`: that of the result, if [`norms_result`](Work::norms_result).
    fn launch_with_norm(
        &self,
        queue: &mut Queue,
        norm: &RmsNormCall,
        forwarding: &Forwarding<'_>,
    ) -> Option<Launched> {
        if !self.norms_result(queue.caps(), norm) {
            return None;
        }
        let norm = Some(FusedNorm::new(norm));
        gemm_mixed_input::run(queue, &self.input, &self.groups(), norm, forwarding)
    }

    fn launch(&self, queue: &mut Queue, forwarding: &Forwarding<'_>) -> Option<Launched> {
        let groups = self.groups();
        if !self.may_run(queue.caps()) {
            None
        } else if gemv_float::takes(&self.input, &self.matmuls) {
            gemv_float::run(queue, &self.input, &groups)
        } else {
            run(queue, &self.input, &groups, forwarding)
        }
    }
}

/// Launches a call's matmuls, if these kernels take it.
pub(crate) fn launch(
    queue: &mut Queue,
    call: &MulMatCall,
    norm: Option<&RmsNormCall>,
    forwarding: &Forwarding<'_>,
) -> Option<Launched> {
    Work::new(call, norm).launch(queue, forwarding)
}

/// Launches both matmuls of gate-up with its activation, if these kernels take the call.
pub(crate) fn launch_gate_up(
    queue: &mut Queue,
    call: &GateUpCall,
    norm: Option<&RmsNormCall>,
    forwarding: &Forwarding<'_>,
) -> Option<Launched> {
    Work::of_gate_up(call, norm)?.launch(queue, forwarding)
}

/// Whether the norm of a call's result is computed with it.
pub(crate) fn norms_result(caps: Caps, call: &MulMatCall, norm: &RmsNormCall) -> bool {
    Work::new(call, None).norms_result(caps, norm)
}

/// Launches a call's matmul with the norm of its result, if [`norms_result`].
pub(crate) fn launch_with_norm(
    queue: &mut Queue,
    call: &MulMatCall,
    norm: &RmsNormCall,
    forwarding: &Forwarding<'_>,
) -> Option<Launched> {
    Work::new(call, None).launch_with_norm(queue, norm, forwarding)
}

/// Whether the norm of a call's result, computed with it, can be written in this form.
pub(crate) fn forwards_normed(
    caps: Caps,
    call: &MulMatCall,
    norm: &RmsNormCall,
    activation: &ActivationForm,
) -> bool {
    norms_result(caps, call, norm) && gemm_mixed_input::forwards(norm.output, call.m, norm.width, activation)
}

/// Launches a call's matmuls by the small-M GEMM with the configuration of 16 rows, if it takes the weights:
/// a row then gets the same bits in any batch.
pub(crate) fn launch_batch_invariant(queue: &mut Queue, call: &MulMatCall) -> Option<Launched> {
    Work::new(call, None).launch_batch_invariant(queue)
}

/// As [`launch_batch_invariant`], for gate-up.
pub(crate) fn launch_gate_up_batch_invariant(queue: &mut Queue, call: &GateUpCall) -> Option<Launched> {
    Work::of_gate_up(call, None)?.launch_batch_invariant(queue)
}

/// Whether these kernels may take a call. They do not if there is no configuration for its size.
pub(crate) fn may_take(caps: Caps, call: &MulMatCall, norm: Option<&RmsNormCall>) -> bool {
    Work::new(call, norm).may_run(caps)
}

/// As [`may_take`], for gate-up.
pub(crate) fn may_take_gate_up(caps: Caps, call: &GateUpCall, norm: Option<&RmsNormCall>) -> bool {
    Work::of_gate_up(call, norm).is_some_and(|work| work.may_run(caps))
}

/// The forms in which a call reads its activations, the best first.
pub(crate) fn accepted_forms(
    caps: Caps,
    call: &MulMatCall,
    norm: Option<&RmsNormCall>,
) -> Vec<ActivationForm> {
    Work::new(call, norm).accepted_forms(caps)
}

/// As [`accepted_forms`], for gate-up.
pub(crate) fn accepted_forms_of_gate_up(
    caps: Caps,
    call: &GateUpCall,
    norm: Option<&RmsNormCall>,
) -> Vec<ActivationForm> {
    Work::of_gate_up(call, norm).map_or_else(Vec::new, |work| work.accepted_forms(caps))
}

/// Whether a call can write its result in this form.
pub(crate) fn forwards(
    caps: Caps,
    call: &MulMatCall,
    norm: Option<&RmsNormCall>,
    activation: &ActivationForm,
) -> bool {
    Work::new(call, norm).forwards(caps, activation)
}

/// As [`forwards`], for gate-up.
pub(crate) fn forwards_gate_up(
    caps: Caps,
    call: &GateUpCall,
    norm: Option<&RmsNormCall>,
    activation: &ActivationForm,
) -> bool {
    Work::of_gate_up(call, norm).is_some_and(|work| work.forwards(caps, activation))
}

/// Whether what the launches write does not overlap what the norm reads, and what they add does not overlap
/// what the norm writes: some blocks write while others still read. The memory of calls that were not planned
/// together may overlap.
fn apart_from_norm(norm: &FusedNorm, input: &MatmulInput, matmuls: &[Matmul]) -> bool {
    let bytes = |width: u32| u64::from(input.m) * u64::from(width) * 4;
    let read = (norm.input, bytes(input.k));
    let written = (norm.output, bytes(input.k));
    apart(read, written)
        && matmuls.iter().all(|matmul| {
            let bytes = bytes(matmul.weight.rows);
            apart(read, (matmul.out, bytes))
                && (matmul.residual == 0 || apart(written, (matmul.residual, bytes)))
        })
}

/// Whether the GEMV, the GEMV by expert id and the small-M GEMM have kernels for a format.
pub(super) fn is_dp4a_format(dtype: DType) -> bool {
    use DType::*;
    let scalar = matches!(dtype, Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q4_K | Q5_K | Q6_K);
    scalar || matches!(dtype, MXFP4 | IQ4_NL | IQ4_XS)
}

/// Whether all weights are of the formats that these kernels know.
fn block_quantized(matmuls: &[Matmul]) -> bool {
    matmuls.iter().all(|matmul| is_dp4a_format(matmul.weight.dtype))
}

/// Whether the mixed-input GEMM takes the formats of all weights on this device.
fn has_mixed_input(caps: Caps, matmuls: &[Matmul]) -> bool {
    gemm_mixed_input::supported(caps)
        && matmuls.iter().all(|matmul| panel_order(matmul.weight.dtype).is_some())
}

fn takes(caps: Caps, input: &MatmulInput, matmuls: &[Matmul]) -> bool {
    let mixed_input = has_mixed_input(caps, matmuls);
    let most = if mixed_input { gemm_mixed_input::MAX_ROWS } else { MAX_ROWS };
    (input.m == 1 || caps.has_clusters()) && (1..=most).contains(&input.m) && block_quantized(matmuls)
}

/// Whether the memory of a call allows these kernels, whatever its weights are.
fn operands_allow(input: &MatmulInput, matmuls: &[Matmul]) -> bool {
    input.k > 0
        && input.x.is_multiple_of(16)
        && input
            .norm
            .is_none_or(|norm| [norm.input, norm.gamma, norm.output].iter().all(|p| p.is_multiple_of(16)))
        && input.norm.is_none_or(|norm| apart_from_norm(&norm, input, matmuls))
        && !matmuls.is_empty()
        && matmuls.iter().all(|matmul| matmul.weight.rows > 0)
}

/// Whether the mixed-input GEMM is faster than the small-M GEMM.
fn prefers_mixed_input(caps: Caps, input: &MatmulInput, groups: &[LaunchGroup<'_>]) -> bool {
    input.m > ALWAYS_SMALL_M
        && groups.iter().all(|group| has_mixed_input(caps, group.matmuls))
        && !(input.m <= MAX_SMALL_M && gemm_small_m::takes_at_once(caps, input, groups))
}

fn run(
    queue: &mut Queue,
    input: &MatmulInput,
    groups: &[LaunchGroup<'_>],
    forwarding: &Forwarding<'_>,
) -> Option<Launched> {
    if input.m == 1 {
        return gemv::run(queue, input, groups, forwarding);
    }
    if prefers_mixed_input(queue.caps(), input, groups)
        && let Some(launched) = gemm_mixed_input::run(queue, input, groups, None, forwarding)
    {
        return Some(launched);
    }
    if input.m <= MAX_ROWS { gemm_small_m::run(queue, input, groups, forwarding) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_overwrite_the_input_of_their_norm_are_refused() {
        let norm = FusedNorm { input: 4096, gamma: 0, output: 1 << 20, epsilon: 1e-6 };
        let input = MatmulInput { x: norm.output, norm: Some(norm), m: 2, k: 256 };
        let writes = |out: u64| {
            let weight = WeightArg { ptr: 1 << 24, dtype: DType::Q4_K, rows: 64 };
            apart_from_norm(&norm, &input, &[Matmul { weight, out, bias: 0, residual: 0 }])
        };
        // The input is 2048 bytes, the result 512.
        for (out, good) in
            [(4096 - 512, true), (4096 - 508, false), (4096, false), (6140, false), (6144, true)]
        {
            assert_eq!(writes(out), good, "{out}");
        }
        assert!(!apart_from_norm(&FusedNorm { output: norm.input, ..norm }, &input, &[]), "a norm in place");
        let adds = |residual: u64| {
            let weight = WeightArg { ptr: 1 << 24, dtype: DType::Q4_K, rows: 256 };
            apart_from_norm(&norm, &input, &[Matmul { weight, out: 1 << 22, bias: 0, residual }])
        };
        assert!(adds(0) && adds(norm.input) && !adds(norm.output), "the norm's result as residual");
    }
}
