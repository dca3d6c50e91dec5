//! From logits to tokens: the sampling states of rows, and what is made of their results.

use fulmen_core::sampling::{LogitEdits, NO_TOKEN, Penalties, SampleState};
use fulmen_model::Sampling;
use fulmen_model::arch::MIXED_LOGIT_BIASES;

use crate::request::SamplingParams;
use crate::step::{LogitsRow, RowFault, Sampled};

/// Sampling parameters of a request of a model, with logit biases. Without biases, [`Sampling`] alone does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSampling {
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Tokens and what is added to their logits: finite, or -inf, which excludes the token. At most
    /// [`MIXED_LOGIT_BIASES`], each token once.
    pub logit_bias: Vec<(u32, f32)>,
}

/// What a slot samples with.
#[derive(Clone, Debug)]
pub(super) struct SlotSampling {
    sampling: Sampling,
    pub(super) biases: Vec<(u32, f32)>,
    /// What is wrong with the parameters.
    pub(super) refused: Option<String>,
}

impl Default for SlotSampling {
    fn default() -> SlotSampling {
        SlotSampling { sampling: Sampling::GREEDY, biases: Vec::new(), refused: None }
    }
}

impl SlotSampling {
    /// The parameters of a request: [`Sampling`], [`ModelSampling`], or none for greedy sampling.
    pub(super) fn new(params: &SamplingParams, vocabulary: u32) -> SlotSampling {
        let (sampling, biases) = match (params.get::<Sampling>(), params.get::<ModelSampling>()) {
            (Some(&sampling), _) => (sampling, Vec::new()),
            (None, Some(params)) => (params.sampling, params.logit_bias.clone()),
            (None, None) if params.get::<()>().is_some() => return SlotSampling::default(),
            (None, None) => {
                let reason = "the sampling parameters are not those of a model: Sampling or ModelSampling";
                return SlotSampling { refused: Some(reason.to_owned()), ..SlotSampling::default() };
            }
        };
        let edits = LogitEdits { masked: false, biases };
        let wrong_sampling = sampling.validate().err().map(|error| error.to_string());
        let wrong_bias = edits.validate(vocabulary, MIXED_LOGIT_BIASES).err().map(|error| error.to_string());
        SlotSampling { sampling, biases: edits.biases, refused: wrong_sampling.or(wrong_bias) }
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

/// What is wrong with the token mask of a row.
pub(super) fn refused(logits: &LogitsRow, vocabulary: u32) -> Option<String> {
    let (words, expected) = (logits.mask.as_ref()?.0.len(), vocabulary.div_ceil(32) as usize);
    let wrong = words != expected;
    wrong.then(|| format!("the token mask has {words} words; {vocabulary} tokens need {expected}"))
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
    fn masks_must_fit_the_vocabulary() {
        let mask = |tokens| Some(crate::step::TokenMask::new(tokens, |_| true));
        let row = |mask| LogitsRow { row: 0, sample: true, logprobs: None, mask };
        assert!(refused(&row(None), 70).is_none() && refused(&row(mask(70)), 70).is_none());
        assert!(refused(&row(mask(64)), 70).unwrap().contains("2 words; 70 tokens need 3"));
    }

    #[test]
    fn parameters_of_another_device_are_refused() {
        let new = |params: SamplingParams| SlotSampling::new(&params, 100);
        assert!(new(SamplingParams::default()).refused.is_none());
        assert!(new(SamplingParams::new(7u8)).refused.is_some());
        let bad = Sampling { temperature: -1.0, ..Sampling::GREEDY };
        assert!(new(SamplingParams::new(bad)).refused.unwrap().contains("temperature"));
        let biased = |token| ModelSampling { logit_bias: vec![(token, -1.0)], ..ModelSampling::default() };
        assert!(new(SamplingParams::new(biased(99))).refused.is_none());
        assert!(new(SamplingParams::new(biased(100))).refused.unwrap().contains("100"));
        let good = Sampling { temperature: 0.5, seed: 1 << 40, ..Sampling::GREEDY };
        let slot = new(SamplingParams::new(good));
        assert_eq!((slot.state(4).step, slot.state(4).seed_hi), (5, 256));
    }
}
