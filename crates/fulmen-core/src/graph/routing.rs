//! The call of a router: the experts of each row, and their weights.

use super::call_check::{matrix, optional};
use super::checks::*;
use super::experts::{NO_EXPERT, check_experts, check_experts_per_row};
use super::operands::{apart, area, f32_rows, optional_rows, span};
use super::work::{CacheUse, Work};
use crate::{BackendError, LookUp, Problem};

/// The most groups of experts.
pub const MAX_EXPERT_GROUPS: u32 = 32;

/// The smallest sum that routing weights are divided by, 2⁻¹⁴: weights that are all about 0 stay so.
pub const MIN_WEIGHT_SUM: f32 = 6.103_515_6e-5;

/// The experts that a device has of those of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertPart {
    /// The first of them.
    pub first: u32,
    /// How many they are.
    pub count: u32,
}

impl ExpertPart {
    /// The id of an expert of the layer among those of the part.
    pub fn id(&self, expert: u32) -> u32 {
        expert.checked_sub(self.first).filter(|&id| id < self.count).unwrap_or(NO_EXPERT)
    }

    pub(crate) fn check(&self, n_experts: u32) -> Checked<()> {
        let (what, end) = ("the end of a part of the experts", u64::from(self.first) + u64::from(self.count));
        let valid = self.count > 0 && end <= n_experts.into();
        let expected = "above its first, and at most the number of experts";
        valid.then_some(()).ok_or(Problem::Value { what, expected, got: end as f64 })
    }
}

/// What a router makes of its logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RouterScores {
    /// Softmax over all experts; the scores select and weigh (Qwen3-MoE).
    #[default]
    Softmax,
    /// The sigmoid of each logit; the scores select and weigh (GLM-4.5, DeepSeek-V3).
    Sigmoid,
    /// The logits select, and the softmax over those selected weighs (gpt-oss).
    SelectedSoftmax,
}

/// Groups of neighboring experts, all of one size, of which each row uses the best (DeepSeek-V3).
///
/// A group is as good as the sum of its two largest keys; of equally good ones the first is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertGroups {
    /// The groups that the experts of a layer are divided into.
    pub count: u32,
    /// How many of them the experts of a row are chosen from.
    pub used: u32,
}

impl ExpertGroups {
    /// Fails unless each group has two experts or more, and the groups of a row the `top` that are chosen.
    fn check(&self, n_experts: u32, top: u32) -> Checked<()> {
        let of = |what, expected, got: u32| Err(Problem::Value { what, expected, got: got.into() });
        let ExpertGroups { count, used } = *self;
        if !(1..=MAX_EXPERT_GROUPS).contains(&count) {
            return of("the number of expert groups", "from 1 to 32", count);
        }
        if !n_experts.is_multiple_of(count) {
            let what = "the number of experts in groups";
            return Err(Problem::Multiple { what, of: count.into(), got: n_experts.into() });
        }
        let size = n_experts / count;
        if size < 2 {
            return of("the experts of a group", "at least 2", size);
        }
        if !(1..=count).contains(&used) {
            return of("the expert groups of a row", "from 1 to the number of groups", used);
        }
        if top > used * size {
            let expected = "at most the experts of the groups of a row";
            return of("the number of experts per row", expected, top);
        }
        Ok(())
    }
}

/// How a router chooses the experts of a row, and their weights.
///
/// The `top` experts with the largest keys are selected, in descending order; of equal keys the lower id
/// comes first. With `groups` they are selected among the experts of the best groups. The key of an expert
/// is its logit if there are neither groups nor a selection bias, otherwise its score (its logit for
/// `SelectedSoftmax`) plus the bias. Weights are scores without the bias. A row with a logit or key that is
/// not finite has experts 0 to `top - 1` with weights of NaN, so that it fails later as a row of logits
/// without a finite maximum does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteSpec {
    /// Experts of a row.
    pub top: u32,
    /// The scores.
    pub scores: RouterScores,
    /// The groups of which a row uses the best, if experts are in groups.
    pub groups: Option<ExpertGroups>,
    /// Whether the weights of a row are divided by their sum (by [`MIN_WEIGHT_SUM`], if that is larger).
    pub renormalize: bool,
    /// Multiplies the weights.
    pub scale: f32,
}

impl RouteSpec {
    /// The `top` best of all experts, with weights that are the scores.
    pub const fn new(top: u32, scores: RouterScores) -> RouteSpec {
        RouteSpec { top, scores, groups: None, renormalize: false, scale: 1.0 }
    }

