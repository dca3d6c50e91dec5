//! Gemma 3: norms before and after attention and feed-forward, RMS norms of the query and key heads, GELU,
//! scaled embeddings, and of six layers five with a sliding window and a RoPE base of their own.

use fulmen_core::{RopePairing, RopeSpec, Tensor};

use super::config::{Dimensions, Keys};
use super::record::{Bias, Layer};
use super::variant::{self, Variant};
use crate::error::ModelError;

/// RoPE rotates element `i` with element `i + n_rot / 2`.
pub(super) const PAIRING: RopePairing = RopePairing::NeoX;

/// The model of 27B parameters, the only one whose query scale is not by the head size.
const LAYERS_OF_27B: u32 = 62;

pub(super) fn variant(keys: &Keys<'_>, of: &Dimensions) -> Result<Variant, ModelError> {
    let local_base = keys.opt_f32("rope.freq_base_swa")?.unwrap_or(10_000.0);
    if !(local_base.is_finite() && local_base > 0.0) {
        return Err(keys.wrong("rope.freq_base_swa", "a positive finite number", local_base));
    }
    let by_head = (of.layers == LAYERS_OF_27B).then(|| (of.hidden as f32 / of.heads.n_heads as f32).sqrt());
    Ok(Variant {
        window: variant::window(keys, Some(6))?,
        local_rope: Some(RopeSpec {
            n_rot: of.rope.n_rot,
            ..RopeSpec::new(PAIRING, of.heads.head_dim, local_base)
        }),
        attention_scale: by_head.map(f32::recip),
        embedding_scale: (of.hidden as f32).sqrt(),
        logit_softcap: variant::cap(keys, "final_logit_softcapping")?,
        ..Variant::plain()
    })
}

/// One layer. Input and output are hidden states `[rows, hidden]`. Files store the norms' weights with the 1
/// added that the original adds when it computes.
pub(super) fn layer(l: &mut Layer<'_, '_>, x: Tensor) -> Result<Tensor, ModelError> {
    let heads = l.heads();
    // Attention.
    let h = l.rms_norm(x, "attn_norm")?;
    let q = l.linear(h, "attn_q", heads.q_width(), Bias::None)?;
    let k = l.linear(h, "attn_k", heads.kv_width(), Bias::None)?;
    let v = l.linear(h, "attn_v", heads.kv_width(), Bias::None)?;
    let (q, k) = (l.head_norm(q, "attn_q_norm")?, l.head_norm(k, "attn_k_norm")?);
    let (q, k) = (l.rope(q)?, l.rope(k)?);
    let attended = l.attention(q, k, v)?;
    let o = l.linear(attended, "attn_output", l.hidden(), Bias::None)?;
    let o = l.rms_norm(o, "post_attention_norm")?;
    let x = l.add(x, o)?;
    // Feed-forward.
    let h = l.rms_norm(x, "ffn_norm")?;
    let d = l.geglu(h)?;
    let d = l.rms_norm(d, "post_ffw_norm")?;
    l.add(x, d)
}
