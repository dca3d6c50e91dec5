//! How attention turns dot products of queries and keys into scores, and which keys a row sees.

use super::checks::{Checked, above_0, at_least_1, finite};

/// The scores of attention: `softcap(scale · temperature(position) · q · k)` for the keys that a row
/// sees, and the sink of each head. A plain scale converts into it: `0.125.into()`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores<T = u64> {
    /// Multiplies the dot products.
    pub scale: f32,
    /// Sliding window: a row at position `p` sees the keys at positions `k` with `p - k < window`. Without
    /// one it sees all up to its own.
    pub window: Option<u32>,
    /// Chunked attention: positions are divided into chunks of so many, and a row sees the keys of its own
    /// one, those at position `p / chunk * chunk` and above (Llama 4). Those of the window, if there is one,
    /// are the only ones of them that it sees.
    pub chunk: Option<u32>,
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
        Scores { scale, window: None, chunk: None, softcap: None, temperature: None, sinks: None }
    }
}

impl<T> Scores<T> {
    /// Whether there is nothing but a scale.
    pub fn is_plain(&self) -> bool {
        let Scores { scale: _, window, chunk, softcap, temperature, sinks } = self;
        window.is_none() && chunk.is_none() && softcap.is_none() && temperature.is_none() && sinks.is_none()
    }

    /// The same scores for sequences of at most `capacity` positions: without a window, chunks or a
    /// temperature that no position reaches.
    pub fn up_to(self, capacity: u32) -> Scores<T> {
        Scores {
            window: self.window.filter(|window| *window < capacity),
            chunk: self.chunk.filter(|chunk| *chunk < capacity),
            temperature: self.temperature.filter(|temperature| temperature.length < capacity),
            ..self
        }
    }

    /// The first position that a row sees.
    pub fn first_visible(&self, position: u32) -> u32 {
        let window =
            self.window.map_or(0, |window| (u64::from(position) + 1).saturating_sub(window.into()) as u32);
        window.max(self.chunk.map_or(0, |chunk| position - position % chunk.max(1)))
    }

    /// The most keys that a row sees, if there is a limit.
    pub fn most_visible(&self) -> Option<u32> {
        [self.window, self.chunk].into_iter().flatten().min()
    }

    /// With the sinks in another form, such as their address.
    pub fn map<U>(self, to: impl FnOnce(T) -> U) -> Scores<U> {
        let Scores { scale, window, chunk, softcap, temperature, sinks } = self;
        Scores { scale, window, chunk, softcap, temperature, sinks: sinks.map(to) }
    }

    pub(crate) fn check(&self) -> Checked<()> {
        finite("the scale", self.scale)?;
        self.window.map_or(Ok(()), |window| at_least_1("the sliding window", window))?;
        self.chunk.map_or(Ok(()), |chunk| at_least_1("the attention chunk", chunk))?;
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
    fn chunks_begin_at_their_multiples() {
        let scores = Scores::<u64> { chunk: Some(4), ..1.0.into() };
        let first = |scores: Scores| [0, 3, 4, 7, 101, u32::MAX].map(|p| scores.first_visible(p));
        assert_eq!(first(scores), [0, 0, 4, 4, 100, u32::MAX - 3]);
        let both = Scores { window: Some(2), ..scores };
        assert_eq!(first(both), [0, 2, 4, 6, 100, u32::MAX - 1]);
        assert_eq!((scores.most_visible(), both.most_visible()), (Some(4), Some(2)));
        assert!(scores.up_to(4).is_plain() && !scores.up_to(5).is_plain());
        let zero = Scores { chunk: Some(0), ..scores }.check().unwrap_err().to_string();
        assert_eq!(zero, "the attention chunk must be at least 1, got 0");
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
