//! Matmuls: one or several weights of one input, with bias and residual, gate-up, and the norm before them.
//!
//! At small M several block weights are one launch ([`qmatmul::fused_gemv`]); everything else is one matmul
//! after the other. An input is quantized to q8 once, unless that was forwarded to the call.

use std::sync::Arc;

use fulmen_core::{BackendError, GateActivation, GateUpCall, MulMatCall, Projection, RmsNormCall};

use super::{LaunchCount, WgpuDispatcher};
use crate::buffer::BufferSlice;
use crate::error::GpuError;
use crate::kernels::matmul::{EpilogueInput, EpilogueSource, MatmulBuffer, MatmulLaunch, MatmulStage};
use crate::kernels::qmatmul::{self, FusedBuffer, FusedOutput, OutputForm};
use crate::matmul_launches::{KernelChooser, WeightLaunch, WeightLaunches};
use crate::queue::{Relocations, ScratchSlot, unsupported};
use crate::weight::{DeviceWeight, WeightKind};

/// Rows of an input up to which several block weights are one launch, and the input is quantized by the
/// launch that makes it.
pub(super) const SMALL_M: u32 = 8;

/// One or two weights that make one output, and where that goes.
struct Output {
    weights: Vec<Arc<DeviceWeight>>,
    bias: Option<BufferSlice>,
    /// Of the first of two weights.
    activation: GateActivation,
    output: BufferSlice,
}

/// What a matmul reads and writes beside its weight.
struct Operands<'a> {
    /// `[m, k]`.
    input: &'a BufferSlice,
    /// `[m, n]`.
    output: &'a BufferSlice,
    /// What the epilogue reads.
    extras: &'a [BufferSlice],
    epilogue: &'a EpilogueSource,
    m: u32,
    batch_invariant: bool,
}

/// The input of one call as q8 activations.
#[derive(Debug, Default)]
pub(super) struct Q8Input {
    /// Where they lie if they were forwarded; otherwise in scratch memory.
    forwarded: Option<BufferSlice>,
    /// What was quantized.
    source: Option<BufferSlice>,
}

impl Q8Input {
    /// Those of `source`, which lie at `at`.
    pub(super) fn ready(at: BufferSlice, source: BufferSlice) -> Q8Input {
        Q8Input { forwarded: Some(at), source: Some(source) }
    }

    /// Whether these values are quantized.
    fn is_ready(&self, source: &BufferSlice) -> bool {
        self.source.as_ref() == Some(source)
    }

    /// Notes that these values were quantized into scratch memory.
    fn set_ready(&mut self, source: &BufferSlice) {
        *self = Q8Input { forwarded: None, source: Some(source.clone()) };
    }
}

impl WgpuDispatcher {
    /// All parts read one input, which is quantized once.
    pub(super) fn mul_mat(&mut self, call: &MulMatCall, q8: &mut Q8Input) -> LaunchCount {
        let mut launched = 0;
        if call.m == 0 {
            return Ok(0);
        }
        for part in &call.parts {
            self.queue.count_multiplications(call.m, part.weight.rows, call.k);
        }
        if let Some(launched) = self.parts_together(call, q8)? {
            return Ok(launched);
        }
        for part in call.parts.iter().filter(|part| part.weight.rows > 0) {
            launched += self.part(call, part, q8)?;
        }
        Ok(launched)
    }

    /// All parts in one launch, where there are several and M is small.
    fn parts_together(&mut self, call: &MulMatCall, q8: &mut Q8Input) -> Result<Option<usize>, BackendError> {
        let parts: Vec<&Projection> = call.parts.iter().filter(|part| part.weight.rows > 0).collect();
        if parts.len() < 2 || call.m > SMALL_M || call.residual.is_some() || call.batch_invariant {
            return Ok(None);
        }
        let mut outputs = Vec::with_capacity(parts.len());
        for part in parts {
            let n = part.weight.rows;
            self.writes(part.output);
            outputs.push(Output {
                weights: vec![self.weight("the weight", &part.weight, call.k)?],
                bias: part.bias.map(|ptr| self.matrix("the bias", ptr, 1, n)).transpose()?,
                activation: GateActivation::Silu,
                output: self.matrix("the output", part.output, call.m, n)?,
            });
        }
        let input = self.matrix("the input", call.input, call.m, call.k)?;
        self.fused(&input, [call.m, call.k], &outputs, q8, None)
    }

