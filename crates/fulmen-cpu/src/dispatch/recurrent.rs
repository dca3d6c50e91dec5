//! Layers with a recurrent state: causal convolution, the gated delta rule, sigmoid gates.

use fulmen_core::{
    BackendError, CausalConvCall, GatedDeltaRuleCall, NO_STATE, RecurrentState, SigmoidGateCall,
};

use super::operands::check_below;
use super::{CpuDispatcher, Launched};
use crate::buffer::Span;
use crate::kernels::causal_conv::{CausalConv, causal_conv};
use crate::kernels::gated_delta_rule::{GatedDeltaRule, gated_delta_rule};
use crate::kernels::sigmoid_gate;

/// An error if an output overlaps an operand or another output.
fn apart(outputs: [Span; 2], operands: &[Option<Span>]) -> Result<(), BackendError> {
    for output in outputs {
        operands.iter().flatten().try_for_each(|operand| output.apart_from(*operand))?;
    }
    outputs[0].apart_from(outputs[1])
}

/// An error if a row that is not inactive has no slot of the state.
fn check_states(sequences: Option<&[u32]>, state: RecurrentState) -> Result<(), BackendError> {
    let slot = |&number: &u32| if number == NO_STATE { 0 } else { number };
    let slots: Vec<u32> = sequences.unwrap_or(&[]).iter().map(slot).collect();
    check_below("the sequence", &slots, state.n_seqs)
}

/// The output of inactive rows is 0.
fn clear_inactive(output: &mut [f32], sequences: Option<&[u32]>) {
    let Some(sequences) = sequences.filter(|sequences| !sequences.is_empty()) else { return };
    let rows = output.chunks_exact_mut(output.len() / sequences.len());
    let inactive = rows.zip(sequences).filter(|(_, number)| **number == NO_STATE);
    inactive.for_each(|(row, _)| row.fill(0.0));
}

impl CpuDispatcher {
    fn recurrent_state(&self, state: RecurrentState, width: usize) -> Result<Span, BackendError> {
        self.memory.span_mut::<f32>("the state", state.ptr, (state.n_seqs as usize).saturating_mul(width))
    }

    pub(super) fn causal_conv(&mut self, call: &CausalConvCall) -> Launched {
        let &CausalConvCall { m, channels, taps, .. } = call;
        let input = self.f32_rows("the input", call.input, m, channels)?;
        let weight = self.f32_rows("the weight", call.weight, channels, taps)?;
        let positions = self.indices("positions", call.positions, m)?;
        let sequences = call.sequences.map(|ptr| self.indices("sequences", ptr, m)).transpose()?;
        let state = self.recurrent_state(call.state, call.state_width())?;
        let output = self.f32_rows_mut("the output", call.output, m, channels)?;
        apart([state, output], &[Some(input), Some(weight), Some(positions), sequences])?;
        // SAFETY: looked up, and disjoint from what is written.
        let sequences = unsafe { sequences.map(|sequences| sequences.slice()) };
        check_states(sequences, call.state)?;
        // SAFETY: looked up, and what is written is disjoint from the rest.
        let conv = unsafe {
            CausalConv {
                input: input.slice(),
                weight: weight.slice(),
                state: state.slice_mut(),
                positions: positions.slice(),
                sequences,
                output: output.slice_mut(),
                channels: channels as usize,
                taps: taps as usize,
            }
        };
        clear_inactive(conv.output, sequences);
        causal_conv(&self.pool, self.isa, conv);
        Ok(1)
    }

    pub(super) fn gated_delta_rule(&mut self, call: &GatedDeltaRuleCall) -> Launched {
        let &GatedDeltaRuleCall { m, heads, epsilon, .. } = call;
        let values = heads.n_v_heads;
        let input = self.f32_rows("the input", call.input, m, heads.width())?;
        let alpha = self.f32_rows("alpha", call.alpha, m, values)?;
        let beta = self.f32_rows("beta", call.beta, m, values)?;
        let decay = self.f32_rows("the decay", call.decay, 1, values)?;
        let dt = self.f32_rows("dt", call.dt, 1, values)?;
        let positions = self.indices("positions", call.positions, m)?;
        let sequences = call.sequences.map(|ptr| self.indices("sequences", ptr, m)).transpose()?;
        let state = self.recurrent_state(call.state, heads.state_width() as usize)?;
        let output = self.f32_rows_mut("the output", call.output, m, heads.value_width())?;
        let reads = [input, alpha, beta, decay, dt, positions].map(Some);
        apart([state, output], &reads)?;
        apart([state, output], &[sequences])?;
        // SAFETY: looked up, and disjoint from what is written.
        let sequences = unsafe { sequences.map(|sequences| sequences.slice()) };
        check_states(sequences, call.state)?;
        // SAFETY: looked up, and what is written is disjoint from the rest.
        let rule = unsafe {
            GatedDeltaRule {
                input: input.slice(),
                alpha: alpha.slice(),
                beta: beta.slice(),
                decay: decay.slice(),
                dt: dt.slice(),
                state: state.slice_mut(),
                positions: positions.slice(),
                sequences,
                output: output.slice_mut(),
                heads,
                epsilon,
            }
        };
        clear_inactive(rule.output, sequences);
        gated_delta_rule(&self.pool, self.isa, rule);
        Ok(1)
    }

    pub(super) fn sigmoid_gate(&mut self, call: &SigmoidGateCall) -> Launched {
        let &SigmoidGateCall { m, n, gates, .. } = call;
        let input = self.f32_rows("the input", call.input, m, n)?;
        let gate = self.f32_rows("the gate", call.gate, m, gates)?;
        let output = self.f32_rows_mut("the output", call.output, m, n)?;
        output.apart_or_same(input)?;
        output.apart_from(gate)?;
        let (x, out) = (input.ptr.cast::<f32>().cast_const(), output.ptr.cast::<f32>());
        // SAFETY: looked up; the output is the input or disjoint from it, and disjoint from the gate.
        unsafe {
            let gate = gate.slice();
            sigmoid_gate::sigmoid_gate(&self.pool, self.isa, x, gate, out, n as usize, gates as usize);
        }
        Ok(1)
    }
}