    pub(crate) fn check(&self, n_experts: u32) -> Checked<()> {
        check_experts(n_experts)?;
        check_experts_per_row(self.top, n_experts)?;
        self.groups.map_or(Ok(()), |groups| groups.check(n_experts, self.top))?;
        finite("the scale of the routing weights", self.scale).map(|_| ())
    }
}

/// The experts of each row and their weights: see [`RouteSpec`].
#[derive(Clone, Debug, PartialEq)]
pub struct RouteCall {
    /// `[m, n_experts]`.
    pub logits: u64,
    /// `n_experts` selection biases.
    pub bias: Option<u64>,
    /// `[m, top]` f32.
    pub weights: u64,
    /// `[m, top]` u32.
    pub ids: u64,
    /// Rows.
    pub m: u32,
    /// Experts of the layer.
    pub n_experts: u32,
    /// How they are chosen and weighed.
    pub route: RouteSpec,
    /// The experts that are here, if not all are: ids are those among them, or [`NO_EXPERT`].
    pub part: Option<ExpertPart>,
}

impl RouteCall {
    /// The experts that are here.
    pub fn held(&self) -> ExpertPart {
        self.part.unwrap_or(ExpertPart { first: 0, count: self.n_experts })
    }
}

impl RouteCall {
    pub(super) fn check(&self) -> Checked<()> {
        self.route.check(self.n_experts)?;
        self.part.map_or(Ok(()), |part| part.check(self.n_experts))?;
        matrix("the logits", self.logits, self.m, self.n_experts)?;
        optional("the selection bias", self.bias, self.n_experts)?;
        matrix("the weights", self.weights, self.m, self.route.top)?;
        matrix("the expert ids", self.ids, self.m, self.route.top)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0
    }

    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Result<(), BackendError> {
        let (m, count) = (self.m, area(self.m, self.route.top));
        let reads = [
            Some(f32_rows(memory, "the logits", self.logits, m, self.n_experts)?),
            optional_rows(memory, "the selection bias", self.bias, 1, self.n_experts)?,
        ];
        let weights = span::<f32>(memory, "the weights", self.weights, count, true)?;
        let ids = span::<u32>(memory, "the expert ids", self.ids, count, true)?;
        apart(&[weights, ids], &reads)?;
        weights.apart_from(ids)
    }

    pub(super) fn work(&self, _: CacheUse) -> Work {
        let elements = area(self.m, self.n_experts) as u64;
        let results = 2 * area(self.m, self.route.top) as u64;
        Work { flops: elements, bytes: elements.saturating_add(results).saturating_mul(4) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_out_of_range_are_refused_by_name() {
        let spec = RouteSpec::new(8, RouterScores::Softmax);
        let problem = |spec: RouteSpec, n_experts| spec.check(n_experts).unwrap_err().to_string();
        assert_eq!(problem(spec, 0), "the number of experts must be from 1 to 1024, got 0");
        assert_eq!(
            problem(spec, 7),
            "the number of experts per row must be at most the number of experts, got 8"
        );
        assert_eq!(
            problem(RouteSpec { top: 0, ..spec }, 7),
            "the number of experts per row must be from 1 to 32, got 0"
        );
        let scale = RouteSpec { scale: f32::NAN, ..spec };
        assert_eq!(problem(scale, 9), "the scale of the routing weights must be finite, got NaN");
        for (count, used, n_experts, expected) in [
            (0, 1, 64, "the number of expert groups must be from 1 to 32, got 0"),
            (33, 1, 66, "the number of expert groups must be from 1 to 32, got 33"),
            (5, 1, 64, "the number of experts in groups must be a multiple of 5, got 64"),
            (16, 1, 16, "the experts of a group must be at least 2, got 1"),
            (8, 0, 64, "the expert groups of a row must be from 1 to the number of groups, got 0"),
            (8, 9, 64, "the expert groups of a row must be from 1 to the number of groups, got 9"),
            (
                16,
                1,
                64,
                "the number of experts per row must be at most the experts of the groups of a row, got 8",
            ),
        ] {
            let groups = Some(ExpertGroups { count, used });
            assert_eq!(problem(RouteSpec { groups, ..spec }, n_experts), expected);
        }
        assert!(RouteSpec { groups: Some(ExpertGroups { count: 16, used: 2 }), ..spec }.check(64).is_ok());
    }
}
