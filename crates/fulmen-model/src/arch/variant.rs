//! What some architectures do differently from the plain pre-norm transformer: sliding windows, scales,
//! layers without RoPE, attention temperature. Each value is read and validated here.

use fulmen_core::{Heads, RopeSpec, Scores, Temperature};

use super::config::Keys;
use crate::error::ModelError;

/// Longer than any context.
const MAX_WINDOW: u32 = 1 << 28;

/// Deviations from the plain transformer; [`Variant::plain`] has none.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// Layers with sliding-window attention.
    pub window: Option<Window>,
    /// RoPE of the layers with a window, if it is another. It has no frequency factors.
    pub local_rope: Option<RopeSpec>,
    /// The layers that have RoPE.
    pub rope_layers: RopeLayers,
    /// Scale of the attention scores; `None` for one by the root of the head size.
    pub attention_scale: Option<f32>,
    /// Attention temperature for long contexts.
    pub temperature: Option<Temperature>,
    /// Multiplies the token embeddings.
    pub embedding_scale: f32,
    /// Multiplies what attention and feed-forward add to the residual stream.
    pub residual_scale: f32,
    /// Divides the logits.
    pub logit_scale: f32,
    /// Soft cap of the logits.
    pub logit_softcap: Option<f32>,
    /// Heads of the layers with a window, if they are others.
    pub local_heads: Option<Heads>,
    /// So many last layers have no KV cache of their own: they read that of the last earlier layer of their
    /// kind, with a window or without.
    pub shared_kv: u32,
    /// Widths of the feed-forward layers, where they differ; empty otherwise.
    pub layer_inner: Vec<u32>,
    /// Width of the embeddings that each layer has of its own; 0 without.
    pub layer_embedding: u32,
    /// What each layer multiplies its output by; empty for 1.
    pub layer_scales: Vec<f32>,
    /// Ones, at least as many as a head has elements: the gain of norms that have none.
    pub unit_gain: Vec<f32>,
}

/// Sliding-window attention of all layers but every `period`-th.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// A row sees so many positions, its own included.
    pub size: u32,
    /// Of so many layers the last one sees everything; `None` if every layer has the window.
    pub period: Option<u32>,
}

/// Which layers rotate queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayers {
    /// All.
    All,
    /// None.
    No,
    /// Of so many layers all but the last one.
    AllBut(u32),
}

impl Variant {
    /// No deviation.
    pub fn plain() -> Variant {
        Variant {
            window: None,
            local_rope: None,
            rope_layers: RopeLayers::All,
            attention_scale: None,
            temperature: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            logit_softcap: None,
            local_heads: None,
            shared_kv: 0,
            layer_inner: Vec::new(),
            layer_embedding: 0,
            layer_scales: Vec::new(),
            unit_gain: Vec::new(),
        }
    }

    /// The layer of `layers` whose KV cache a layer reads, its own but for shared ones; `None` if there is
    /// none of its kind before those that share.
    pub fn cache_layer(&self, layer: u32, layers: u32) -> Option<u32> {
        let own = layers.saturating_sub(self.shared_kv);
        if layer < own {
            return Some(layer);
        }
        let local = self.window_of(layer).is_some();
        (0..own).rev().find(|&earlier| self.window_of(earlier).is_some() == local)
    }

    /// The window of a layer, if it has one.
    pub fn window_of(&self, layer: u32) -> Option<u32> {
        let window = self.window?;
        let sees_everything = window.period.is_some_and(|period| layer % period == period - 1);
        (!sees_everything).then_some(window.size)
    }

    /// Whether a layer has RoPE.
    pub fn has_rope(&self, layer: u32) -> bool {
        match self.rope_layers {
            RopeLayers::All => true,
            RopeLayers::No => false,
            RopeLayers::AllBut(period) => layer % period != period - 1,
        }
    }

    /// The rule of a layer's attention scores.
    pub(super) fn scores<T>(&self, layer: u32, head_dim: u32) -> Scores<T> {
        let scale = self.attention_scale.unwrap_or_else(|| 1.0 / (head_dim as f32).sqrt());
        let (window, temperature) = (self.window_of(layer), self.temperature);
        Scores { scale, window, chunk: None, softcap: None, temperature, sinks: None }
    }
}

