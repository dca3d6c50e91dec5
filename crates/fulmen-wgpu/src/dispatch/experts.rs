//! Mixture of experts: routing and matmuls by expert id. One launch per slice of a weight.

use std::sync::Arc;

use fulmen_core::{BackendError, DType, ExpertDownCall, ExpertGateUpCall, RouteCall};

use super::{LaunchCount, WgpuDispatcher};
use crate::buffer::BufferSlice;
use crate::kernels::{
    Role,
    experts::{ExpertMatmul, PairOutput, SumResidual, expert_matmul, expert_sum, route},
    matmul::WeightType,
};
use crate::queue::ScratchSlot;
use crate::weight::{DeviceWeight, WeightKind};

/// The rows of a call and their experts.
struct Pairs {
    /// `[m, k]`, or `[m, top, k]` if `by_pair`.
    x: BufferSlice,
    by_pair: bool,
    /// `[m, top]`.
    ids: BufferSlice,
    m: u32,
    top: u32,
    n_experts: u32,
}

impl WgpuDispatcher {
    pub(super) fn route(&mut self, call: &RouteCall) -> LaunchCount {
        let &RouteCall { logits, bias, weights, ids, m, n_experts, route: spec, .. } = call;
        self.writes(weights);
        self.writes(ids);
        let count = (m as usize).saturating_mul(spec.top as usize);
        let mut operands = vec![
            (Role::Input(0), self.matrix("the logits", logits, m, n_experts)?),
            (Role::Output(0), self.at("the weights", weights, count)?),
            (Role::Output(1), self.at("the expert ids", ids, count)?),
        ];
        if let Some(ptr) = bias {
            operands.push((Role::Input(1), self.matrix("the selection bias", ptr, 1, n_experts)?));
        }
        let launches = route(m, n_experts, &spec, bias.is_some(), call.held(), &self.queue.caps());
        self.queue.run_launches_with(launches, operands)
    }

    /// The gate projections go to scratch memory, and the epilogue of the up projections reads them.
    pub(super) fn expert_gate_up(&mut self, call: &ExpertGateUpCall) -> LaunchCount {
        let &ExpertGateUpCall { m, k, top, n_experts, activation, .. } = call;
        let n = call.n();
        if m == 0 || n == 0 {
            return Ok(0);
        }
        let gate = self.weight("the gate weight", &call.gate, k)?;
        let up = self.weight("the up weight", &call.up, k)?;
        self.writes(call.output);
        let pairs = (m as usize).saturating_mul(top as usize);
        let operands = Pairs {
            x: self.matrix("the input", call.input, m, k)?,
            by_pair: false,
            ids: self.at("the expert ids", call.ids, pairs)?,
            m,
            top,
            n_experts,
        };
        let gate_bias =
            call.gate_bias.map(|ptr| self.matrix("the gate bias", ptr, n_experts, n)).transpose()?;
        let up_bias = call.up_bias.map(|ptr| self.matrix("the up bias", ptr, n_experts, n)).transpose()?;
        let output = self.matrix("the output", call.output, m, top.saturating_mul(n))?;
        let gates = self.queue.scratch(ScratchSlot::FirstMatmul, pairs as u64 * u64::from(n) * 4)?;
        let launched = self.pair_projection(&operands, &gate, gate_bias, &gates, PairOutput::Plain, None)?;
        let gated = PairOutput::Gated(activation);
        let more = self.pair_projection(&operands, &up, up_bias, &output, gated, Some(gates))?;
        Ok(launched + more)
    }

    /// The weighted results of all pairs go to scratch memory, and are summed.
    pub(super) fn expert_down(&mut self, call: &ExpertDownCall) -> LaunchCount {
        let &ExpertDownCall { m, k, top, n_experts, .. } = call;
        let n = call.n();
        if m == 0 || n == 0 {
            return Ok(0);
        }
        let down = self.weight("the down weight", &call.down, k)?;
        self.writes(call.output);
        let pairs = (m as usize).saturating_mul(top as usize);
        let operands = Pairs {
            x: self.matrix("the input", call.input, m, top.saturating_mul(k))?,
            by_pair: true,
            ids: self.at("the expert ids", call.ids, pairs)?,
            m,
            top,
            n_experts,
        };
        let weights = self.at("the routing weights", call.weights, pairs)?;
        let bias = call.bias.map(|ptr| self.matrix("the bias", ptr, n_experts, n)).transpose()?;
        let results = self.queue.scratch(ScratchSlot::FirstMatmul, pairs as u64 * u64::from(n) * 4)?;
        let launched =
            self.pair_projection(&operands, &down, bias, &results, PairOutput::Weighted, Some(weights))?;
        let residual = match call.residual {
            None => SumResidual::None,
            Some(residual) if residual == call.output => SumResidual::InPlace,
            Some(_) => SumResidual::Operand,
        };
        let mut operands = vec![
            (Role::Input(0), results),
            (Role::Input(2), operands.ids),
            (Role::Output(0), self.matrix("the output", call.output, m, n)?),
        ];
        if let (SumResidual::Operand, Some(ptr)) = (residual, call.residual) {
            operands.push((Role::Input(1), self.matrix("the residual", ptr, m, n)?));
        }
        let launches = expert_sum(m, top, n, residual, &self.queue.caps());
        Ok(launched + self.queue.run_launches_with(launches, operands)?)
    }

    fn pair_projection(
        &mut self,
        pairs: &Pairs,
        weight: &Arc<DeviceWeight>,
        bias: Option<BufferSlice>,
        out: &BufferSlice,
        output: PairOutput,
        extra: Option<BufferSlice>,
    ) -> Result<usize, BackendError> {
        let &Pairs { by_pair, m, top, n_experts, .. } = pairs;
        let (n, k) = (weight.n / n_experts.max(1), weight.k);
        self.queue.count_multiplications(m.saturating_mul(top), n, k);
        let dtype = match weight.kind {
            WeightKind::Plain(WeightType::F32) => DType::F32,
            WeightKind::Plain(WeightType::F16) => DType::F16,
            WeightKind::Plain(WeightType::Bf16) => DType::BF16,
            WeightKind::Blocks(blocks) => blocks.dtype,
        };
        let mut launched = 0;
        for part in &weight.slices {
            let (slice, bias_given) = (part.rows.clone(), bias.is_some());
            let spec =
                ExpertMatmul { dtype, n, k, n_experts, top, m, by_pair, slice, bias: bias_given, output };
            let launches = expert_matmul(&spec, &self.queue.caps());
            let mut operands = vec![
                (Role::Input(0), part.slice.clone()),
                (Role::Input(1), pairs.x.clone()),
                (Role::Input(2), pairs.ids.clone()),
                (Role::Output(0), out.clone()),
                (Role::Output(1), self.queue.fault()),
            ];
            operands.extend(bias.clone().map(|bias| (Role::Input(3), bias)));
            operands.extend(extra.clone().map(|extra| (Role::Input(4), extra)));
            launched += self.queue.run_launches_with(launches, operands)?;
        }
        Ok(launched)
    }
}
