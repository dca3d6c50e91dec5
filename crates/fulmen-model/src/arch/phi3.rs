//! Phi-3, Phi-3.5, Phi-4: Llama's layer with query, key and value weights in one tensor, gate and up weights
//! in another ([`split`](super::split)), NeoX-style RoPE of a part of the head in some, and factors for long
//! contexts.

use fulmen_core::{RopePairing, Tensor};

use super::config::{Dimensions, Keys};
use super::llama;
use super::record::{Bias, Layer};
use super::variant::{self, Variant};
use crate::error::ModelError;

/// RoPE rotates element `i` with element `i + n_rot / 2`.
pub(super) const PAIRING: RopePairing = RopePairing::NeoX;

pub(super) fn variant(keys: &Keys<'_>, _: &Dimensions) -> Result<Variant, ModelError> {
    Ok(Variant { window: variant::window(keys, None)?, ..Variant::plain() })
}

/// One layer. Input and output are hidden states `[rows, hidden]`.
pub(super) fn layer(l: &mut Layer<'_, '_>, x: Tensor) -> Result<Tensor, ModelError> {
    llama::layer_with_biases(l, x, Bias::Optional, Bias::None)
}
