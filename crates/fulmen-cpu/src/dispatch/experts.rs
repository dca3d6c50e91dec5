//! Mixture of experts: routing and matmuls by expert id.

use fulmen_core::{BackendError, ExpertDownCall, ExpertGateUpCall, NO_EXPERT, RouteCall, WeightArg};

use super::{CpuDispatcher, Launched};
use crate::buffer::Span;
use crate::kernels::mul_mat::{ExpertIds, ExpertWeight, Residual, Weight, expert_down, expert_gate_up};
use crate::kernels::route;

/// The ids of an expert call, each checked or [`NO_EXPERT`].
fn checked_ids(ids: Span, top: u32, n_experts: u32) -> Result<ExpertIds<'static>, BackendError> {
    // SAFETY: looked up; the caller checked that no output overlaps them.
    let ids: &[u32] = unsafe { ids.slice() };
    if let Some(at) = ids.iter().position(|&id| id >= n_experts && id != NO_EXPERT) {
        let (row, value) = (at / top as usize, ids[at]);
        return Err(BackendError::Index { what: "the expert", row, value, limit: n_experts });
    }
    Ok(ExpertIds { ids, top: top as usize, n_experts: n_experts as usize })
}

/// The weight of all experts.
///
/// # Safety
/// Both were looked up with the sizes of the weight, and nothing writes to them meanwhile.
unsafe fn expert_weight(arg: &WeightArg, bytes: Span, bias: Option<Span>, k: u32) -> ExpertWeight<'static> {
    // SAFETY: by the contract.
    let (bytes, bias) = unsafe { (bytes.slice(), bias.map(|bias| bias.slice())) };
    ExpertWeight { weight: Weight::new(arg.dtype, bytes, arg.rows as usize, k as usize), bias }
}

impl CpuDispatcher {
    pub(super) fn route(&mut self, call: &RouteCall) -> Launched {
        let &RouteCall { m, n_experts, route: spec, .. } = call;
        let count = m as usize * spec.top as usize;
        let logits = self.f32_rows("the logits", call.logits, m, n_experts)?;
        let bias = self.optional_bias("the selection bias", call.bias, n_experts)?;
        let weights = self.memory.span_mut::<f32>("the weights", call.weights, count)?;
        let ids = self.memory.span_mut::<u32>("the expert ids", call.ids, count)?;
        for output in [weights, ids] {
            output.apart_from(logits)?;
            bias.map_or(Ok(()), |bias| output.apart_from(bias))?;
        }
        weights.apart_from(ids)?;
        // SAFETY: looked up, and disjoint from each other.
        unsafe {
            let bias = bias.map(|bias| bias.slice());
            let (weights, ids) = (weights.slice_mut(), ids.slice_mut());
            route::route(&self.pool, logits.slice(), n_experts as usize, bias, &spec, weights, ids);
            if let Some(part) = call.part {
                ids.iter_mut().for_each(|id| *id = part.id(*id));
            }
        }
        Ok(1)
    }

    fn optional_bias(
        &self,
        what: &'static str,
        ptr: Option<u64>,
        len: u32,
    ) -> Result<Option<Span>, BackendError> {
        ptr.map(|ptr| self.f32_rows(what, ptr, 1, len)).transpose()
    }

    pub(super) fn expert_gate_up(&mut self, call: &ExpertGateUpCall) -> Launched {
        let &ExpertGateUpCall { m, k, top, n_experts, .. } = call;
        let x = self.f32_rows("the input", call.input, m, k)?;
        let ids = self.memory.span::<u32>("the expert ids", call.ids, m as usize * top as usize)?;
        let gate = self.weight("the gate weight", &call.gate, k)?;
        let up = self.weight("the up weight", &call.up, k)?;
        let gate_bias = self.optional_bias("the gate bias", call.gate_bias, call.gate.rows)?;
        let up_bias = self.optional_bias("the up bias", call.up_bias, call.up.rows)?;
        let out = self.f32_rows_mut("the output", call.output, m, top * call.n())?;
        for operand in [Some(x), Some(ids), Some(gate), Some(up), gate_bias, up_bias].into_iter().flatten() {
            out.apart_from(operand)?;
        }
        let (experts, scratch) = (checked_ids(ids, top, n_experts)?, &mut self.experts);
        // SAFETY: looked up, and the output is disjoint from what is read.
        unsafe {
            let gate = expert_weight(&call.gate, gate, gate_bias, k);
            let up = expert_weight(&call.up, up, up_bias, k);
            let (x, out, by_rows) = (x.slice(), out.slice_mut(), call.batch_invariant);
            let activation = call.activation;
            expert_gate_up(&self.pool, self.isa, scratch, experts, [gate, up], activation, x, by_rows, out);
        }
        Ok(1)
    }

    pub(super) fn expert_down(&mut self, call: &ExpertDownCall) -> Launched {
        let &ExpertDownCall { m, k, top, n_experts, .. } = call;
        let (n, pairs) = (call.n(), m as usize * top as usize);
        let x = self.f32_rows("the input", call.input, m, top * k)?;
        let ids = self.memory.span::<u32>("the expert ids", call.ids, pairs)?;
        let weights = self.memory.span::<f32>("the routing weights", call.weights, pairs)?;
        let down = self.weight("the down weight", &call.down, k)?;
        let bias = self.optional_bias("the bias", call.bias, call.down.rows)?;
        let residual = call.residual.map(|ptr| self.f32_rows("the residual", ptr, m, n)).transpose()?;
        let out = self.f32_rows_mut("the output", call.output, m, n)?;
        residual.map_or(Ok(()), |residual| out.apart_or_same(residual))?;
        for operand in [Some(x), Some(ids), Some(weights), Some(down), bias].into_iter().flatten() {
            out.apart_from(operand)?;
        }
        let (experts, scratch) = (checked_ids(ids, top, n_experts)?, &mut self.experts);
        // SAFETY: looked up, and the output is the residual or disjoint from what is read.
        unsafe {
            let residual = match residual {
                None => Residual::None,
                Some(residual) if residual.ptr == out.ptr => Residual::InPlace,
                Some(residual) => Residual::Rows { data: residual.slice(), stride: n as usize },
            };
            let down = expert_weight(&call.down, down, bias, k);
            let (weights, x, out) = (weights.slice(), x.slice(), out.slice_mut());
            let (isa, by_rows) = (self.isa, call.batch_invariant);
            expert_down(&self.pool, isa, scratch, experts, down, weights, x, residual, by_rows, out);
        }
        Ok(1)
    }
}
