//! Argmax and sampling.

use std::cmp::Ordering;
use std::sync::Arc;

use fulmen_core::TensorId;
use fulmen_core::sampling::{NO_SLOT, NO_TOKEN, SampleState};

use super::{Data, Interpreter, ReferenceError, Result, Values};

/// Index of the largest element, the lowest on a tie. NaN and -∞ never win; a row without other elements
/// gives 0.
pub(super) fn argmax(row: &[f64]) -> u32 {
    let mut best = (f64::NEG_INFINITY, 0);
    for (index, &x) in row.iter().enumerate() {
        if x > best.0 {
            best = (x, index);
        }
    }
    best.1 as u32
}

/// Relative shifts of the thresholds of min_p, top_p and u, to find out whether rounding decides a sample.
type Slack = [f64; 3];

/// Backends sum up to some 10^5 weights in f32; this is more than the rounding error.
const ROUNDING: f64 = 1e-5;

/// The candidates of a row: (logit, index), by the algorithm of [`fulmen_core::sampling`].
fn candidates(row: &[f64], top_k: u32) -> Vec<(f64, u32)> {
    let kept = row.iter().enumerate().filter(|(_, x)| !x.is_nan() && **x != f64::NEG_INFINITY);
    let mut candidates: Vec<(f64, u32)> = kept.map(|(index, &x)| (x, index as u32)).collect();
    candidates.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1)));
    if top_k > 0 {
        candidates.truncate(top_k as usize);
    }
    candidates
}

/// Steps 3 to 6 of the algorithm, with the thresholds shifted by `slack`: the sampled candidate.
fn draw(candidates: &[(f64, u32)], state: &SampleState, slack: Slack) -> usize {
    let (first, temperature) = (candidates[0].0, f64::from(state.temperature));
    let weight = |x: f64| if x == first { 1.0 } else { ((x - first) / temperature).exp() };
    let mut weights: Vec<f64> = candidates.iter().map(|&(x, _)| weight(x)).collect();
    // Z: what top_k has kept, before min_p.
    let total: f64 = weights.iter().sum();
    let min_p = f64::from(state.min_p) * (1.0 + slack[0]);
    let kept = weights.iter().skip(1).position(|&w| w < min_p).map_or(weights.len(), |at| at + 1);
    weights.truncate(kept);
    if state.top_p < 1.0 {
        let bound = f64::from(state.top_p) * (1.0 + slack[1]) * total;
        let mut sum = 0.0;
        let reached = weights.iter().position(|w| {
            sum += w;
            sum >= bound
        });
        weights.truncate(reached.map_or(weights.len(), |at| at + 1));
    }
    let kept: f64 = weights.iter().sum();
    let bound = (f64::from(state.uniform()) + slack[2]) * kept;
    let mut sum = 0.0;
    let chosen = weights.iter().position(|w| {
        sum += w;
        sum > bound
    });
    chosen.unwrap_or(weights.len() - 1)
}

/// The token of a row, and the tokens that rounding may choose instead.
fn sample_row(row: &[f64], state: &SampleState) -> (u32, Vec<u32>) {
    let candidates = candidates(row, state.top_k);
    if !candidates.first().is_some_and(|(logit, _)| logit.is_finite()) {
        return (NO_TOKEN, Vec::new());
    }
    if state.temperature == 0.0 {
        return (argmax(row), Vec::new());
    }
    let chosen = draw(&candidates, state, [0.0; 3]);
    let (mut first, mut last) = (chosen, chosen);
    for bits in 0..8u32 {
        let slack = [0, 1, 2].map(|i| if bits >> i & 1 == 1 { ROUNDING } else { -ROUNDING });
        let moved = draw(&candidates, state, slack);
        (first, last) = (first.min(moved), last.max(moved));
    }
    let others = if first == last { &[] } else { &candidates[first..=last] };
    (candidates[chosen].1, others.iter().map(|candidate| candidate.1).collect())
}

impl Interpreter {
    /// The largest values of each row and their columns, each plus `first`.
    pub(super) fn top_k(&self, x: TensorId, k: u32, first: u32) -> Result<Vec<Data>> {
        let (mut values, mut indices) = (Vec::new(), Vec::new());
        for row in self.floats(x)?.chunks(self.width(x)) {
            let best = candidates(row, k);
            for at in 0..k as usize {
                values.push(best.get(at).map_or(f64::NEG_INFINITY, |candidate| candidate.0));
                indices.push(best.get(at).map_or(NO_TOKEN, |candidate| first + candidate.1));
            }
        }
        let indices = Data::Ints { values: indices, undecided: Vec::new() };
        Ok(vec![Data::Floats(Values::plain(values)), indices])
    }

