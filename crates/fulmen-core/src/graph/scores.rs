//! How attention turns dot products of queries and keys into scores, and which keys a row sees.

use super::checks::{Checked, above_0, at_least_1, finite};

/// The scores of attention: `softcap(scale · temperature(position) · q · k)` for the keys in the window, and
/// the sink of each head. A plain scale converts into it: `0.125.into()`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores<T = u64> {
    /// Multiplies the dot products.
    pub scale: f32,
    /// Sliding window: a row at position `p` sees the keys at positions `k` with `p - k < window`. Without
    /// one it sees all up to its own.
    pub window: Option<u32>,
    /// A score `s` becomes `cap · tanh(s / cap)`.
    pub softcap: Option<f32>,
    /// Multiplies the scale of rows at high positions.
    pub temperature: Option<Temperature>,
    /// One f32 logit per query head that takes part in the softmax and has no value: its weight is lost.
    pub sinks: Option<T>,
}

/// Attention temperature for long contexts: the scale of a row at `position` is multiplied by `1 + beta ·
/// ln(1 + floor(position / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Positions below it have the factor 1.
    pub length: u32,
    /// How fast the factor grows.
    pub beta: f32,
}

impl Temperature {
    /// The factor of a row's scale.
    pub fn factor(&self, position: u32) -> f64 {
        1.0 + f64::from(self.beta) * f64::from(position / self.length.max(1)).ln_1p()
    }
}

impl<T> From<f32> for Scores<T> {
    fn from(scale: f32) -> Scores<T> {
        Scores { scale, window: None, softcap: None, temperature: None, sinks: None }
    }
}

impl<T> Scores<T> {
    /// Whether there is nothing but a scale.
    pub fn is_plain(&self) -> bool {
        self.window.is_none() && self.softcap.is_none() && self.temperature.is_none() && self.sinks.is_none()
    }

    /// The same scores for sequences of at most `capacity` positions: without a window or a temperature that
    /// no position reaches.
    pub fn up_to(self, capacity: u32) -> Scores<T> {
        Scores {
            window: self.window.filter(|window| *window < capacity),
            temperature: self.temperature.filter(|temperature| temperature.length < capacity),
            ..self
        }
    }

    /// The first position that a row sees.
    pub fn first_visible(&self, position: u32) -> u32 {
        self.window.map_or(0, |window| (position as u64 + 1).saturating_sub(window.into()) as u32)
    }

    /// With the sinks in another form, such as their address.
    pub fn map<U>(self, to: impl FnOnce(T) -> U) -> Scores<U> {
        let Scores { scale, window, softcap, temperature, sinks } = self;
        Scores { scale, window, softcap, temperature, sinks: sinks.map(to) }
    }

    pub(crate) fn check(&self) -> Checked<()> {
        finite("the scale", self.scale)?;
        self.window.map_or(Ok(()), |window| at_least_1("the sliding window", window))?;
        if let Some(cap) = self.softcap {
            above_0("the cap of the scores", cap)?;
        }
        if let Some(Temperature { length, beta }) = self.temperature {
            at_least_1("the length of the attention temperature", length)?;
            finite("beta of the attention temperature", beta)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_end_at_the_row() {
        let scores = Scores::<u64> { window: Some(4), ..1.0.into() };
        assert_eq!([0, 3, 4, 100, u32::MAX].map(|p| scores.first_visible(p)), [0, 0, 1, 97, u32::MAX - 3]);
        assert_eq!(Scores::<u64>::from(1.0).first_visible(1000), 0);
        let whole = Scores::<u64> { window: Some(u32::MAX), ..1.0.into() };
        assert_eq!(whole.first_visible(u32::MAX - 1), 0);
    }

    #[test]
    fn what_no_position_reaches_is_dropped() {
        let temperature = Some(Temperature { length: 8, beta: 0.1 });
        let scores = Scores::<u64> { window: Some(5), temperature, ..1.0.into() };
        assert!(scores.up_to(5).is_plain());
        assert_eq!((scores.up_to(6).window, scores.up_to(8).temperature), (Some(5), None));
        assert_eq!(scores.up_to(9), scores);
    }

    #[test]
    fn temperatures_grow_by_steps() {
        let temperature = Temperature { length: 8, beta: 0.5 };
        assert_eq!(temperature.factor(7), 1.0);
        assert!((temperature.factor(8) - (1.0 + 0.5 * 2f64.ln())).abs() < 1e-12);
        assert_eq!(temperature.factor(23), temperature.factor(16));
    }
}
