//! Forwarded activations: what the plan of a program asks about this backend, and the launches of planned
//! calls.
//!
//! Matmuls with block-quantized weights take their input quantized to 8 bits. In small batches the kernel
//! that makes the input (a norm, attention, gate-up) also writes it in that form, and a matmul whose input
//! other matmuls read keeps it for them. RoPE + KV store of one row and the attention over that cache run as
//! one.

use fulmen_core::*;

use super::matmul::{Q8Input, SMALL_M};
use super::{LaunchCount, WgpuDispatcher};
use crate::buffer::BufferSlice;
use crate::kernels::qmatmul::{self, FusedBuffer, FusedOutput, OutputForm, QuantWeight};
use crate::weight::{fits_one_slice, stored_as};

/// The q8 activations of `[rows, width]` f32 values.
fn q8_form(ptr: u64, rows: u32, width: u32) -> ActivationForm {
    let bytes = usize::try_from(qmatmul::q8_bytes(rows, width)).unwrap_or(usize::MAX);
    let form = Form { id: 0, name: "q8 activations", bytes, operand: None };
    ActivationForm { ptr, rows, width, form }
}

/// The input and the weights of a matmul.
struct MatmulOperands<'a> {
    input: u64,
    m: u32,
    k: u32,
    weights: Vec<&'a WeightArg>,
}

impl MatmulOperands<'_> {
    fn of(call: &OpCall) -> Option<MatmulOperands<'_>> {
        match call {
            OpCall::MulMat(MulMatCall { input, parts, m, k, .. }) => {
                let weights = parts.iter().map(|part| &part.weight).collect();
                Some(MatmulOperands { input: *input, m: *m, k: *k, weights })
            }
            OpCall::GateUp(GateUpCall { input, gate, up, m, k, .. }) => {
                Some(MatmulOperands { input: *input, m: *m, k: *k, weights: vec![gate, up] })
            }
            _ => None,
        }
    }
}

/// A weight as blocks, if it is stored as such.
fn block_weight(arg: &WeightArg, k: u32) -> Option<QuantWeight> {
    let weight = QuantWeight { dtype: stored_as(arg.dtype), n: arg.rows, k };
    let plain = matches!(weight.dtype, DType::F32 | DType::F16 | DType::BF16);
    (!plain && arg.rows > 0 && weight.packed_row_bytes().is_ok()).then_some(weight)
}

impl WgpuDispatcher {
    /// Whether ranges at these addresses can be bound.
    fn can_bind_at(&self, addresses: &[u64]) -> bool {
        let align = u64::from(self.gpu.caps().binding_alignment.max(16));
        addresses.iter().all(|ptr| ptr.is_multiple_of(align))
    }

    fn are_valid(&self, calls: &[ProgramCall]) -> bool {
        calls.iter().all(|step| step.call.check_operands(&self.memory).is_ok())
    }

    pub(super) fn count_fused(&self, next: &[ProgramCall]) -> usize {
        let [first, second, ..] = next else { return 1 };
        let (OpCall::RopeStore(store), OpCall::Attention(call)) = (&first.call, &second.call) else {
            return 1;
        };
        if self.are_valid(&next[..2]) && self.fuses_store(store, call) { 2 } else { 1 }
    }

    pub(super) fn q8_input_of(&self, calls: &[ProgramCall]) -> Option<ActivationForm> {
        let [step] = calls else { return None };
        let MatmulOperands { input, m, k, weights } = MatmulOperands::of(&step.call)?;
        // What is forwarded depends on the number of rows.
        let accepts = (1..=SMALL_M).contains(&m)
            && !step.call.batch_invariant()
            && self.are_valid(calls)
            && self.can_bind_at(&[input])
            && weights.iter().any(|weight| block_weight(weight, k).is_some());
        accepts.then(|| q8_form(input, m, k))
    }

    pub(super) fn can_forward(&self, calls: &[ProgramCall], activation: &ActivationForm) -> bool {
        let &ActivationForm { ptr, rows, width, .. } = activation;
        if !(1..=SMALL_M).contains(&rows)
            || *activation != q8_form(ptr, rows, width)
            || !self.are_valid(calls)
        {
            return false;
        }
        if self.q8_input_of(calls) == Some(*activation) {
            return true;
        }
        let is =
            |output: u64, m: u32, n: u32| (output, m, n) == (ptr, rows, width) && self.can_bind_at(&[ptr]);
        match calls {
            [step] => match &step.call {
                OpCall::RmsNorm(norm) => {
                    is(norm.output, norm.rows, norm.width)
                        && norm.input != norm.output
                        && width > 0
                        && width.is_multiple_of(32)
                        && self.can_bind_at(&[norm.input, norm.gamma])
                }
                OpCall::Attention(call) => {
                    is(call.output, call.m, call.heads.q_width()) && self.attention_makes_q8(call)
                }
                OpCall::GateUp(call) => {
                    is(call.output, call.m, call.gate.rows) && self.gate_up_makes_q8(call)
                }
                _ => false,
            },
            [_, last] => match &last.call {
                OpCall::Attention(call) => {
                    is(call.output, call.m, call.heads.q_width()) && call.heads.head_dim.is_multiple_of(32)
                }
                _ => false,
            },
            _ => false,
        }
    }

