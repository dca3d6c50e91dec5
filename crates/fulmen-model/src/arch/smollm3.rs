//! SmolLM3: Llama's layer, of four layers one without RoPE.

use super::config::{Dimensions, Keys};
use super::variant::{RopeLayers, Variant};
use crate::error::ModelError;

pub(super) fn variant(_: &Keys<'_>, _: &Dimensions) -> Result<Variant, ModelError> {
    Ok(Variant { rope_layers: RopeLayers::AllBut(4), ..Variant::plain() })
}
