//! Qwen2 and Qwen2.5: Llama's layer with biases for Q, K and V, and NeoX-style RoPE.

use fulmen_core::{RopePairing, Tensor};

use super::llama;
use super::record::{Bias, Layer};
use crate::error::ModelError;

/// RoPE rotates element `i` with element `i + n_rot / 2`.
pub(super) const PAIRING: RopePairing = RopePairing::NeoX;

/// One layer. Input and output are hidden states `[rows, hidden]`.
pub(super) fn layer(l: &mut Layer<'_, '_>, x: Tensor) -> Result<Tensor, ModelError> {
    llama::layer_with_biases(l, x, Bias::Required, Bias::None)
}