    /// One launch for all outputs, and one that quantizes the input if that is not done yet; `None` where one
    /// launch cannot do it. With `q8_output` it also quantizes the output.
    fn fused(
        &mut self,
        input: &BufferSlice,
        [m, k]: [u32; 2],
        outputs: &[Output],
        q8: &mut Q8Input,
        q8_output: Option<BufferSlice>,
    ) -> Result<Option<usize>, BackendError> {
        let mut fused = Vec::with_capacity(outputs.len());
        for Output { weights, bias, activation, .. } in outputs {
            let blocks = weights.iter().map(|weight| match weight.kind {
                WeightKind::Blocks(blocks) if weight.slices.len() == 1 => Some(blocks),
                _ => None,
            });
            let Some(weights) = blocks.collect::<Option<Vec<_>>>() else { return Ok(None) };
            fused.push(FusedOutput { weights, bias: bias.is_some(), activation: *activation });
        }
        let caps = self.queue.caps();
        let form = if q8_output.is_some() { OutputForm::F32AndQ8 } else { OutputForm::F32 };
        let Some((launch, roles)) = qmatmul::fused_gemv(m, &fused, form, &caps).map_err(unsupported)? else {
            return Ok(None);
        };
        let before = self.queue.len();
        let mut relocations = Relocations::default();
        let input = self.queue.bind_or_copy(input, false, &mut relocations)?;
        let activations = self.q8_activations(&input, m, k, q8)?;
        let mut bindings = Vec::with_capacity(roles.len());
        for role in roles {
            bindings.push(match role {
                FusedBuffer::Activations => activations.clone(),
                FusedBuffer::Q8Output => q8_output.clone().ok_or_else(|| GpuError::Internal {
                    call: "GateUp",
                    message: "the kernel writes q8 activations that nobody reads".to_owned(),
                })?,
                FusedBuffer::Weight(output, number) => {
                    outputs[output].weights[number].slices[0].slice.clone()
                }
                FusedBuffer::Bias(output) => {
                    let bias = outputs[output].bias.as_ref().unwrap_or(&outputs[output].output);
                    self.queue.bind_or_copy(bias, false, &mut relocations)?
                }
                FusedBuffer::Out(output) => {
                    self.queue.bind_or_copy(&outputs[output].output, true, &mut relocations)?
                }
            });
        }
        self.queue.launch(launch, bindings)?;
        self.queue.copy_back(relocations)?;
        Ok(Some(self.queue.len() - before))
    }

    /// An input that can be bound, as q8 activations; it is quantized if that is not done yet.
    fn q8_activations(
        &mut self,
        input: &BufferSlice,
        m: u32,
        k: u32,
        q8: &mut Q8Input,
    ) -> Result<BufferSlice, BackendError> {
        if !q8.is_ready(input) {
            let at = self.queue.scratch(ScratchSlot::Q8, qmatmul::q8_bytes(m, k))?;
            self.quantize(input, &at, m, k)?;
            q8.set_ready(input);
        }
        self.q8_place(q8, qmatmul::q8_bytes(m, k))
    }

    /// Where the q8 activations lie.
    fn q8_place(&mut self, q8: &Q8Input, bytes: u64) -> Result<BufferSlice, BackendError> {
        match &q8.forwarded {
            Some(at) => Ok(at.clone()),
            None => Ok(self.queue.scratch(ScratchSlot::Q8, bytes)?),
        }
    }

