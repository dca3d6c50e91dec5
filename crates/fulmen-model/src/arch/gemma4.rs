//! Gemma 4: as Gemma 3, with heads of another size in the layers with a sliding window, values that are
//! normed too, last layers that read the KV cache of earlier ones, embeddings of its own for each layer, and
//! a mixture of experts beside the feed-forward layer in the larger models.

use fulmen_core::{
    GatedActivation, Heads, RopePairing, RopeSpec, RouteSpec, RouterScores, Tensor, UnaryKind,
};

use super::config::{Dimensions, Keys, MAX_WIDTH};
use super::record::{Bias, Layer};
use super::variant::{self, Variant};
use crate::error::ModelError;

/// RoPE rotates element `i` with element `i + n_rot / 2`.
pub(super) const PAIRING: RopePairing = RopePairing::NeoX;

/// The softmax over the selected experts weighs them.
pub(super) const ROUTE: RouteSpec =
    RouteSpec { renormalize: true, ..RouteSpec::new(1, RouterScores::Softmax) };

pub(super) fn variant(keys: &Keys<'_>, of: &Dimensions) -> Result<Variant, ModelError> {
    let window = variant::window_by_layer(keys, of.layers)?;
    let base = keys.opt_f32("rope.freq_base_swa")?.unwrap_or(10_000.0);
    if !(base.is_finite() && base > 0.0) {
        return Err(keys.wrong("rope.freq_base_swa", "a positive finite number", base));
    }
    let plain = Variant { window: Some(window), ..Variant::plain() };
    let heads = local_heads(keys, of, &plain)?;
    let n_rot = keys.opt_u32("rope.dimension_count_swa")?.unwrap_or(heads.head_dim);
    if n_rot == 0 || n_rot > heads.head_dim || !n_rot.is_multiple_of(2) {
        let expected = format!("even and from 2 to the head size {}", heads.head_dim);
        return Err(keys.wrong("rope.dimension_count_swa", expected, n_rot));
    }
    let shared_kv = keys.opt_u32(SHARED)?.unwrap_or(0);
    let shared = Variant { shared_kv, ..plain };
    if let Some(layer) = (0..of.layers).find(|&layer| shared.cache_layer(layer, of.layers).is_none()) {
        let expected = format!("fewer (layer {layer} needs an earlier one of its kind with a KV cache)");
        return Err(keys.wrong(SHARED, expected, shared_kv));
    }
    let width = keys.opt_u32(PER_LAYER)?.unwrap_or(0);
    if width > MAX_WIDTH {
        return Err(keys.wrong(PER_LAYER, format!("at most {MAX_WIDTH}"), width));
    }
    Ok(Variant {
        local_rope: Some(RopeSpec { n_rot, ..RopeSpec::new(PAIRING, heads.head_dim, base) }),
        local_heads: Some(heads),
        attention_scale: Some(1.0),
        embedding_scale: (of.hidden as f32).sqrt(),
        logit_softcap: variant::cap(keys, "final_logit_softcapping")?,
        layer_embedding: width,
        unit_gain: vec![1.0; of.heads.head_dim.max(heads.head_dim) as usize],
        ..shared
    })
}

const SHARED: &str = "attention.shared_kv_layers";
const PER_LAYER: &str = "embedding_length_per_layer_input";

/// The heads of the layers with a window. All of them have as many KV heads, and so have the others.
fn local_heads(keys: &Keys<'_>, of: &Dimensions, windows: &Variant) -> Result<Heads, ModelError> {
    const KV: &str = "attention.head_count_kv";
    let head_dim = keys.within("attention.key_length_swa", 1 << 14)?;
    if !head_dim.is_multiple_of(2) {
        return Err(keys.wrong("attention.key_length_swa", "even", head_dim));
    }
    if let Some(value) = keys.opt_u32("attention.value_length_swa")?.filter(|value| *value != head_dim) {
        return Err(keys.wrong("attention.value_length_swa", format!("the key length {head_dim}"), value));
    }
    let Some(counts) = keys.opt_each_layer(KV, of.layers, of.heads.n_heads)? else {
        return Ok(Heads { head_dim, ..of.heads });
    };
    let local = |layer: &u32| windows.window_of(*layer).is_some();
    let n_kv_heads = (0..of.layers).find(local).map_or(of.heads.n_kv_heads, |layer| counts[layer as usize]);
    for (layer, &found) in (0..of.layers).zip(&counts) {
        let same = if local(&layer) { n_kv_heads } else { of.heads.n_kv_heads };
        if found != same || !of.heads.n_heads.is_multiple_of(found) {
            let expected = format!(
                "a divisor of the {} query heads, {same} in layer {layer} as in others of its kind",
                of.heads.n_heads
            );
            return Err(keys.wrong(KV, expected, found));
        }
    }
    Ok(Heads { n_kv_heads, head_dim, ..of.heads })
}

