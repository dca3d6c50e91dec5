//! Qwen3: Llama's layer with RMS norms of the query and key heads, an independent head size, and NeoX-style
//! RoPE.

use fulmen_core::{RopePairing, Tensor};

use super::record::{Bias, Layer};
use crate::error::ModelError;

/// RoPE rotates element `i` with element `i + n_rot / 2`.
pub(super) const PAIRING: RopePairing = RopePairing::NeoX;

/// One layer. Input and output are hidden states `[rows, hidden]`.
pub(super) fn layer(l: &mut Layer<'_, '_>, x: Tensor) -> Result<Tensor, ModelError> {
    let x = attention(l, x)?;
    // Feed-forward.
    let h = l.rms_norm(x, "ffn_norm")?;
    let d = l.swiglu(h)?;
    l.add(x, d)
}

/// The attention block and its residual.
pub(super) fn attention(l: &mut Layer<'_, '_>, x: Tensor) -> Result<Tensor, ModelError> {
    let heads = l.heads();
    let h = l.rms_norm(x, "attn_norm")?;
    let q = l.linear(h, "attn_q", heads.q_width(), Bias::None)?;
    let k = l.linear(h, "attn_k", heads.kv_width(), Bias::None)?;
    let v = l.linear(h, "attn_v", heads.kv_width(), Bias::None)?;
    let (q, k) = (l.head_norm(q, "attn_q_norm")?, l.head_norm(k, "attn_k_norm")?);
    let (q, k) = (l.rope(q)?, l.rope(k)?);
    let attended = l.attention(q, k, v)?;
    let o = l.linear(attended, "attn_output", l.hidden(), Bias::None)?;
    l.add(x, o)
}
