//! Mixtures of experts: their metadata and the operations that layers use them with.

use fulmen_core::{DType, ExpertGroups, ExpertLinear, GatedActivation};
use fulmen_core::{MAX_EXPERT_GROUPS, MAX_EXPERTS, MAX_EXPERTS_PER_ROW};
use fulmen_core::{RouteSpec, Routed, RouterScores, Tensor};

use super::config::{Keys, MAX_WIDTH};
use super::record::{Bias, Layer, Recorder};
use crate::error::ModelError;

/// The experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: u32,
    /// Width of an expert's feed-forward layer.
    pub inner: u32,
    /// How a row's experts are chosen; `top` of them.
    pub route: RouteSpec,
    /// Layers before the first one with experts, which have a feed-forward layer.
    pub leading_dense: u32,
    /// Experts that every row uses, as one feed-forward layer of their common width.
    pub shared: u32,
    /// Their common width.
    pub shared_inner: u32,
}

/// What architectures do differently in a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertLayer {
    pub(super) activation: GatedActivation,
    /// Biases of the router and of the projections.
    pub(super) bias: Bias,
    /// A bias of the scores that selects only.
    pub(super) selection_bias: Bias,
}

impl ExpertLayer {
    /// SwiGLU without biases.
    pub(super) const PLAIN: ExpertLayer =
        ExpertLayer { activation: GatedActivation::SwiGlu, bias: Bias::None, selection_bias: Bias::None };
}

impl Experts {
    /// Reads and checks the keys of a mixture of experts. `route` is what the architecture does unless the
    /// file says otherwise, and `inner_of_expert` whether the feed-forward length is that of an expert then.
    pub(super) fn read(
        keys: &Keys<'_>,
        route: RouteSpec,
        inner_of_expert: bool,
        layers: u32,
    ) -> Result<Experts, ModelError> {
        let count = keys.within("expert_count", MAX_EXPERTS)?;
        let top = keys.within("expert_used_count", count.min(MAX_EXPERTS_PER_ROW))?;
        let groups = groups(keys, count, top)?;
        let inner = match keys.opt_u32("expert_feed_forward_length")? {
            Some(_) => keys.within("expert_feed_forward_length", MAX_WIDTH)?,
            None if inner_of_expert => keys.within("feed_forward_length", MAX_WIDTH)?,
            // As old files mean it: the active experts together have the width of the feed-forward layer.
            None => keys.within("feed_forward_length", MAX_WIDTH)? / top,
        };
        if inner == 0 {
            return Err(keys.wrong(
                "feed_forward_length",
                format!("at least the {top} active experts"),
                inner,
            ));
        }
        let scores = match keys.opt_u32("expert_gating_func")? {
            None | Some(0) => route.scores,
            Some(1) => RouterScores::Softmax,
            Some(2) => RouterScores::Sigmoid,
            Some(3) => RouterScores::SelectedSoftmax,
            Some(other) => {
                let expected = "1 (softmax), 2 (sigmoid) or 3 (softmax of the selected)";
                return Err(keys.wrong("expert_gating_func", expected, other));
            }
        };
        let renormalize = keys.opt_bool("expert_weights_norm")?.unwrap_or(route.renormalize);
        // Files of models without a scale may say 0.
        let scale = keys.opt_f32("expert_weights_scale")?.filter(|scale| *scale != 0.0);
        let scale = scale.unwrap_or(route.scale);
        if !scale.is_finite() {
            return Err(keys.wrong("expert_weights_scale", "a finite number", scale));
        }
        let leading_dense = keys.opt_u32("leading_dense_block_count")?.unwrap_or(0);
        if leading_dense > layers {
            let expected = format!("at most the {layers} layers");
            return Err(keys.wrong("leading_dense_block_count", expected, leading_dense));
        }
        let shared = keys.opt_u32("expert_shared_count")?.unwrap_or(0);
        if u64::from(shared) * u64::from(inner) > u64::from(MAX_WIDTH) {
            let expected = format!("a common width of at most {MAX_WIDTH}");
            return Err(keys.wrong("expert_shared_count", expected, shared));
        }
        let shared_inner = match keys.opt_u32("expert_shared_feed_forward_length")?.filter(|n| *n > 0) {
            Some(_) => keys.within("expert_shared_feed_forward_length", MAX_WIDTH)?,
            None => shared * inner,
        };
        let route = RouteSpec { top, scores, groups, renormalize, scale };
        Ok(Experts { count, inner, route, leading_dense, shared, shared_inner })
    }
}

/// The groups of the `count` experts of a layer, of which a row has `top`; none if a row may use all groups.
fn groups(keys: &Keys<'_>, count: u32, top: u32) -> Result<Option<ExpertGroups>, ModelError> {
    const GROUPS: &str = "expert_group_count";
    if keys.opt_u32(GROUPS)?.is_none_or(|groups| groups <= 1) {
        return Ok(None);
    }
    let groups = keys.within(GROUPS, MAX_EXPERT_GROUPS)?;
    if !count.is_multiple_of(groups) || count / groups < 2 {
        let expected = format!("a divisor of the {count} experts, at least two in each group");
        return Err(keys.wrong(GROUPS, expected, groups));
    }
    let used = keys.within("expert_group_used_count", groups)?;
    let (size, expected) = (count / groups, "experts of the groups that a row uses");
    if top > used * size {
        return Err(keys.wrong("expert_used_count", format!("at most the {} {expected}", used * size), top));
    }
    Ok((used < groups).then_some(ExpertGroups { count: groups, used }))
}

