//! Granite 3: Llama's layer with scales of the embeddings, of what each layer adds, of the attention scores
//! and of the logits.

use super::config::{Dimensions, Keys};
use super::variant::{self, RopeLayers, Variant};
use crate::error::ModelError;

pub(super) fn variant(keys: &Keys<'_>, _: &Dimensions) -> Result<Variant, ModelError> {
    // Granite's files switch RoPE off by this key.
    let rotates = keys.opt_bool("rope.scaling.finetuned")?.unwrap_or(true);
    Ok(Variant {
        rope_layers: if rotates { RopeLayers::All } else { RopeLayers::No },
        attention_scale: variant::factor(keys, "attention.scale")?,
        embedding_scale: variant::factor(keys, "embedding_scale")?.unwrap_or(1.0),
        residual_scale: variant::factor(keys, "residual_scale")?.unwrap_or(1.0),
        logit_scale: variant::factor(keys, "logit_scale")?.unwrap_or(1.0),
        ..Variant::plain()
    })
}
