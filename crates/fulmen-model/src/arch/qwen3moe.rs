//! Qwen3-MoE: Qwen3's layer with a mixture of experts in place of the feed-forward layer.

use fulmen_core::{RopePairing, RouteSpec, RouterScores, Tensor};

use super::experts::ExpertLayer;
use super::qwen3;
use super::record::Layer;
use crate::error::ModelError;

/// RoPE rotates element `i` with element `i + n_rot / 2`.
pub(super) const PAIRING: RopePairing = RopePairing::NeoX;

/// Softmax over all experts; the weights of those selected sum to 1.
pub(super) const ROUTE: RouteSpec =
    RouteSpec { renormalize: true, ..RouteSpec::new(1, RouterScores::Softmax) };

/// One layer. Input and output are hidden states `[rows, hidden]`.
pub(super) fn layer(l: &mut Layer<'_, '_>, x: Tensor) -> Result<Tensor, ModelError> {
    let x = qwen3::attention(l, x)?;
    // Feed-forward.
    let h = l.rms_norm(x, "ffn_norm")?;
    let d = l.experts(h, ExpertLayer::PLAIN)?;
    l.add(x, d)
}
