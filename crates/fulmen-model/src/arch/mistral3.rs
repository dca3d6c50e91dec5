//! Mistral 3, Ministral 3: Llama's layer with YaRN and an attention temperature for long contexts.

use fulmen_core::Temperature;

use super::config::{Dimensions, Keys};
use super::rope;
use super::variant::{self, Variant};
use crate::error::ModelError;

pub(super) fn variant(keys: &Keys<'_>, _: &Dimensions) -> Result<Variant, ModelError> {
    let beta = variant::factor(keys, "attention.temperature_scale")?;
    let temperature = match beta {
        Some(beta) => Some(Temperature { length: keys.within(rope::ORIGINAL_CONTEXT, 1 << 28)?, beta }),
        None => None,
    };
    Ok(Variant {
        temperature,
        attention_scale: variant::factor(keys, "attention.scale")?,
        ..Variant::plain()
    })
}