    /// Quantizes an input that can be bound.
    pub(super) fn quantize(
        &mut self,
        input: &BufferSlice,
        to: &BufferSlice,
        m: u32,
        k: u32,
    ) -> Result<(), BackendError> {
        let launch = qmatmul::quantize_q8(m, k, &self.queue.caps()).map_err(unsupported)?;
        self.queue.launch(launch, vec![input.clone(), to.clone()])
    }

    /// A norm that also writes its result as q8 activations.
    pub(super) fn norm_with_q8(&mut self, norm: &RmsNormCall, q8: BufferSlice) -> LaunchCount {
        let &RmsNormCall { input, gamma, output, width, rows, epsilon } = norm;
        self.writes(output);
        let x = self.matrix("the input", input, rows, width)?;
        let gamma = self.matrix("the gain", gamma, 1, width)?;
        let out = self.matrix("the output", output, rows, width)?;
        let caps = self.queue.caps();
        let launch = qmatmul::rms_norm_q8(rows, width, epsilon, &caps).map_err(unsupported)?;
        self.queue.launch(launch, vec![x, gamma, out, q8])?;
        Ok(1)
    }

    fn part(&mut self, call: &MulMatCall, part: &Projection, q8: &mut Q8Input) -> LaunchCount {
        let (m, k, n) = (call.m, call.k, part.weight.rows);
        let weight = self.weight("the weight", &part.weight, k)?;
        self.writes(part.output);
        let input = self.matrix("the input", call.input, m, k)?;
        let output = self.matrix("the output", part.output, m, n)?;
        let mut extras = Vec::new();
        let mut inputs = Vec::new();
        let mut expr = "v".to_owned();
        let bias = part.bias.map(|ptr| self.matrix("the bias", ptr, 1, n)).transpose()?;
        let residual = call.residual.map(|ptr| self.matrix("the residual", ptr, m, n)).transpose()?;
        for (slice, layout) in [(bias, EpilogueInput::PerColumn), (residual, EpilogueInput::PerElement)] {
            if let Some(slice) = slice {
                expr += &format!(" + e{}", extras.len());
                extras.push(slice);
                inputs.push(layout);
            }
        }
        let epilogue = EpilogueSource::of(expr, inputs);
        let batch_invariant = call.batch_invariant;
        let (input, output, extras, epilogue) = (&input, &output, extras.as_slice(), &epilogue);
        let operands = Operands { input, output, extras, epilogue, m, batch_invariant };
        self.matmul("MulMat", &weight, &operands, q8)
    }

    /// One launch at small M, which also writes the result as q8 activations if there is a place for them.
    /// Otherwise the gate goes to scratch memory, and the epilogue of the other matmul reads it.
    pub(super) fn gate_up(
        &mut self,
        call: &GateUpCall,
        q8: &mut Q8Input,
        q8_output: Option<BufferSlice>,
    ) -> LaunchCount {
        let (m, k, n) = (call.m, call.k, call.gate.rows);
        if m == 0 || n == 0 {
            return Ok(0);
        }
        self.queue.count_multiplications(m, n.saturating_mul(2), k);
        let gate = self.weight("the gate weight", &call.gate, k)?;
        let up = self.weight("the up weight", &call.up, k)?;
        self.writes(call.output);
        let input = self.matrix("the input", call.input, m, k)?;
        let output = self.matrix("the output", call.output, m, n)?;
        let batch_invariant = call.batch_invariant;
        if m <= SMALL_M && !batch_invariant {
            let weights = vec![Arc::clone(&gate), Arc::clone(&up)];
            let (bias, activation, output) = (None, call.activation, output.clone());
            let outputs = [Output { weights, bias, activation, output }];
            if let Some(launched) = self.fused(&input, [m, k], &outputs, q8, q8_output)? {
                return Ok(launched);
            }
        }
        let first = self.queue.scratch(ScratchSlot::FirstMatmul, u64::from(m) * u64::from(n) * 4)?;
        let none = EpilogueSource::none();
        let (input, epilogue) = (&input, &none);
        let operands = Operands { input, output: &first, extras: &[], epilogue, m, batch_invariant };
        let launched = self.matmul("GateUp", &gate, &operands, q8)?;
        let gated = match call.activation {
            GateActivation::Silu => "e0 / (1.0 + exp(-e0)) * v",
            // `0.5 (1 + tanh(y)) = 1 / (1 + exp(-2 y))`.
            GateActivation::GeluTanh => "e0 / (1.0 + exp(-e0 * (1.5957691216 + 0.0713548163 * e0 * e0))) * v",
        };
        let gated = EpilogueSource::of(gated, [EpilogueInput::PerElement]);
        let extras = [first.clone()];
        let (output, extras, epilogue) = (&output, extras.as_slice(), &gated);
        let operands = Operands { input, output, extras, epilogue, m, batch_invariant };
        Ok(launched + self.matmul("GateUp", &up, &operands, q8)?)
    }