impl Recorder<'_> {
    /// One projection of all experts: the tensor `name.weight`, `[experts, rows, width]`, and, if there are
    /// biases, `name.bias`, `[experts, rows]`.
    fn expert_linear(
        &mut self,
        name: &str,
        [experts, rows, width]: [u32; 3],
        bias: Bias,
    ) -> Result<ExpertLinear, ModelError> {
        let bias_name = format!("{name}.bias");
        let name = &format!("{name}.weight");
        let bias = match self.wants(bias, &bias_name) {
            true => Some(self.vectors(&bias_name, experts, rows)?),
            false => None,
        };
        let dtype = self.find(name, &[width, rows, experts])?.dtype();
        if matches!(dtype, DType::U32 | DType::Q8_K) {
            let expected = "a floating-point or quantized type for weights";
            return Err(ModelError::TensorType { name: name.to_owned(), expected, found: dtype });
        }
        // The tensor exists, so its size is within bounds.
        let rows = rows.saturating_mul(experts);
        let weight = self.builder.weight(name, dtype, rows, width)?;
        Ok(ExpertLinear { weight, bias })
    }
}

impl Layer<'_, '_> {
    /// The mixture of experts: a router chooses the experts of each row, and the row gets the weighted sum of
    /// their feed-forward layers.
    pub(super) fn experts(&mut self, x: Tensor, of: ExpertLayer) -> Result<Tensor, ModelError> {
        let ExpertLayer { activation, bias, selection_bias } = of;
        let Experts { count, route, .. } = self.expert_dimensions()?;
        let logits = self.linear(x, "ffn_gate_inp", count, bias)?;
        let name = self.name("exp_probs_b", "bias");
        let selection_bias = match self.recorder.wants(selection_bias, &name) {
            true => Some(self.recorder.vector(&name, count)?),
            false => None,
        };
        let routed = self.recorder.route(logits, selection_bias, route)?;
        self.routed_experts(x, routed, activation, bias)
    }

    /// The experts of the model.
    pub(super) fn expert_dimensions(&self) -> Result<Experts, ModelError> {
        self.recorder.config.experts.ok_or_else(|| {
            let key = format!("{}.expert_count", self.recorder.config.architecture);
            ModelError::Value { key, expected: "at least 1".to_owned(), found: "missing".to_owned() }
        })
    }

    /// The weighted sum of the feed-forward layers of each row's experts, which may be on the host.
    pub(super) fn routed_experts(
        &mut self,
        x: Tensor,
        routed: Routed,
        activation: GatedActivation,
        bias: Bias,
    ) -> Result<Tensor, ModelError> {
        let (Experts { inner, .. }, hidden) = (self.expert_dimensions()?, self.hidden());
        let count = routed.n_experts;
        let name = |part: &str| format!("blk.{}.ffn_{part}_exps", self.number);
        let (gate, up, down) = (name("gate"), name("up"), name("down"));
        let compute =
            |recorder: &mut Recorder<'_>, x: Tensor, routed: Routed| -> Result<Tensor, ModelError> {
                let gate = recorder.expert_linear(&gate, [count, inner, hidden], bias)?;
                let up = recorder.expert_linear(&up, [count, inner, hidden], bias)?;
                let down = recorder.expert_linear(&down, [count, hidden, inner], bias)?;
                let b = &mut recorder.builder;
                let inner = b.expert_gate_up(x, routed, [gate, up], activation)?;
                Ok(b.expert_down(inner, routed, down, None)?)
            };
        if self.recorder.stage.has_experts_on_host(self.number) {
            self.recorder.refuse_on_ranks("a mixture whose experts are on the host")?;
            let Routed { weights, ids, n_experts } = routed;
            return self.recorder.on_host(self.number, [x, ids, weights], |recorder, [x, ids, weights]| {
                compute(recorder, x, Routed { weights, ids, n_experts })
            });
        }
        let y = compute(&mut *self.recorder, x, routed)?;
        self.recorder.reduce(y, "ffn_down_exps")
    }

    /// Whether this layer has experts.
    pub(super) fn has_experts(&self) -> bool {
        self.recorder.config.experts.is_some_and(|experts| self.number >= experts.leading_dense)
    }

    /// The mixture of experts, and what the shared experts add to it.
    pub(super) fn experts_and_shared(&mut self, x: Tensor, of: ExpertLayer) -> Result<Tensor, ModelError> {
        let routed = self.experts(x, of)?;
        let shared = self.recorder.config.experts.map_or(0, |experts| experts.shared_inner);
        if shared == 0 {
            return Ok(routed);
        }
        let always = self.gated(x, ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"], shared)?;
        Ok(self.recorder.builder.add(routed, always)?)
    }
}
