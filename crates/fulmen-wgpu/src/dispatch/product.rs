//! Products: one or several weights of one input, with bias and residual, gate-up, and the norm before them.
//!
//! Few rows by several block weights are one launch ([`qmatmul::joint`]); everything else is a product after the other. The
//! codes of an input are made once, and where a norm, attention or gate-up makes the input, by its last launch.

use std::sync::Arc;

use fulmen_core::{BackendError, GateUpCall, MatPart, MulMatCall, RmsNormCall, WeightArg};

use super::{LaunchCount, WgpuDispatcher};
use crate::buffer::BufferSlice;
use crate::kernels::matmul::{EpilogueInput, EpilogueSource, Role};
use crate::kernels::qmatmul::{self, JointRole, Next, Section};
use crate::product::{Chooser, Planned, ProductPlan};
use crate::queue::{Relocations, ScratchSlot, unsupported};
use crate::weight::{DeviceWeight, Kind};

/// The name of the kernel that makes codes of an input.
const QUANTIZE: &str = "qmatmul quantize";

/// Rows of an input up to which block weights are multiplied in one launch, and the codes made with the input.
pub(super) const FEW_ROWS: u32 = 8;

/// Weights whose products make one output, and where that goes.
struct Output {
    weights: Vec<Arc<DeviceWeight>>,
    bias: Option<BufferSlice>,
    output: BufferSlice,
}

/// What a product reads and writes beside its weight.
struct Operands<'a> {
    /// `[m, k]`.
    input: &'a BufferSlice,
    /// `[m, n]`.
    output: &'a BufferSlice,
    /// What the epilogue reads.
    extras: &'a [BufferSlice],
    epilogue: &'a EpilogueSource,
    m: u32,
}

impl WgpuDispatcher {
    /// All parts read one input, whose codes are made once.
    pub(super) fn mul_mat(&mut self, call: &MulMatCall) -> LaunchCount {
        let mut launched = 0;
        if call.m == 0 {
            return Ok(0);
        }
        for part in &call.parts {
            self.queue.count_multiplications(call.m, part.weight.rows, call.k);
        }
        if let Some(launched) = self.parts_together(call)? {
            return Ok(launched);
        }
        for part in call.parts.iter().filter(|part| part.weight.rows > 0) {
            launched += self.part(call, part)?;
        }
        Ok(launched)
    }

    /// All parts in one launch, where they are several, and few rows.
    fn parts_together(&mut self, call: &MulMatCall) -> Result<Option<usize>, BackendError> {
        let parts: Vec<&MatPart> = call.parts.iter().filter(|part| part.weight.rows > 0).collect();
        if parts.len() < 2 || call.m > FEW_ROWS || call.residual.is_some() {
            return Ok(None);
        }
        let mut outputs = Vec::with_capacity(parts.len());
        for part in parts {
            let n = part.weight.rows;
            self.writes(part.output);
            outputs.push(Output {
                weights: vec![self.weight("the weight", &part.weight, call.k)?],
                bias: part.bias.map(|ptr| self.matrix("the bias", ptr, 1, n)).transpose()?,
                output: self.matrix("the output", part.output, call.m, n)?,
            });
        }
        let input = self.matrix("the input", call.input, call.m, call.k)?;
        self.together(&input, call.m, call.k, &outputs, false)
    }