    /// Tokens sampled from rows of logits; `tokens` says whose logits they are, or each is that of its
    /// column.
    pub(super) fn sample(
        &mut self,
        logits: TensorId,
        tokens: Option<TensorId>,
        states: TensorId,
    ) -> Result<Vec<Data>> {
        let (rows, width) = (self.floats(logits)?, self.width(logits));
        let tokens = tokens.map(|tokens| self.ints(tokens)).transpose()?;
        let token_of = |row: usize, column: u32| match &tokens {
            Some(tokens) if column != NO_TOKEN => tokens[row * width + column as usize],
            _ => column,
        };
        let name = self.name(states);
        let Some(Data::Stored { bytes, .. }) = &mut self.tensors[states] else {
            return Err(ReferenceError::NoData(name));
        };
        let bytes = Arc::make_mut(bytes);
        let (mut values, mut undecided) = (Vec::new(), Vec::new());
        for (at, (row, bytes)) in rows.chunks(width).zip(bytes.as_chunks_mut::<32>().0).enumerate() {
            let mut state: SampleState = bytemuck::pod_read_unaligned(bytes);
            let (column, others) = sample_row(row, &state);
            values.push(token_of(at, column));
            if !others.is_empty() {
                undecided.push((at, others.into_iter().map(|column| token_of(at, column)).collect()));
            }
            state.step = state.step.wrapping_add(1);
            bytes.copy_from_slice(bytemuck::bytes_of(&state));
        }
        Ok(vec![Data::Ints { values, undecided }])
    }

    /// Biases first, then the mask. A slot's words are: whether it is masked, the number of biases, then
    /// pairs of a token and the bits of its bias.
    pub(super) fn mask_logits(
        &self,
        logits: TensorId,
        edits: TensorId,
        masks: TensorId,
        slots: Option<TensorId>,
    ) -> Result<Vec<f64>> {
        let (mut values, width) = (self.floats(logits)?, self.width(logits));
        let (edit_words, mask_words, limit) = (self.width(edits), self.width(masks), self.rows(edits) as u32);
        let (edits, masks) = (self.ints(edits)?, self.ints(masks)?);
        let slots = slots.map(|slots| self.ints(slots)).transpose()?;
        for (row, logits) in values.chunks_mut(width).enumerate() {
            let slot = slots.as_ref().map_or(row as u32, |slots| slots[row]);
            if slot == NO_SLOT {
                continue;
            }
            if slot >= limit {
                return Err(ReferenceError::Index { what: "the sampling slot", value: slot, limit });
            }
            let edits = &edits[slot as usize * edit_words..][..edit_words];
            for pair in edits[2..].chunks(2).take(edits[1] as usize) {
                // A kernel adds two f32 values.
                let logit = &mut logits[pair[0] as usize];
                let bias = f32::from_bits(pair[1]);
                *logit = if bias == f32::NEG_INFINITY { bias.into() } else { (*logit as f32 + bias).into() };
            }
            let mask = &masks[slot as usize * mask_words..][..mask_words];
            for (token, logit) in logits.iter_mut().enumerate() {
                if edits[0] != 0 && mask[token / 32] >> (token % 32) & 1 == 0 {
                    *logit = f64::NEG_INFINITY;
                }
            }
        }
        Ok(values)
    }

    /// The value of each row's token and of its most likely tokens, and the tokens of all values.
    pub(super) fn log_probs(&self, logits: TensorId, tokens: TensorId, top: u32) -> Result<Vec<Data>> {
        let (rows, width, tokens) = (self.floats(logits)?, self.width(logits), self.ints(tokens)?);
        let (mut values, mut indices) = (Vec::new(), Vec::new());
        for (row, token) in rows.chunks(width).zip(tokens) {
            let best = candidates(row, 0);
            let first = best.first().map_or(f64::NEG_INFINITY, |candidate| candidate.0);
            let total: f64 = best.iter().map(|(x, _)| (x - first).exp()).sum();
            let value = |x: f64| match first.is_finite() {
                true if x.is_nan() => f64::NEG_INFINITY,
                true => x - first - total.ln(),
                false => f64::NAN,
            };
            indices.push(token);
            values.push(row.get(token as usize).map_or(f64::NAN, |&x| value(x)));
            for at in 0..top as usize {
                let candidate = best.get(at).filter(|_| first.is_finite());
                indices.push(candidate.map_or(NO_TOKEN, |candidate| candidate.1));
                values.push(value(candidate.map_or(f64::NEG_INFINITY, |candidate| candidate.0)));
            }
        }
        let indices = Data::Ints { values: indices, undecided: Vec::new() };
        Ok(vec![Data::Floats(Values::plain(values)), indices])
    }
}
