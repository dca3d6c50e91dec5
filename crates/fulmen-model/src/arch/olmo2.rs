//! OLMo 2 and 3: norms after attention and feed-forward instead of before them, and RMS norms of all query
//! heads and of all key heads together. OLMo 3 has sliding windows in three of four layers, whose RoPE is
//! not scaled.

use fulmen_core::{RopePairing, RopeSpec, Tensor};

use super::config::{Dimensions, Keys};
use super::record::{Bias, Layer};
use super::variant::{self, Variant};
use crate::error::ModelError;

/// RoPE rotates element `i` with element `i + n_rot / 2`.
pub(super) const PAIRING: RopePairing = RopePairing::NeoX;

pub(super) fn variant(keys: &Keys<'_>, of: &Dimensions) -> Result<Variant, ModelError> {
    let unscaled = RopeSpec { freq_scale: 1.0, magnitude: 1.0, ..of.rope };
    Ok(Variant { window: variant::window(keys, Some(4))?, local_rope: Some(unscaled), ..Variant::plain() })
}

/// One layer. Input and output are hidden states `[rows, hidden]`.
pub(super) fn layer(l: &mut Layer<'_, '_>, x: Tensor) -> Result<Tensor, ModelError> {
    let heads = l.heads();
    // Attention.
    let q = l.linear(x, "attn_q", heads.q_width(), Bias::None)?;
    let k = l.linear(x, "attn_k", heads.kv_width(), Bias::None)?;
    let v = l.linear(x, "attn_v", heads.kv_width(), Bias::None)?;
    let [q, k] = l.row_norms([q, k], ["attn_q_norm", "attn_k_norm"])?;
    let (q, k) = (l.rope(q)?, l.rope(k)?);
    let attended = l.attention(q, k, v)?;
    let o = l.linear(attended, "attn_output", l.hidden(), Bias::None)?;
    let o = l.rms_norm(o, "post_attention_norm")?;
    let x = l.add(x, o)?;
    // Feed-forward.
    let d = l.swiglu(x)?;
    let d = l.rms_norm(d, "post_ffw_norm")?;
    l.add(x, d)
}