    /// One launch for all outputs, and one for the codes if they are not there; `None` where that cannot be. With `codes` it
    /// makes also the codes of the output, if it can: another product reads it next.
    fn together(
        &mut self,
        input: &BufferSlice,
        m: u32,
        k: u32,
        outputs: &[Output],
        codes: bool,
    ) -> Result<Option<usize>, BackendError> {
        let mut sections = Vec::with_capacity(outputs.len());
        for Output { weights, bias, .. } in outputs {
            let blocks = weights.iter().map(|weight| match weight.kind {
                Kind::Blocks(blocks) if weight.parts.len() == 1 => Some(blocks),
                _ => None,
            });
            let Some(weights) = blocks.collect::<Option<Vec<_>>>() else { return Ok(None) };
            sections.push(Section { weights, bias: bias.is_some() });
        }
        let caps = self.queue.caps();
        // A result that is moved afterwards has no codes.
        let next = if codes && self.queue.can_bind(&[&outputs[0].output]) { Next::Codes } else { Next::None };
        let Some((launch, roles)) = qmatmul::joint(m, &sections, next, &caps).map_err(unsupported)? else {
            return Ok(None);
        };
        let makes_codes = roles.contains(&JointRole::NextCodes);
        let before = self.queue.len();
        let mut places = Relocations::default();
        let input = self.queue.bind_or_copy(input, false, &mut places)?;
        let codes = self.codes(&input, m, k)?;
        let mut bindings = Vec::with_capacity(roles.len());
        for role in roles {
            bindings.push(match role {
                JointRole::Codes => codes.clone(),
                JointRole::NextCodes => {
                    let bytes = qmatmul::codes_bytes(m, outputs[0].weights[0].n);
                    self.queue.scratch(ScratchSlot::NextQ8, bytes)?
                }
                JointRole::Weight(section, number) => outputs[section].weights[number].parts[0].slice.clone(),
                JointRole::Bias(section) => {
                    let bias = outputs[section].bias.as_ref().unwrap_or(&outputs[section].output);
                    self.queue.bind_or_copy(bias, false, &mut places)?
                }
                JointRole::Out(section) => {
                    self.queue.bind_or_copy(&outputs[section].output, true, &mut places)?
                }
            });
        }
        self.queue.launch(launch, bindings)?;
        if makes_codes {
            self.queue.set_next_q8(&outputs[0].output);
        }
        self.queue.copy_back(places)?;
        Ok(Some(self.queue.len() - before))
    }

    /// The codes of an input that can be bound, made if they are not there.
    fn codes(&mut self, input: &BufferSlice, m: u32, k: u32) -> Result<BufferSlice, BackendError> {
        let codes = self.queue.scratch(ScratchSlot::Q8, qmatmul::codes_bytes(m, k))?;
        if !self.queue.has_q8(input) {
            let launch = qmatmul::quantize_a(m, k, &self.queue.caps()).map_err(unsupported)?;
            self.queue.launch(launch, vec![input.clone(), codes.clone()])?;
            self.queue.set_q8(input);
        }
        Ok(codes)
    }

    /// Whether any of the weights takes its input as codes.
    pub(super) fn any_blocks(&mut self, weights: &[&WeightArg], k: u32) -> Result<bool, BackendError> {
        let mut blocks = false;
        for arg in weights.iter().filter(|arg| arg.rows > 0) {
            blocks |= matches!(self.weight("the weight", arg, k)?.kind, Kind::Blocks(_));
        }
        Ok(blocks)
    }

    /// A norm whose result block weights of the next call are multiplied by: its codes are made with it. `None` where that
    /// is not so.
    pub(super) fn norm_with_q8(
        &mut self,
        norm: &RmsNormCall,
        weights: &[&WeightArg],
    ) -> Result<Option<usize>, BackendError> {
        let &RmsNormCall { input, gamma, output, width, rows, epsilon } = norm;
        if rows == 0 || rows > FEW_ROWS || width == 0 || !width.is_multiple_of(32) || input == output {
            return Ok(None);
        }
        if !self.any_blocks(weights, width)? {
            return Ok(None);
        }
        self.writes(output);
        let x = self.matrix("the input", input, rows, width)?;
        let gamma = self.matrix("the gain", gamma, 1, width)?;
        let out = self.matrix("the output", output, rows, width)?;
        if !self.queue.can_bind(&[&x, &gamma, &out]) {
            return Ok(None);
        }
        let codes = self.queue.scratch(ScratchSlot::Q8, qmatmul::codes_bytes(rows, width))?;
        let caps = self.queue.caps();
        let launch = qmatmul::norm_and_codes(rows, width, epsilon, &caps).map_err(unsupported)?;
        self.queue.launch(launch, vec![x, gamma, out.clone(), codes])?;
        self.queue.set_q8(&out);
        Ok(Some(1))
    }

