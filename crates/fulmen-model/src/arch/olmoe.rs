//! OLMoE: Llama's layer with RMS norms of all query heads and of all key heads together, NeoX-style RoPE, and
//! a mixture of experts in place of the feed-forward layer.

use fulmen_core::{RopePairing, RouteSpec, RouterScores, Tensor};

use super::experts::ExpertLayer;
use super::record::{Bias, Layer};
use crate::error::ModelError;

/// RoPE rotates element `i` with element `i + n_rot / 2`.
pub(super) const PAIRING: RopePairing = RopePairing::NeoX;

/// Softmax over all experts, whose values are the weights of those selected.
pub(super) const ROUTE: RouteSpec = RouteSpec::new(1, RouterScores::Softmax);

/// One layer. Input and output are hidden states `[rows, hidden]`.
pub(super) fn layer(l: &mut Layer<'_, '_>, x: Tensor) -> Result<Tensor, ModelError> {
    let heads = l.heads();
    // Attention.
    let h = l.rms_norm(x, "attn_norm")?;
    let q = l.linear(h, "attn_q", heads.q_width(), Bias::None)?;
    let k = l.linear(h, "attn_k", heads.kv_width(), Bias::None)?;
    let v = l.linear(h, "attn_v", heads.kv_width(), Bias::None)?;
    let [q, k] = l.row_norms([q, k], ["attn_q_norm", "attn_k_norm"])?;
    let (q, k) = (l.rope(q)?, l.rope(k)?);
    let attended = l.attention(q, k, v)?;
    let o = l.linear(attended, "attn_output", l.hidden(), Bias::None)?;
    let x = l.add(x, o)?;
    // Feed-forward.
    let h = l.rms_norm(x, "ffn_norm")?;
    let d = l.experts(h, ExpertLayer::PLAIN)?;
    l.add(x, d)
}
