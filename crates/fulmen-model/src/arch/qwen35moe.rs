//! Qwen3.5-MoE: Qwen3.5's layer with a mixture of experts and a gated shared expert in place of the
//! feed-forward layer.

use fulmen_core::Tensor;

use super::qwen35;
use super::record::Layer;
use crate::error::ModelError;

pub(super) use super::qwen3moe::ROUTE;
pub(super) use super::qwen35::{KEY_HEADS, PAIRING, variant};

/// One layer. Input and output are hidden states `[rows, hidden]`.
pub(super) fn layer(l: &mut Layer<'_, '_>, x: Tensor) -> Result<Tensor, ModelError> {
    let x = qwen35::mixer(l, x)?;
    // Feed-forward. Files name its norm after what precedes it.
    let h = l.rms_norm(x, "post_attention_norm")?;
    let d = l.experts_and_gated_shared(h)?;
    l.add(x, d)
}
