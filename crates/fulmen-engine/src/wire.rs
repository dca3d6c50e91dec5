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
