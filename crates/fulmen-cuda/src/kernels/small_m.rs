//! Matmuls of few rows, with an RMS norm before them if there is one: which kernel takes a call, and how it
//! is divided into launches. With block-quantized weights that is the GEMV (one row), the int8 GEMM (2 to 8
//! rows), the small-M GEMM (up to 16 rows) or the mixed-input GEMM (up to 256 rows), with float weights the
//! GEMV for those (up to 16 rows).

use fulmen_core::{ActivationForm, DType, GateUpCall, MulMatCall, Projection, RmsNormCall, WeightArg};

use super::{Launched, apart, gemm_mixed_input, gemm_q8, gemm_small_m, gemv, gemv_float};
use crate::device::Caps;
use crate::forward::Forwarding;
use crate::queue::Queue;

/// The most weight matrices of one launch.
pub(super) const MAX_WEIGHTS: usize = 3;

/// Above this many rows of activations the mixed-input GEMM is faster than the small-M GEMM.
const MAX_SMALL_M: u32 = 16;

/// The most rows where there is no mixed-input GEMM: up to here launches of 16 rows, one after the other, are
/// faster than a GEMM that dequantizes the weights to memory.
const MAX_ROWS: u32 = 48;

/// An RMS norm that is computed by the matmul.
#[derive(Clone, Copy, Debug)]
pub(super) struct FusedNorm {
    pub(super) input: u64,
    pub(super) gamma: u64,
    pub(super) output: u64,
    pub(super) epsilon: f32,
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
        let norm = norm.map(|norm| FusedNorm {
            input: norm.input,
            gamma: norm.gamma,
            output: norm.output,
            epsilon: norm.epsilon,
        });
        MatmulInput { x, norm, m, k }
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
}

impl<'a> LaunchGroup<'a> {
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

    /// Divides matmuls into launches.
    fn split(mut left: &'a [Matmul]) -> Vec<LaunchGroup<'a>> {
        let mut groups = Vec::new();
        while let Some(first) = left.first() {
            let same = left.iter().take_while(|matmul| matmul.weight.dtype == first.weight.dtype).count();
            let most = left.len().min(MAX_WEIGHTS);
            let two_formats = first.weight.dtype == DType::Q4_K
                && same < most
                && left[same..most].iter().all(|matmul| matmul.weight.dtype == DType::Q6_K);
            let count = if two_formats { most } else { same.min(MAX_WEIGHTS) };
            groups.push(LaunchGroup {
                matmuls: &left[..count],
                first_format: if two_formats { same } else { count },
                gate_up: false,
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
    gate_up: bool,
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
        Work { input, matmuls: call.parts.iter().map(matmul).collect(), gate_up: false }
    }

    /// `None` if gate and up have different formats: one launch multiplies by both.
    fn of_gate_up(call: &GateUpCall, norm: Option<&RmsNormCall>) -> Option<Work> {
        let matmul = |weight| Matmul { weight, out: call.output, bias: 0, residual: 0 };
        let matmuls = vec![matmul(call.gate), matmul(call.up)];
        let input = MatmulInput::new(call.input, call.m, call.k, norm);
        (call.gate.dtype == call.up.dtype).then_some(Work { input, matmuls, gate_up: true })
    }

    fn groups(&self) -> Vec<LaunchGroup<'_>> {
        if self.gate_up {
            return vec![LaunchGroup { matmuls: &self.matmuls, first_format: 2, gate_up: true }];
        }
        LaunchGroup::split(&self.matmuls)
    }

    /// Whether the operands and the weight formats are such that these kernels may take it.
    fn may_run(&self, caps: Caps) -> bool {
        operands_allow(&self.input, &self.matmuls)
            && (gemv_float::takes(&self.input, &self.matmuls) || takes(caps, &self.input, &self.matmuls))
    }

    /// Whether its kernel reads block-quantized weights, and so other forms than f32.
    fn has_forms(&self, caps: Caps) -> bool {
        self.may_run(caps) && !gemv_float::takes(&self.input, &self.matmuls) && self.input.m <= MAX_SMALL_M
    }

    fn accepted_forms(&self, caps: Caps) -> Vec<ActivationForm> {
        match self.input.m {
            _ if !self.has_forms(caps) => Vec::new(),
            1 => gemv::accepted_forms(caps, &self.input, &self.groups()),
            _ if gemm_q8::takes(caps, &self.input, &self.groups()) => gemm_q8::accepted_forms(&self.input),
            _ => gemm_small_m::accepted_forms(caps, &self.input, &self.groups()),
        }
    }

    fn forwards(&self, caps: Caps, activation: &ActivationForm) -> bool {
        match self.input.m {
            _ if !self.has_forms(caps) => false,
            1 => gemv::forwards(caps, &self.input, &self.groups(), activation),
            _ if gemm_q8::takes(caps, &self.input, &self.groups()) => {
                gemm_q8::forwards(caps, &self.input, &self.groups(), activation)
            }
            _ => gemm_small_m::forwards(caps, &self.input, &self.groups(), activation),
        }
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

/// Launches both matmuls of gate-up with SwiGLU, if these kernels take the call.
pub(crate) fn launch_gate_up(
    queue: &mut Queue,
    call: &GateUpCall,
    norm: Option<&RmsNormCall>,
    forwarding: &Forwarding<'_>,
) -> Option<Launched> {
    Work::of_gate_up(call, norm)?.launch(queue, forwarding)
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

fn takes(caps: Caps, input: &MatmulInput, matmuls: &[Matmul]) -> bool {
    let block_quantized = |dtype| {
        use DType::*;
        matches!(dtype, Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q4_K | Q5_K | Q6_K)
    };
    let mixed_input = gemm_mixed_input::supported(caps);
    let most = if mixed_input { gemm_mixed_input::MAX_ROWS } else { MAX_ROWS };
    (input.m == 1 || caps.has_clusters())
        && (1..=most).contains(&input.m)
        && matmuls.iter().all(|matmul| block_quantized(matmul.weight.dtype))
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

fn run(
    queue: &mut Queue,
    input: &MatmulInput,
    groups: &[LaunchGroup<'_>],
    forwarding: &Forwarding<'_>,
) -> Option<Launched> {
    if input.m == 1 {
        return gemv::run(queue, input, groups, forwarding);
    }
    if input.m > MAX_SMALL_M
        && gemm_mixed_input::supported(queue.caps())
        && let Some(launched) = gemm_mixed_input::run(queue, input, groups)
    {
        return Some(launched);
    }
    if let Some(launched) = gemm_q8::run(queue, input, groups, forwarding) {
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