    fn part(&mut self, call: &MulMatCall, part: &MatPart) -> LaunchCount {
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
        let operands = Operands { input: &input, output: &output, extras: &extras, epilogue: &epilogue, m };
        self.product("MulMat", &weight, &operands)
    }

    /// Few rows in one launch. Otherwise the gate's product goes to scratch memory, and the end of the other one reads it.
    pub(super) fn gate_up(&mut self, call: &GateUpCall) -> LaunchCount {
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
        if m <= FEW_ROWS {
            let weights = vec![Arc::clone(&gate), Arc::clone(&up)];
            let outputs = [Output { weights, bias: None, output: output.clone() }];
            if let Some(launched) = self.together(&input, m, k, &outputs, true)? {
                return Ok(launched);
            }
        }
        let first = self.queue.scratch(ScratchSlot::FirstMatmul, u64::from(m) * u64::from(n) * 4)?;
        let none = EpilogueSource::none();
        let operands = Operands { input: &input, output: &first, extras: &[], epilogue: &none, m };
        let launched = self.product("GateUp", &gate, &operands)?;
        let silu = EpilogueSource::of("e0 / (1.0 + exp(-e0)) * v", [EpilogueInput::PerElement]);
        let extras = [first.clone()];
        let operands = Operands { input: &input, output: &output, extras: &extras, epilogue: &silu, m };
        Ok(launched + self.product("GateUp", &up, &operands)?)
    }

    fn product(&mut self, call: &'static str, weight: &DeviceWeight, operands: &Operands<'_>) -> LaunchCount {
        let chooser = Chooser { gpu: &self.gpu, weight, exact: false, forced: None };
        let ProductPlan { launches, scratch } = chooser.plan(call, operands.m, operands.epilogue)?;
        let mut places = Relocations::default();
        let before = self.queue.len();
        let input = self.queue.bind_or_copy(operands.input, false, &mut places)?;
        let output = self.queue.bind_or_copy(operands.output, true, &mut places)?;
        let mut extras = Vec::with_capacity(operands.extras.len());
        for extra in operands.extras {
            extras.push(self.queue.bind_or_copy(extra, false, &mut places)?);
        }
        // The part and the rows whose scratch buffer 0 holds codes.
        let mut coded = None;
        for Planned { launch, roles, part, rows } in launches {
            // Rows of a matrix with so many columns.
            let window = |slice: &BufferSlice, width: u32| {
                let at = |row: u32| slice.offset + u64::from(row) * u64::from(width) * 4;
                slice.buffer.slice(at(rows.start)..at(rows.end))
            };
            let a = window(&input, weight.k);
            let codes = launch.kernel.label == QUANTIZE;
            if codes {
                coded = Some((part, rows.start));
                if self.queue.has_q8(&a) {
                    continue;
                }
            }
            let mut bindings = Vec::with_capacity(roles.len());
            for role in &roles {
                bindings.push(match *role {
                    Role::A => a.clone(),
                    Role::B(_) => weight.parts[part].slice.clone(),
                    Role::Out => window(&output, weight.n),
                    Role::Extra(i) => match operands.epilogue.inputs[i as usize] {
                        EpilogueInput::PerElement => window(&extras[i as usize], weight.n),
                        EpilogueInput::PerRow => window(&extras[i as usize], 1),
                        EpilogueInput::PerColumn => extras[i as usize].clone(),
                    },
                    Role::Scratch(i) => {
                        let is_codes = i == 0 && coded == Some((part, rows.start));
                        let slot = if is_codes { ScratchSlot::Q8 } else { ScratchSlot::Plan(i as usize) };
                        self.queue.scratch(slot, scratch[i as usize])?
                    }
                });
            }
            self.queue.launch(launch, bindings)?;
            if codes {
                self.queue.set_q8(&a);
            }
        }
        let launched = self.queue.len() - before;
        self.queue.copy_back(places)?;
        Ok(launched)
    }
}
