//! What goes from process to process and is of types that have no encoding of their own.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Sampling;
use crate::model::ModelSampling;
use crate::request::SamplingParams;

/// An element type, by its name.
pub(crate) mod dtype {
    use fulmen_core::DType;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(dtype: &DType, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(dtype)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DType, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}

/// A token mask, by its words.
pub(crate) mod token_mask {
    use crate::step::TokenMask;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        mask: &Option<TokenMask>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        mask.as_ref().map(|mask| &mask.0).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<TokenMask>, D::Error> {
        Ok(Option::deserialize(deserializer)?.map(TokenMask))
    }
}

/// The parameters that the device of a model understands.
#[derive(Serialize, Deserialize)]
enum Known {
    Greedy,
    Sampling(Sampling),
    Biased(ModelSampling),
}

impl Serialize for SamplingParams {
    /// Those of a model only: others mean nothing in another process.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let known = match (self.get::<Sampling>(), self.get::<ModelSampling>(), self.get::<()>()) {
            (Some(&sampling), ..) => Known::Sampling(sampling),
            (_, Some(biased), _) => Known::Biased(biased.clone()),
            (.., Some(())) => Known::Greedy,
            _ => return Err(serde::ser::Error::custom("the sampling parameters are not those of a model")),
        };
        known.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SamplingParams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SamplingParams, D::Error> {
        Ok(match Known::deserialize(deserializer)? {
            Known::Greedy => SamplingParams::default(),
            Known::Sampling(sampling) => SamplingParams::new(sampling),
            Known::Biased(biased) => SamplingParams::new(biased),
        })
    }
}

#[cfg(test)]
mod tests {
    use fulmen_core::sampling::TokenMask;

    use super::*;
    use crate::EngineOptions;
    use crate::step::{LogitsRow, NextToken, Prologue, SlotSetup, StepPlan};

    fn sent<T: Serialize + for<'de> Deserialize<'de>>(value: &T) -> Result<T, postcard::Error> {
        postcard::from_bytes(&postcard::to_stdvec(value)?)
    }

    #[test]
    fn a_step_arrives_as_it_was_sent() {
        let mask = Some(TokenMask::new(70, |token| token % 3 == 0));
        let row =
            |mask| LogitsRow { row: 3, next: NextToken::Known(7), logprobs: Some(2), hidden: true, mask };
        let slot = |sampling| SlotSetup { slot: 1, sampling, history: vec![1, 2] };
        let warm = Sampling { temperature: 0.7, seed: u64::MAX, ..Sampling::GREEDY };
        let biased = ModelSampling { sampling: warm, logit_bias: vec![(3, f32::NEG_INFINITY)] };
        let slots = vec![
            slot(SamplingParams::default()),
            slot(SamplingParams::new(warm)),
            slot(SamplingParams::new(biased.clone())),
        ];
        let prologue = Prologue { slots, ..Prologue::default() };
        let plan =
            StepPlan { number: 9, prologue, logits: vec![row(mask), row(None)], ..StepPlan::default() };
        let found = sent(&plan).unwrap();
        assert_eq!((found.number, &found.logits), (9, &plan.logits));
        let [greedy, sampled, with_biases] = &found.prologue.slots[..] else { panic!("{found:?}") };
        assert!(greedy.sampling.get::<()>().is_some() && greedy.history == [1, 2]);
        assert_eq!(sampled.sampling.get::<Sampling>(), Some(&warm));
        assert_eq!(with_biases.sampling.get::<ModelSampling>(), Some(&biased));
        let options = EngineOptions { cache: fulmen_core::DType::Q8_0, ..EngineOptions::default() };
        assert_eq!(sent(&options).unwrap(), options);
    }

    #[test]
    fn parameters_that_mean_nothing_elsewhere_are_not_sent() {
        assert!(sent(&SamplingParams::new(7u8)).is_err());
    }
}
