//! Recording of a mixture of experts: routing, and matmuls by expert id.

use super::build::{Built, GraphBuilder, Tensor, id_of};
use super::builder_call::BuilderCall;
use super::op::{Linear, Op};
use super::{Role, TensorDef};
use crate::{DType, ExpertPart, GatedActivation, Problem, RouteSpec};

/// The experts of the rows of a batch: see [`GraphBuilder::route`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routed {
    /// Routing weights, `[m, top]`.
    pub weights: Tensor,
    /// Expert ids, `[m, top]` u32, or [`NO_EXPERT`](crate::NO_EXPERT).
    pub ids: Tensor,
    /// Experts of the layer that are here.
    pub n_experts: u32,
}

/// One projection of all experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertLinear {
    /// `[n_experts · n, k]`.
    pub weight: Tensor,
    /// `[n_experts, n]`.
    pub bias: Option<Tensor>,
}

impl From<Tensor> for ExpertLinear {
    fn from(weight: Tensor) -> ExpertLinear {
        ExpertLinear { weight, bias: None }
    }
}

impl ExpertLinear {
    fn ids(self) -> Linear {
        Linear { weight: self.weight.id(), bias: id_of(self.bias) }
    }
}

impl BuilderCall<'_> {
    /// The ids of experts for `m` rows; returns their number per row.
    fn expert_ids(&self, routed: Routed, m: u32) -> Built<u32> {
        let (rows, top) = self.words("the expert ids", routed.ids)?;
        self.size("the rows of the expert ids", m, rows)?;
        self.check(crate::graph::check_experts(routed.n_experts))?;
        self.check(crate::graph::check_experts_per_row(top, routed.n_experts))?;
        Ok(top)
    }

    /// A projection of all experts; returns the rows of each.
    fn expert_linear(&self, what: &'static str, linear: ExpertLinear, n_experts: u32, k: u32) -> Built<u32> {
        let rows = self.weight(what, linear.weight, k)?;
        if !rows.is_multiple_of(n_experts) {
            return self.fail(Problem::Multiple { what, of: n_experts.into(), got: rows.into() });
        }
        let n = rows / n_experts;
        linear.bias.map_or(Ok(()), |bias| self.rows_of("the bias of the experts", bias, n_experts, n))?;
        Ok(n)
    }
}

impl GraphBuilder {
    /// The experts of each row by the logits `[m, n_experts]` of a router, and their weights. `bias` (one
    /// value per expert) is added to the scores for the selection, not to the weights.
    pub fn route(&mut self, logits: Tensor, bias: Option<Tensor>, route: RouteSpec) -> Built<Routed> {
        self.route_among(logits, bias, route, None)
    }

    /// As [`route`](GraphBuilder::route) where only some of the experts are here: the matmuls that follow
    /// have the weights of those alone, and skip the others.
    pub fn route_part(
        &mut self,
        logits: Tensor,
        bias: Option<Tensor>,
        route: RouteSpec,
        part: ExpertPart,
    ) -> Built<Routed> {
        self.route_among(logits, bias, route, Some(part))
    }

    fn route_among(
        &mut self,
        logits: Tensor,
        bias: Option<Tensor>,
        route: RouteSpec,
        part: Option<ExpertPart>,
    ) -> Built<Routed> {
        let call = self.call("route");
        let (rows, n_experts) = call.rows("the logits", logits)?;
        call.check(route.check(n_experts))?;
        bias.map_or(Ok(()), |bias| call.rows_of("the selection bias", bias, 1, n_experts))?;
        part.map_or(Ok(()), |part| call.check(part.check(n_experts)))?;
        let op = Op::Route { logits: logits.id(), bias: id_of(bias), route, part };
        let weights = self.emit(op, rows, route.top);
        let (dtype, role) = (DType::U32, Role::Computed);
        let ids = self.push(TensorDef { name: None, rows, width: route.top, dtype, role });
        self.graph.ops.last_mut().expect("an op was just added").outputs.push(ids.id());
        Ok(Routed { weights, ids, n_experts: part.map_or(n_experts, |part| part.count) })
    }

    /// The gated activation of the gate and up projections of `x` by the experts of each row:
    /// `[m, top · n]`.
    pub fn expert_gate_up(
        &mut self,
        x: Tensor,
        routed: Routed,
        [gate, up]: [ExpertLinear; 2],
        activation: GatedActivation,
    ) -> Built<Tensor> {
        let (call, n_experts) = (self.call("expert_gate_up"), routed.n_experts);
        let (m, k) = call.rows("the input", x)?;
        let top = call.expert_ids(routed, m)?;
        let n = call.expert_linear("the gate weight", gate, n_experts, k)?;
        let up_rows = call.expert_linear("the up weight", up, n_experts, k)?;
        call.size("the rows of an expert's up weight", n, up_rows)?;
        call.check(activation.check())?;
        let Some(width) = top.checked_mul(n) else {
            let (what, expected) = ("the width of all experts of a row", "less than 2^32");
            return call.fail(Problem::Value { what, expected, got: f64::from(top) * f64::from(n) });
        };
        let (x, ids, gate, up) = (x.id(), routed.ids.id(), gate.ids(), up.ids());
        Ok(self.emit(Op::ExpertGateUp { x, ids, gate, up, n_experts, activation }, m, width))
    }

    /// The down projections of `x` (`[m, top · k]`) by the experts of each row, times the routing weights,
    /// summed: `[m, n]`.
    pub fn expert_down(
        &mut self,
        x: Tensor,
        routed: Routed,
        down: ExpertLinear,
        residual: Option<Tensor>,
    ) -> Built<Tensor> {
        let (call, n_experts) = (self.call("expert_down"), routed.n_experts);
        let (m, width) = call.rows("the input", x)?;
        let top = call.expert_ids(routed, m)?;
        call.rows_of("the routing weights", routed.weights, m, top)?;
        let k = call.def("the down weight", down.weight)?.width;
        call.size("the width of the input", top.saturating_mul(k), width)?;
        let n = call.expert_linear("the down weight", down, n_experts, k)?;
        residual.map_or(Ok(()), |residual| call.rows_of("the residual", residual, m, n))?;
        let (ids, weights) = (routed.ids.id(), routed.weights.id());
        let (x, down, residual) = (x.id(), down.ids(), id_of(residual));
        Ok(self.emit(Op::ExpertDown { x, ids, weights, down, residual, n_experts }, m, n))
    }
}
