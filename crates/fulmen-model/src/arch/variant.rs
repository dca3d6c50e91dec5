//! What some architectures do differently from the plain pre-norm transformer: sliding windows, scales,
//! layers without RoPE, attention temperature. Each value is read and validated here.

use fulmen_core::{RopeSpec, Scores, Temperature};

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
        }
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
        Scores { scale, window, softcap: None, temperature, sinks: None }
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