    fn matmul(
        &mut self,
        call: &'static str,
        weight: &DeviceWeight,
        operands: &Operands<'_>,
        q8: &mut Q8Input,
    ) -> LaunchCount {
        let batch_invariant = operands.batch_invariant;
        let chooser = KernelChooser { gpu: &self.gpu, weight, exact: false, batch_invariant, forced: None };
        let WeightLaunches { launches, scratch } = chooser.launches(call, operands.m, operands.epilogue)?;
        let mut relocations = Relocations::default();
        let before = self.queue.len();
        let input = self.queue.bind_or_copy(operands.input, false, &mut relocations)?;
        let output = self.queue.bind_or_copy(operands.output, true, &mut relocations)?;
        let mut extras = Vec::with_capacity(operands.extras.len());
        for extra in operands.extras {
            extras.push(self.queue.bind_or_copy(extra, false, &mut relocations)?);
        }
        // The slice and the rows whose scratch buffer 0 holds q8 activations.
        let mut quantized = None;
        for WeightLaunch { launch: MatmulLaunch { stage, launch, buffers }, slice, rows } in launches {
            // Rows of a matrix of this width.
            let window = |whole: &BufferSlice, width: u32| {
                let at = |row: u32| whole.offset + u64::from(row) * u64::from(width) * 4;
                whole.buffer.slice(at(rows.start)..at(rows.end))
            };
            let a = window(&input, weight.k);
            if stage == MatmulStage::QuantizeActivations {
                quantized = Some((slice, rows.start));
                if q8.is_ready(&a) {
                    continue;
                }
                q8.set_ready(&a);
            }
            let mut bindings = Vec::with_capacity(buffers.len());
            for buffer in &buffers {
                bindings.push(match *buffer {
                    MatmulBuffer::A => a.clone(),
                    MatmulBuffer::B(_) => weight.slices[slice].slice.clone(),
                    MatmulBuffer::Out => window(&output, weight.n),
                    MatmulBuffer::Extra(i) => match operands.epilogue.inputs[i as usize] {
                        EpilogueInput::PerElement => window(&extras[i as usize], weight.n),
                        EpilogueInput::PerRow => window(&extras[i as usize], 1),
                        EpilogueInput::PerColumn => extras[i as usize].clone(),
                    },
                    MatmulBuffer::Scratch(i) => match i == 0 && quantized == Some((slice, rows.start)) {
                        true => self.q8_place(q8, scratch[0])?,
                        false => {
                            let slot = ScratchSlot::LaunchList(i as usize);
                            self.queue.scratch(slot, scratch[i as usize])?
                        }
                    },
                });
            }
            self.queue.launch(launch, bindings)?;
        }
        let launched = self.queue.len() - before;
        self.queue.copy_back(relocations)?;
        Ok(launched)
    }
}