/// `attention.sliding_window`, if the file has it: all layers but every `period`-th have the window, where
/// `attention.sliding_window_pattern` does not say otherwise.
pub(super) fn window(keys: &Keys<'_>, period: Option<u32>) -> Result<Option<Window>, ModelError> {
    const SIZE: &str = "attention.sliding_window";
    if keys.opt_u32(SIZE)?.is_none() {
        return Ok(None);
    }
    const PERIOD: &str = "attention.sliding_window_pattern";
    let size = keys.within(SIZE, MAX_WINDOW)?;
    let period = match (period, keys.opt_u32(PERIOD)?) {
        (Some(_), Some(_)) => Some(keys.within(PERIOD, 1 << 10)?),
        (period, _) => period,
    };
    Ok(Some(Window { size, period }))
}

/// The windows of a model that says of each layer whether it has one. The layers without must be the last of
/// each period.
pub(super) fn window_by_layer(keys: &Keys<'_>, layers: u32) -> Result<Window, ModelError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let size = keys.within("attention.sliding_window", MAX_WINDOW)?;
    let pattern = keys.flags(PATTERN)?;
    if pattern.len() != layers as usize {
        return Err(keys.wrong(PATTERN, format!("one for each of the {layers} layers"), pattern.len()));
    }
    let period = (1..).zip(&pattern).find(|(_, local)| !**local).map(|(period, _)| period);
    let window = Window { size, period };
    let variant = Variant { window: Some(window), ..Variant::plain() };
    match (0..layers).zip(&pattern).find(|(layer, local)| variant.window_of(*layer).is_some() != **local) {
        None => Ok(window),
        Some((layer, found)) => {
            let expected = format!("{} in layer {layer}, as in the layers before (a period)", !found);
            Err(keys.wrong(PATTERN, expected, found))
        }
    }
}

/// A factor that must be finite and not 0; `None` if the file does not have it.
pub(super) fn factor(keys: &Keys<'_>, key: &str) -> Result<Option<f32>, ModelError> {
    match keys.opt_f32(key)? {
        Some(value) if !(value.is_finite() && value != 0.0) => {
            Err(keys.wrong(key, "a finite number other than 0", value))
        }
        value => Ok(value),
    }
}

/// A cap, finite and above 0; `None` if the file does not have it or it is 0.
pub(super) fn cap(keys: &Keys<'_>, key: &str) -> Result<Option<f32>, ModelError> {
    match keys.opt_f32(key)?.filter(|cap| *cap != 0.0) {
        Some(cap) if !(cap.is_finite() && cap > 0.0) => {
            Err(keys.wrong(key, "a positive finite number, or 0 for none", cap))
        }
        cap => Ok(cap),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_layers_read_the_last_cache_of_their_kind() {
        let window = Some(Window { size: 512, period: Some(3) });
        let variant = Variant { window, shared_kv: 4, ..Variant::plain() };
        let read: Vec<Option<u32>> = (0..9).map(|layer| variant.cache_layer(layer, 9)).collect();
        assert_eq!(read, [0, 1, 2, 3, 4, 2, 4, 4, 2].map(Some));
        let variant = Variant { shared_kv: 8, ..variant };
        assert_eq!((variant.cache_layer(1, 9), variant.cache_layer(2, 9)), (Some(0), None));
    }

    #[test]
    fn of_each_period_the_last_layer_sees_everything() {
        let window = Some(Window { size: 512, period: Some(6) });
        let variant = Variant { window, rope_layers: RopeLayers::AllBut(4), ..Variant::plain() };
        let whole: Vec<u32> = (0..14).filter(|&layer| variant.window_of(layer).is_none()).collect();
        assert_eq!(whole, [5, 11]);
        let without: Vec<u32> = (0..9).filter(|&layer| !variant.has_rope(layer)).collect();
        assert_eq!(without, [3, 7]);
        let every = Variant { window: Some(Window { size: 3, period: None }), ..Variant::plain() };
        assert!((0..9).all(|layer| every.window_of(layer) == Some(3)));
        assert!((0..9).all(|layer| Variant::plain().window_of(layer).is_none()));
    }
}