    /// Whether gate-up is one launch that also quantizes its result.
    fn gate_up_makes_q8(&self, call: &GateUpCall) -> bool {
        let weights: Option<Vec<QuantWeight>> =
            [&call.gate, &call.up].into_iter().map(|weight| block_weight(weight, call.k)).collect();
        let Some(weights) = weights else { return false };
        let one_slice = weights.iter().all(|weight| fits_one_slice(&self.gpu, *weight));
        let outputs = [FusedOutput { weights, bias: false, activation: call.activation }];
        let fused = qmatmul::fused_gemv(call.m, &outputs, OutputForm::F32AndQ8, &self.gpu.caps());
        one_slice && matches!(fused, Ok(Some((_, buffers))) if buffers.contains(&FusedBuffer::Q8Output))
    }

    pub(super) fn run_planned(&mut self, program: &Program, planned: &PlannedCall) -> LaunchCount {
        let calls = program.calls().get(planned.calls.clone()).unwrap_or_default();
        for step in calls {
            step.call.check_operands(&self.memory)?;
        }
        let launched = match calls {
            [step] => match &step.call {
                OpCall::MulMat(call) => {
                    let (made, mut q8) = self.q8_input(planned, call.input, call.m, call.k)?;
                    made + self.mul_mat(call, &mut q8)?
                }
                OpCall::GateUp(call) => {
                    let (made, mut q8) = self.q8_input(planned, call.input, call.m, call.k)?;
                    let output = self.q8_output(planned, call.output)?;
                    made + self.gate_up(call, &mut q8, output)?
                }
                OpCall::RmsNorm(norm) => match self.q8_output(planned, norm.output)? {
                    Some(q8) => self.norm_with_q8(norm, q8)?,
                    None => return self.dispatch(&step.call),
                },
                OpCall::Attention(call) => match self.q8_output(planned, call.output)? {
                    Some(q8) => self.attention_with_q8(call, q8)?,
                    None => return self.dispatch(&step.call),
                },
                call => return self.dispatch(call),
            },
            [first, second] => match (&first.call, &second.call) {
                (OpCall::RopeStore(store), OpCall::Attention(call)) => {
                    let q8 = self.q8_output(planned, call.output)?;
                    self.rope_store_attention(store, call, q8)?
                }
                (first, second) => return Ok(self.dispatch(first)? + self.dispatch(second)?),
            },
            _ => return calls.iter().map(|step| self.dispatch(&step.call)).sum(),
        };
        self.queue.flush_if_full()?;
        Ok(launched)
    }

    /// The q8 activations of a matmul's input, forwarded to it or quantized here for later calls as well, and
    /// the number of launches.
    fn q8_input(
        &mut self,
        planned: &PlannedCall,
        input: u64,
        m: u32,
        k: u32,
    ) -> Result<(usize, Q8Input), BackendError> {
        let form = q8_form(input, m, k);
        let find = |all: &[Forwarded]| all.iter().find(|forwarded| forwarded.activation == form).copied();
        let source = self.matrix("the input", input, m, k)?;
        if let Some(forwarded) = find(&planned.inputs) {
            let at = self.forwarded(&forwarded)?;
            return Ok((0, Q8Input::ready(at, source)));
        }
        let Some(kept) = find(&planned.outputs) else { return Ok((0, Q8Input::default())) };
        let at = self.forwarded(&kept)?;
        self.quantize(&source, &at, m, k)?;
        Ok((1, Q8Input::ready(at, source)))
    }

    /// Where the q8 activations of an output are to be written, if it is forwarded.
    fn q8_output(&self, planned: &PlannedCall, output: u64) -> Result<Option<BufferSlice>, BackendError> {
        let found = planned.outputs.iter().find(|forwarded| forwarded.activation.ptr == output);
        found.map(|forwarded| self.forwarded(forwarded)).transpose()
    }

    fn forwarded(&self, forwarded: &Forwarded) -> Result<BufferSlice, BackendError> {
        let Form { name, bytes, .. } = forwarded.activation.form;
        // A capture notes what is looked up.
        self.memory.look_up(name, forwarded.ptr, bytes, ALIGNMENT, true)?;
        self.memory.slice(name, forwarded.ptr, bytes)
    }
}
