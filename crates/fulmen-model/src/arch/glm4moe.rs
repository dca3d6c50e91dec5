//! GLM-4.5: biases for Q, K and V, RMS norms of the query and key heads in the larger models, RoPE of half of
//! each head, leading layers with a feed-forward layer, and then a mixture of experts beside a shared expert,
//! whose router selects by sigmoid scores and a bias.

use fulmen_core::{GatedActivation, RopePairing, RouteSpec, RouterScores, Tensor};

use super::experts::ExpertLayer;
use super::record::{Bias, Layer};
use crate::error::ModelError;

/// RoPE rotates element `i` with element `i + n_rot / 2`.
pub(super) const PAIRING: RopePairing = RopePairing::NeoX;

/// The sigmoid of each logit; files say whether the weights of those selected sum to 1, and their scale.
pub(super) const ROUTE: RouteSpec = RouteSpec::new(1, RouterScores::Sigmoid);

const EXPERTS: ExpertLayer =
    ExpertLayer { activation: GatedActivation::SwiGlu, bias: Bias::None, selection_bias: Bias::Required };

/// One layer. Input and output are hidden states `[rows, hidden]`.
pub(super) fn layer(l: &mut Layer<'_, '_>, x: Tensor) -> Result<Tensor, ModelError> {
    let heads = l.heads();
    // Attention.
    let h = l.rms_norm(x, "attn_norm")?;
    let q = l.linear(h, "attn_q", heads.q_width(), Bias::Optional)?;
    let k = l.linear(h, "attn_k", heads.kv_width(), Bias::Optional)?;
    let v = l.linear(h, "attn_v", heads.kv_width(), Bias::Optional)?;
    let (q, k) = match l.has("attn_q_norm") {
        true => (l.head_norm(q, "attn_q_norm")?, l.head_norm(k, "attn_k_norm")?),
        false => (q, k),
    };
    let (q, k) = (l.rope(q)?, l.rope(k)?);
    let attended = l.attention(q, k, v)?;
    let o = l.linear(attended, "attn_output", l.hidden(), Bias::None)?;
    let x = l.add(x, o)?;
    // Feed-forward. Files name its norm after what precedes it.
    let h = l.rms_norm(x, "post_attention_norm")?;
    let d = match l.has_experts() {
        true => l.experts_and_shared(h, EXPERTS)?,
        false => l.swiglu(h)?,
    };
    l.add(x, d)
}
