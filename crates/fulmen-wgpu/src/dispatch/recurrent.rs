//! Layers with a recurrent state: causal convolution, the gated delta rule, sigmoid gates.

use fulmen_core::{BackendError, CausalConvCall, GatedDeltaRuleCall, RecurrentState, SigmoidGateCall};

use super::{LaunchCount, WgpuDispatcher};
use crate::buffer::BufferSlice;
use crate::kernels::{
    Role,
    recurrent::{StateRows, causal_conv, gated_delta_rule, sigmoid_gate},
};

impl WgpuDispatcher {
    /// The operands of rows with a state: positions, sequence numbers, the state and the record of faults.
    fn state_operands(
        &mut self,
        state: RecurrentState,
        width: usize,
        [positions, sequences]: [Option<u64>; 2],
        m: u32,
    ) -> Result<Vec<(Role, BufferSlice)>, BackendError> {
        self.writes(state.ptr);
        let values = (state.n_seqs as usize).saturating_mul(width);
        let mut operands = vec![
            (Role::Output(1), self.at("the state", state.ptr, values)?),
            (Role::Output(2), self.queue.fault()),
        ];
        for (number, (what, ptr)) in
            [("positions", positions), ("sequences", sequences)].into_iter().enumerate()
        {
            if let Some(ptr) = ptr {
                operands.push((Role::Input(1 + number), self.at(what, ptr, m as usize)?));
            }
        }
        Ok(operands)
    }

    pub(super) fn causal_conv(&mut self, call: &CausalConvCall) -> LaunchCount {
        let &CausalConvCall { state, m, channels, taps, sequences, .. } = call;
        self.writes(call.output);
        let slots = [Some(call.positions), sequences];
        let mut operands = self.state_operands(state, call.state_width(), slots, m)?;
        operands.extend([
            (Role::Input(0), self.matrix("the input", call.input, m, channels)?),
            (Role::Input(3), self.matrix("the weight", call.weight, channels, taps)?),
            (Role::Output(0), self.matrix("the output", call.output, m, channels)?),
        ]);
        let rows = StateRows { m, n_seqs: state.n_seqs, sequences: sequences.is_some() };
        let launches = causal_conv(rows, channels, taps, &self.queue.caps());
        self.queue.run_launches_with(launches, operands)
    }

    pub(super) fn gated_delta_rule(&mut self, call: &GatedDeltaRuleCall) -> LaunchCount {
        let &GatedDeltaRuleCall { state, m, heads, epsilon, sequences, .. } = call;
        let values = heads.n_v_heads;
        self.writes(call.output);
        let slots = [Some(call.positions), sequences];
        let mut operands = self.state_operands(state, heads.state_width() as usize, slots, m)?;
        operands.extend([
            (Role::Input(0), self.matrix("the input", call.input, m, heads.width())?),
            (Role::Input(3), self.matrix("alpha", call.alpha, m, values)?),
            (Role::Input(4), self.matrix("beta", call.beta, m, values)?),
            (Role::Input(5), self.matrix("the decay", call.decay, 1, values)?),
            (Role::Input(6), self.matrix("dt", call.dt, 1, values)?),
            (Role::Output(0), self.matrix("the output", call.output, m, heads.value_width())?),
        ]);
        let rows = StateRows { m, n_seqs: state.n_seqs, sequences: sequences.is_some() };
        let launches = gated_delta_rule(rows, heads, epsilon, &self.queue.caps());
        self.queue.run_launches_with(launches, operands)
    }

    pub(super) fn sigmoid_gate(&mut self, call: &SigmoidGateCall) -> LaunchCount {
        let &SigmoidGateCall { input, gate, output, m, n, gates } = call;
        self.writes(output);
        let in_place = input == output;
        let mut operands = vec![
            (Role::Input(1), self.matrix("the gate", gate, m, gates)?),
            (Role::Output(0), self.matrix("the output", output, m, n)?),
        ];
        if !in_place {
            operands.push((Role::Input(0), self.matrix("the input", input, m, n)?));
        }
        let launches = sigmoid_gate(m, n, gates, in_place, &self.queue.caps());
        self.queue.run_launches_with(launches, operands)
    }
}
