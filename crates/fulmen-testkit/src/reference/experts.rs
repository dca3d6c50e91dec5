//! Mixture of experts: routing and matmuls by expert id.

use std::cmp::Ordering;

use fulmen_core::{
    ExpertPart, GatedActivation, Linear, MIN_WEIGHT_SUM, NO_EXPERT, RouteSpec, RouterScores, TensorId,
};

use super::{Data, Interpreter, ReferenceError, Result, Values, gelu_tanh, rows, sigmoid, silu};

/// The indices of numbers by descending value, those of equal ones ascending.
fn descending(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].partial_cmp(&values[a]).unwrap_or(Ordering::Equal).then(a.cmp(&b)));
    order
}

/// The experts of a row and their weights; see [`RouteSpec`].
fn route_row(logits: &[f64], bias: Option<&[f64]>, spec: &RouteSpec) -> Vec<(u32, f64)> {
    let top = spec.top as usize;
    let mut scores = logits.to_vec();
    match spec.scores {
        RouterScores::Softmax => rows::softmax(&mut scores),
        RouterScores::Sigmoid => scores.iter_mut().for_each(|x| *x = sigmoid(*x)),
        RouterScores::SelectedSoftmax => {}
    }
    let keys: Vec<f64> = match (bias, spec.groups) {
        (Some(bias), _) => scores.iter().zip(bias).map(|(score, bias)| score + bias).collect(),
        (None, Some(_)) => scores.clone(),
        (None, None) => logits.to_vec(),
    };
    if logits.iter().chain(&keys).any(|x| !x.is_finite()) {
        return (0..spec.top).map(|id| (id, f64::NAN)).collect();
    }
    let mut order = descending(&keys);
    if let Some(groups) = spec.groups {
        let size = keys.len() / groups.count as usize;
        let best_two = |group: &[f64]| descending(group)[..2].iter().map(|&at| group[at]).sum::<f64>();
        let sums: Vec<f64> = keys.chunks(size).map(best_two).collect();
        let best = &descending(&sums)[..groups.used as usize];
        order.retain(|id| best.contains(&(id / size)));
    }
    order.truncate(top);
    let mut weights: Vec<f64> = order.iter().map(|&id| scores[id]).collect();
    if spec.scores == RouterScores::SelectedSoftmax {
        rows::softmax(&mut weights);
    }
    if spec.renormalize {
        let sum = weights.iter().sum::<f64>().max(f64::from(MIN_WEIGHT_SUM));
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    let scale = f64::from(spec.scale);
    order.into_iter().zip(weights).map(|(id, weight)| (id as u32, weight * scale)).collect()
}

/// The factors of the gate and of up whose product a gated activation is.
fn factors(activation: GatedActivation, gate: f64, up: f64) -> (f64, f64) {
    match activation {
        GatedActivation::SwiGlu => (silu(gate), up),
        GatedActivation::GeGlu => (gelu_tanh(gate), up),
        GatedActivation::ClampedSwiGlu { alpha, limit } => {
            let limit = f64::from(limit);
            // Comparisons that keep NaN.
            let gate = if gate > limit { limit } else { gate };
            (gate * sigmoid(f64::from(alpha) * gate), up.clamp(-limit, limit) + 1.0)
        }
    }
}

/// Pairs of a row and one of its experts, `[pairs]`, and the columns of each that are computed.
struct Pairs {
    ids: Vec<u32>,
    n_experts: usize,
    columns: Vec<usize>,
}

/// Values and the sizes of their terms, `[pairs, columns]`.
struct Projected {
    values: Vec<f64>,
    sizes: Vec<f64>,
}

impl Interpreter {
    pub(super) fn route(
        &self,
        logits: TensorId,
        bias: Option<TensorId>,
        spec: &RouteSpec,
        part: Option<ExpertPart>,
    ) -> Result<Vec<Data>> {
        let (values, bias) = (self.floats(logits)?, self.optional_floats(bias)?);
        let (mut weights, mut ids) = (Vec::new(), Vec::new());
        for row in values.chunks(self.width(logits)) {
            for (id, weight) in route_row(row, bias.as_deref(), spec) {
                ids.push(part.map_or(id, |part| part.id(id)));
                weights.push(weight);
            }
        }
        let ids = Data::Ints { values: ids, undecided: Vec::new() };
        Ok(vec![Data::Floats(Values::plain(weights)), ids])
    }

    pub(super) fn expert_gate_up(
        &self,
        [x, ids]: [TensorId; 2],
        [gate, up]: [Linear; 2],
        n_experts: u32,
        activation: GatedActivation,
        outputs: &[TensorId],
    ) -> Result<Vec<Data>> {
        let (k, top, n) = (self.width(x), self.width(ids), self.rows(gate.weight) / n_experts as usize);
        let pairs = self.pairs(ids, n_experts, outputs, n, 2 * k)?;
        let (input, count) = (self.floats(x)?, pairs.columns.len());
        let row = |pair: usize| &input[pair / top * k..][..k];
        let gates = self.project(gate, &pairs, n, row)?;
        let mut result = self.project(up, &pairs, n, row)?;
        for (i, (value, size)) in result.values.iter_mut().zip(&mut result.sizes).enumerate() {
            let (a, b) = factors(activation, gates.values[i], *value);
            *value = a * b;
            // The sensitivity to either matmul; the slope of the activation is at most 1.2.
            *size = (1.2 * gates.sizes[i] * b).hypot(a * *size);
        }
        Ok(vec![scatter(&result, pairs.ids.len(), n, &pairs.columns, count)])
    }

    pub(super) fn expert_down(
        &self,
        [x, ids, weights]: [TensorId; 3],
        down: Linear,
        residual: Option<TensorId>,
        n_experts: u32,
        outputs: &[TensorId],
    ) -> Result<Vec<Data>> {
        let (k, top) = (self.width(down.weight), self.width(ids));
        let (m, n) = (self.rows(x), self.rows(down.weight) / n_experts as usize);
        let pairs = self.pairs(ids, n_experts, outputs, n, k)?;
        let (input, weights, count) = (self.floats(x)?, self.floats(weights)?, pairs.columns.len());
        let residual = self.optional_floats(residual)?;
        let projected = self.project(down, &pairs, n, |pair| &input[pair * k..][..k])?;
        let mut result = Projected { values: vec![0.0; m * count], sizes: vec![0.0; m * count] };
        for row in 0..m {
            for (at, &column) in pairs.columns.iter().enumerate() {
                let to = row * count + at;
                for (slot, weight) in weights[row * top..][..top].iter().enumerate() {
                    if pairs.ids[row * top + slot] == NO_EXPERT {
                        continue;
                    }
                    let from = (row * top + slot) * count + at;
                    result.values[to] += weight * projected.values[from];
                    let term = weight * projected.sizes[from];
                    result.sizes[to] = result.sizes[to].hypot(term);
                }
                if let Some(residual) = &residual {
                    result.values[to] += residual[row * n + column];
                    result.sizes[to] = result.sizes[to].hypot(residual[row * n + column]);
                }
            }
        }
        Ok(vec![scatter(&result, m, n, &pairs.columns, count)])
    }

    fn pairs(
        &self,
        ids: TensorId,
        n_experts: u32,
        outputs: &[TensorId],
        n: usize,
        k: usize,
    ) -> Result<Pairs> {
        let ids = self.ints(ids)?;
        if let Some(&value) = ids.iter().find(|&&id| id >= n_experts && id != NO_EXPERT) {
            return Err(ReferenceError::Index { what: "expert", value, limit: n_experts });
        }
        let columns = self.columns(outputs, ids.len(), n, k);
        Ok(Pairs { ids, n_experts: n_experts as usize, columns })
    }

    /// `row(pair) · wᵀ + bias` with the weight of each pair's expert.
    fn project<'a>(
        &self,
        linear: Linear,
        pairs: &Pairs,
        n: usize,
        row: impl Fn(usize) -> &'a [f64],
    ) -> Result<Projected> {
        let bias = self.optional_floats(linear.bias)?;
        let count = pairs.columns.len();
        let size = pairs.ids.len() * count;
        let mut result = Projected { values: vec![0.0; size], sizes: vec![0.0; size] };
        for expert in 0..pairs.n_experts {
            let of_expert = |pair: &usize| pairs.ids[*pair] as usize == expert;
            let group: Vec<usize> = (0..pairs.ids.len()).filter(of_expert).collect();
            if group.is_empty() {
                continue;
            }
            for (at, &column) in pairs.columns.iter().enumerate() {
                let w = self.weight_row(linear.weight, expert * n + column)?;
                let bias = bias.as_ref().map_or(0.0, |bias| bias[expert * n + column]);
                for &pair in &group {
                    let (sum, squares) = super::matmul::dot(row(pair), &w);
                    result.values[pair * count + at] = sum + bias;
                    result.sizes[pair * count + at] = squares.sqrt().hypot(bias);
                }
            }
        }
        Ok(result)
    }
}

