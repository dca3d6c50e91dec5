//! Llama 2 and 3, Mistral, SmolLM2: pre-norm layers with grouped-query attention and a SwiGLU feed-forward.

use fulmen_core::{RopePairing, Tensor};

use super::record::{Bias, Layer};
use crate::error::ModelError;

/// GGUF files of this family store Q and K so that RoPE rotates adjacent elements.
pub(super) const PAIRING: RopePairing = RopePairing::Interleaved;

/// One layer. Input and output are hidden states `[rows, hidden]`.
pub(super) fn layer(l: &mut Layer<'_, '_>, x: Tensor) -> Result<Tensor, ModelError> {
    layer_with_biases(l, x, Bias::Optional, Bias::Optional)
}

/// [`layer`] with what is known of the biases of Q, K and V and of that of the output projection.
pub(super) fn layer_with_biases(
    l: &mut Layer<'_, '_>,
    x: Tensor,
    qkv: Bias,
    output: Bias,
) -> Result<Tensor, ModelError> {
    let heads = l.heads();
    // Attention.
    let h = l.rms_norm(x, "attn_norm")?;
    let q = l.linear(h, "attn_q", heads.q_width(), qkv)?;
    let k = l.linear(h, "attn_k", heads.kv_width(), qkv)?;
    let v = l.linear(h, "attn_v", heads.kv_width(), qkv)?;
    let (q, k) = (l.rope(q)?, l.rope(k)?);
    let attended = l.attention(q, k, v)?;
    let o = l.linear(attended, "attn_output", l.hidden(), output)?;
    let x = l.add(x, o)?;
    // Feed-forward.
    let h = l.rms_norm(x, "ffn_norm")?;
    let d = l.swiglu(h)?;
    l.add(x, d)
}
