//! gpt-oss: biases on all projections, attention sinks, sliding windows in every other layer, YaRN, and a
//! mixture of experts with clamped SwiGLU whose router weighs by a softmax over the selected experts.

use fulmen_core::{GatedActivation, RopePairing, RouteSpec, RouterScores, Tensor};

use super::config::{Dimensions, Keys};
use super::experts::ExpertLayer;
use super::record::{Bias, Layer};
use super::variant::{self, Variant};
use crate::error::ModelError;

/// RoPE rotates element `i` with element `i + n_rot / 2`.
pub(super) const PAIRING: RopePairing = RopePairing::NeoX;

/// The softmax over the selected experts weighs them.
pub(super) const ROUTE: RouteSpec = RouteSpec::new(1, RouterScores::SelectedSoftmax);

const EXPERTS: ExpertLayer = ExpertLayer {
    activation: GatedActivation::ClampedSwiGlu { alpha: 1.702, limit: 7.0 },
    bias: Bias::Required,
    selection_bias: Bias::None,
};

pub(super) fn variant(keys: &Keys<'_>, _: &Dimensions) -> Result<Variant, ModelError> {
    Ok(Variant { window: variant::window(keys, Some(2))?, ..Variant::plain() })
}

/// One layer. Input and output are hidden states `[rows, hidden]`.
pub(super) fn layer(l: &mut Layer<'_, '_>, x: Tensor) -> Result<Tensor, ModelError> {
    let heads = l.heads();
    // Attention.
    let h = l.rms_norm(x, "attn_norm")?;
    let q = l.linear(h, "attn_q", heads.q_width(), Bias::Required)?;
    let k = l.linear(h, "attn_k", heads.kv_width(), Bias::Required)?;
    let v = l.linear(h, "attn_v", heads.kv_width(), Bias::Required)?;
    let (q, k) = (l.rope(q)?, l.rope(k)?);
    let sinks = l.sinks("attn_sinks")?;
    let attended = l.attention_with(q, k, v, Some(sinks))?;
    let o = l.linear(attended, "attn_output", l.hidden(), Bias::Required)?;
    let x = l.add(x, o)?;
    // Feed-forward. Files name its norm after what precedes it.
    let h = l.rms_norm(x, "post_attention_norm")?;
    let d = l.experts(h, EXPERTS)?;
    l.add(x, d)
}