/// The computed columns at their positions in `[rows, n]`.
fn scatter(result: &Projected, rows: usize, n: usize, columns: &[usize], count: usize) -> Data {
    let (mut data, mut sizes) = (vec![f64::NAN; rows * n], vec![f64::NAN; rows * n]);
    let mut known = Vec::with_capacity(rows * count);
    for row in 0..rows {
        for (at, column) in columns.iter().enumerate() {
            let to = row * n + column;
            (data[to], sizes[to]) = (result.values[row * count + at], result.sizes[row * count + at]);
            known.push(to);
        }
    }
    Data::Floats(Values { data, sizes: Some(sizes), known: (count < n).then_some(known) })
}

#[cfg(test)]
mod tests {
    use fulmen_core::ExpertGroups;

    use super::*;

    fn spec(scores: RouterScores, renormalize: bool) -> RouteSpec {
        RouteSpec { renormalize, ..RouteSpec::new(2, scores) }
    }

    #[test]
    fn equal_logits_are_won_by_the_lower_id() {
        let routed = route_row(&[1.0, 3.0, 3.0, 3.0], None, &spec(RouterScores::Softmax, true));
        assert_eq!(routed, [(1, 0.5), (2, 0.5)]);
    }

    #[test]
    fn a_bias_selects_and_does_not_weigh() {
        let (logits, bias) = ([0.0, 0.0, 2.0], [1.0, 0.5, 0.0]);
        let routed = route_row(&logits, Some(&bias), &spec(RouterScores::Sigmoid, false));
        assert_eq!(routed, [(0, 0.5), (1, 0.5)]);
        let routed = route_row(&logits, Some(&bias), &spec(RouterScores::SelectedSoftmax, false));
        assert_eq!(routed.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2, 0]);
        assert!((routed[0].1 - sigmoid(2.0)).abs() < 1e-12);
    }

    /// The largest key of all is in the first group, and the sum of two is larger in each of the others.
    #[test]
    fn the_best_groups_have_the_largest_sums_of_two() {
        let groups = Some(ExpertGroups { count: 3, used: 2 });
        let spec = RouteSpec { groups, ..spec(RouterScores::SelectedSoftmax, false) };
        let ids = |logits: &[f64], bias: Option<&[f64]>| -> Vec<u32> {
            route_row(logits, bias, &spec).into_iter().map(|(id, _)| id).collect()
        };
        let logits = [4.0, -4.0, -4.0, 1.0, 2.0, -9.0, 1.5, 1.0, -9.0];
        assert_eq!(ids(&logits, None), [4, 6]);
        let bias = [0.0, 7.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(ids(&logits, Some(&bias)), [0, 1]);
        // Of groups that are equally good, the first.
        assert_eq!(ids(&[0.0; 9], None), [0, 1]);
    }

    #[test]
    fn a_row_that_is_not_finite_has_valid_ids_and_nan_weights() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for scores in [RouterScores::Softmax, RouterScores::Sigmoid, RouterScores::SelectedSoftmax] {
                let routed = route_row(&[1.0, bad, 3.0], None, &spec(scores, true));
                assert!(routed[0].0 == 0 && routed[1].0 == 1 && routed.iter().all(|r| r.1.is_nan()));
            }
        }
    }
}
