//! From logits to tokens: the sampling states of rows, and what is made of their results.

use fulmen_core::sampling::{LogitEdits, MAX_TOP_LOGPROBS, NO_TOKEN, Penalties, SampleState};
use fulmen_model::arch::MIXED_LOGIT_BIASES;
use serde::{Deserialize, Serialize};

use crate::Sampling;
use crate::request::SamplingParams;
use crate::step::{LogitsRow, NextToken, RowFault, Sampled};

/// Sampling parameters of a request of a model, with logit biases. Without biases, [`Sampling`] alone does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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

/// What is wrong with what a row asks for.
pub(super) fn refused(logits: &LogitsRow, vocabulary: u32) -> Option<String> {
    if let Some(top) = logits.logprobs.filter(|&top| u32::from(top) > MAX_TOP_LOGPROBS) {
        return Some(format!("log-probabilities of {top} tokens; at most {MAX_TOP_LOGPROBS} can be had"));
    }
    if let NextToken::Known(token) = logits.next
        && token >= vocabulary
    {
        return Some(format!("the log-probability of token {token} of a vocabulary of {vocabulary}"));
    }
    let (words, expected) = (logits.mask.as_ref()?.0.len(), vocabulary.div_ceil(32) as usize);
    let wrong = words != expected;
    wrong.then(|| format!("the token mask has {words} words; {vocabulary} tokens need {expected}"))
}

/// What a step has computed beside the token of a row; empty where it was not wanted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RowResults<'a> {
    /// Log-probabilities, of the token and of the most likely ones.
    pub(super) log_probs: &'a [f32],
    /// Whose they are.
    pub(super) tokens: &'a [u32],
    pub(super) hidden: &'a [f32],
}

/// The bias of a token that is known: it makes it the largest logit of any row with a finite maximum, so that
/// the token is drawn, and its log-probability computed, as any other. Log-probabilities are those of the
/// logits without biases.
pub(super) const KNOWN_TOKEN_BIAS: f32 = 1e30;

/// The result of a row.
pub(super) fn sampled(row: &LogitsRow, token: u32, results: RowResults<'_>) -> Result<Sampled, RowFault> {
    if token == NO_TOKEN {
        let reason = "the logits have no finite maximum".to_owned();
        return Err(RowFault { row: row.row, reason });
    }
    let token = match row.next {
        NextToken::Sample => token,
        NextToken::Known(known) if known == token => known,
        // Its logit is NaN or -inf, and no bias changes that.
        NextToken::Known(known) => {
            let logprob = row.logprobs.map(|_| f32::NEG_INFINITY);
            let drawn = sampled(&LogitsRow { next: NextToken::Sample, ..row.clone() }, token, results)?;
            return Ok(Sampled { token: known, logprob, ..drawn });
        }
    };
    let hidden = if row.hidden { results.hidden.to_vec() } else { Vec::new() };
    let (Some(top), [logprob, values @ ..], [_, tokens @ ..]) =
        (row.logprobs, results.log_probs, results.tokens)
    else {
        return Ok(Sampled { hidden, ..Sampled::token(token) });
    };
    let top = tokens.iter().copied().zip(values.iter().copied()).take(top.into());
    let top = top.take_while(|&(token, _)| token != NO_TOKEN).collect();
    Ok(Sampled { token, logprob: Some(*logprob), top, hidden })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_get_what_they_asked_for() {
        let next = NextToken::Sample;
        let row = LogitsRow { row: 3, next, logprobs: Some(2), hidden: true, mask: None };
        let results =
            RowResults { log_probs: &[-3.0, -0.5, -1.0, -2.0], tokens: &[4, 1, 3, 0], hidden: &[0.25, -1.0] };
        let expected = Sampled {
            token: 4,
            logprob: Some(-3.0),
            top: vec![(1, -0.5), (3, -1.0)],
            hidden: vec![0.25, -1.0],
        };
        assert_eq!(sampled(&row, 4, results).unwrap(), expected);
        let none = LogitsRow { logprobs: None, hidden: false, ..row.clone() };
        assert_eq!(sampled(&none, 4, results).unwrap(), Sampled::token(4));
        // A vocabulary of two tokens.
        let few = RowResults { tokens: &[0, 1, 0, NO_TOKEN], ..results };
        let all = LogitsRow { logprobs: Some(20), ..row.clone() };
        assert_eq!(sampled(&all, 0, few).unwrap().top, [(1, -0.5), (0, -1.0)]);
        assert_eq!(sampled(&row, NO_TOKEN, results).unwrap_err().row, 3);
        let known = |token| LogitsRow { next: NextToken::Known(token), ..row.clone() };
        assert_eq!(sampled(&known(4), 4, results).unwrap(), expected);
        let impossible = Sampled { token: 7, logprob: Some(f32::NEG_INFINITY), ..expected };
        assert_eq!(sampled(&known(7), 4, results).unwrap(), impossible);
        assert_eq!(sampled(&known(4), NO_TOKEN, results).unwrap_err().row, 3);
        assert!(refused(&known(69), 70).is_none());
        assert!(refused(&known(70), 70).unwrap().contains("of token 70 of a vocabulary of 70"));
        let many = LogitsRow { logprobs: Some(21), ..row };
        assert!(refused(&many, 70).unwrap().contains("of 21 tokens; at most 20"));
    }

    #[test]
    fn masks_must_fit_the_vocabulary() {
        let mask = |tokens| Some(crate::step::TokenMask::new(tokens, |_| true));
        let next = NextToken::Sample;
        let row = |mask| LogitsRow { row: 0, next, logprobs: None, hidden: false, mask };
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
