//! Qwen3.5, dense: layers with a gated delta net, and attention with an output gate in every fourth.

use fulmen_core::{KeyHeadOrder, RopePairing, Tensor};

use super::config::{Dimensions, Keys};
use super::record::Layer;
use super::variant::Variant;
use crate::error::ModelError;

/// RoPE rotates element `i` with element `i + n_rot / 2`, a part of each head.
pub(super) const PAIRING: RopePairing = RopePairing::NeoX;

/// Files have the value heads in the order in which they share key heads in turn.
pub(super) const KEY_HEADS: KeyHeadOrder = KeyHeadOrder::Tiled;

/// RoPE has a position for each of time, height and width. Those of a text are equal, so that it rotates as
/// ever; the fourth axis, which a text does not have, must rotate nothing.
pub(super) fn variant(keys: &Keys<'_>, _: &Dimensions) -> Result<Variant, ModelError> {
    const SECTIONS: &str = "rope.dimension_sections";
    let sections = keys.opt_integers(SECTIONS)?.unwrap_or_default();
    if sections.get(3).is_some_and(|&pairs| pairs != 0) {
        return Err(keys.wrong(SECTIONS, "without pairs of a fourth axis", format!("{sections:?}")));
    }
    Ok(Variant::plain())
}

/// One layer. Input and output are hidden states `[rows, hidden]`.
pub(super) fn layer(l: &mut Layer<'_, '_>, x: Tensor) -> Result<Tensor, ModelError> {
    let x = mixer(l, x)?;
    // Feed-forward. Files name its norm after what precedes it.
    let h = l.rms_norm(x, "post_attention_norm")?;
    let d = l.swiglu(h)?;
    l.add(x, d)
}

/// The delta net or the attention of a layer, and its residual.
pub(super) fn mixer(l: &mut Layer<'_, '_>, x: Tensor) -> Result<Tensor, ModelError> {
    let h = l.rms_norm(x, "attn_norm")?;
    let mixed = match l.recorder.config.is_recurrent(l.number) {
        true => l.delta_net(h)?,
        false => l.gated_attention(h)?,
    };
    l.add(x, mixed)
}
