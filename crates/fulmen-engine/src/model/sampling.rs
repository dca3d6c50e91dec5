//! From logits to tokens: the sampling states of rows, and what is made of their results.

use fulmen_core::sampling::{NO_TOKEN, Penalties, SampleState};
use fulmen_model::Sampling;

use crate::request::SamplingParams;
use crate::step::{LogitsRow, RowFault, Sampled};

/// What a slot samples with.
#[derive(Clone, Debug)]
pub(super) struct SlotSampling {
    sampling: Sampling,
    /// What is wrong with the parameters.
    pub(super) refused: Option<String>,
}

impl Default for SlotSampling {
    fn default() -> SlotSampling {
        SlotSampling { sampling: Sampling::GREEDY, refused: None }
    }
}

impl SlotSampling {
    /// The parameters of a request: [`Sampling`], or none for greedy sampling.
    pub(super) fn new(params: &SamplingParams) -> SlotSampling {
        match (params.get::<Sampling>(), params.get::<()>()) {
            (Some(&sampling), _) => {
                let refused = sampling.validate().err().map(|error| error.to_string());
                SlotSampling { sampling, refused }
            }
            (None, Some(())) => SlotSampling::default(),
            (None, None) => {
                let refused = Some("the sampling parameters are not those of a model: Sampling".to_owned());
                SlotSampling { refused, ..SlotSampling::default() }
            }
        }
    }

    pub(super) fn penalizes(&self) -> bool {
        self.sampling.penalizes()
    }

    /// The state of the row at `position`: its random number depends on the seed and the position alone.
    pub(super) fn state(&self, position: u32) -> SampleState {
        self.sampling.state(position.wrapping_add(1), 0)
    }

    pub(super) fn penalties(&self) -> Penalties {
        self.sampling.penalties()
    }
}

/// What a device cannot do for a row.
pub(super) fn refused(logits: &LogitsRow) -> Option<String> {
    if logits.mask.is_some() {
        return Some("a model's device has no token masks".to_owned());
    }
    None
}

/// The result of a row from its token and, where log-probabilities are wanted, its logits.
pub(super) fn sampled(row: &LogitsRow, token: u32, logits: Option<&[f32]>) -> Result<Sampled, RowFault> {
    if token == NO_TOKEN {
        let reason = "the logits have no finite maximum".to_owned();
        return Err(RowFault { row: row.row, reason });
    }
    let (Some(top), Some(logits)) = (row.logprobs, logits) else { return Ok(Sampled::token(token)) };
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    let normalizer = f64::from(largest) + sum.ln();
    let logprob = |token: u32| {
        logits.get(token as usize).map_or(f32::NEG_INFINITY, |&logit| (f64::from(logit) - normalizer) as f32)
    };
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let top = usize::from(top).min(order.len());
    let by_logit = |&a: &u32, &b: &u32| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b));
    if top > 0 && top < order.len() {
        order.select_nth_unstable_by(top - 1, by_logit);
    }
    order.truncate(top);
    order.sort_unstable_by(by_logit);
    let top = order.into_iter().map(|token| (token, logprob(token))).collect();
    Ok(Sampled { token, logprob: Some(logprob(token)), top })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_are_those_of_the_softmax() {
        let row = LogitsRow { row: 3, sample: true, logprobs: Some(2), mask: None };
        let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.0, 0.0];
        let found = sampled(&row, 0, Some(&logits)).unwrap();
        let sum: f64 = [1f64, 3.0, 3.0, 0.0].iter().map(|logit| logit.exp()).sum();
        let expected = |logit: f64| (logit - sum.ln()) as f32;
        assert_eq!((found.token, found.logprob), (0, Some(expected(1.0))));
        assert_eq!(found.top, [(1, expected(3.0)), (3, expected(3.0))]);
        let none = LogitsRow { logprobs: None, ..row.clone() };
        assert_eq!(sampled(&none, 4, Some(&logits)).unwrap(), Sampled::token(4));
        let all = LogitsRow { logprobs: Some(9), ..row.clone() };
        assert_eq!(sampled(&all, 4, Some(&logits)).unwrap().top.len(), 5);
        assert_eq!(sampled(&row, NO_TOKEN, None).unwrap_err().row, 3);
    }

    #[test]
    fn parameters_of_another_device_are_refused() {
        assert!(SlotSampling::new(&SamplingParams::default()).refused.is_none());
        assert!(SlotSampling::new(&SamplingParams::new(7u8)).refused.is_some());
        let bad = Sampling { temperature: -1.0, ..Sampling::GREEDY };
        assert!(SlotSampling::new(&SamplingParams::new(bad)).refused.unwrap().contains("temperature"));
        let good = Sampling { temperature: 0.5, seed: 1 << 40, ..Sampling::GREEDY };
        let slot = SlotSampling::new(&SamplingParams::new(good));
        assert_eq!((slot.state(4).step, slot.state(4).seed_hi), (5, 256));
    }
}