/// One layer. Input and output are hidden states `[rows, hidden]`.
pub(super) fn layer(l: &mut Layer<'_, '_>, x: Tensor) -> Result<Tensor, ModelError> {
    // Attention.
    let h = l.rms_norm(x, "attn_norm")?;
    let attended = attention(l, h)?;
    let o = l.linear(attended, "attn_output", l.hidden(), Bias::None)?;
    let o = l.rms_norm(o, "post_attention_norm")?;
    let x = l.add(x, o)?;
    // Feed-forward, and the experts beside it.
    let h = l.rms_norm(x, "ffn_norm")?;
    let mut d = l.geglu(h)?;
    if l.has_experts() {
        let dense = l.rms_norm(d, "post_ffw_norm_1")?;
        let sparse = experts(l, x)?;
        let sparse = l.rms_norm(sparse, "post_ffw_norm_2")?;
        d = l.recorder.builder.add(dense, sparse)?;
    }
    let d = l.rms_norm(d, "post_ffw_norm")?;
    let x = l.add(x, d)?;
    let x = l.add_layer_embedding(x)?;
    l.scale_output(x)
}

/// Attention of normed hidden states, without its output projection. Keys and values are normed by head;
/// where there is no projection to values, they are the projected keys.
fn attention(l: &mut Layer<'_, '_>, h: Tensor) -> Result<Tensor, ModelError> {
    let heads = l.heads();
    let q = l.linear(h, "attn_q", heads.q_width(), Bias::None)?;
    let q = l.head_norm(q, "attn_q_norm")?;
    let q = l.rope(q)?;
    if l.shares_cache() {
        l.ignore(&["attn_k", "attn_v", "attn_k_norm"]);
        return l.attention_over_cache(q, None);
    }
    let k = l.linear(h, "attn_k", heads.kv_width(), Bias::None)?;
    let v = match l.has("attn_v") {
        true => l.linear(h, "attn_v", heads.kv_width(), Bias::None)?,
        false => k,
    };
    let k = l.head_norm(k, "attn_k_norm")?;
    let (k, v) = (l.rope(k)?, l.unit_head_norm(v)?);
    l.attention(q, k, v)
}

/// The experts of the residual stream `x`: the router norms it by itself, and each expert has a scale.
fn experts(l: &mut Layer<'_, '_>, x: Tensor) -> Result<Tensor, ModelError> {
    let of = l.expert_dimensions()?;
    let (name, hidden) = (l.name("ffn_gate_inp", "scale"), l.hidden());
    let gain = l.recorder.vector(&name, hidden)?;
    let normed = l.recorder.builder.rms_norm(x, gain, l.recorder.config.epsilon)?;
    let logits = l.linear(normed, "ffn_gate_inp", of.count, Bias::None)?;
    let b = &mut l.recorder.builder;
    let logits = b.unary(UnaryKind::Scale((hidden as f32).sqrt().recip()), logits)?;
    let mut routed = b.route(logits, None, of.route)?;
    let scale = l.name("ffn_down_exps", "scale");
    if l.recorder.wants(Bias::Optional, &scale) {
        let scale = l.recorder.column(&scale, of.count)?;
        let b = &mut l.recorder.builder;
        let scales = b.embed(scale, routed.ids)?;
        routed.weights = b.mul(routed.weights, scales)?;
    }
    let h = l.rms_norm(x, "pre_ffw_norm_2")?;
    l.routed_experts(h, routed, GatedActivation::GeGlu, Bias::None)
}
