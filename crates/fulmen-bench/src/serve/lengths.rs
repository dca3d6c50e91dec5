//! How long prompts and answers are.

use std::fmt;
use std::str::FromStr;

/// A distribution of lengths in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    /// Always the same: `128`.
    Fixed(u32),
    /// Each length between two as likely as the others: `64-512`.
    Uniform(u32, u32),
    /// Many short ones and few long ones, with this mean and at most eight times it: `~256`.
    Exponential(u32),
}

/// The longest length of an exponential distribution, in means.
const LONGEST: u32 = 8;

impl Lengths {
    /// A length, at least 1.
    pub(super) fn draw(self, random: &mut fastrand::Rng) -> u32 {
        match self {
            Lengths::Fixed(length) => length,
            Lengths::Uniform(low, high) => random.u32(low..=high),
            Lengths::Exponential(mean) => {
                let length = -(1.0 - random.f64()).ln() * f64::from(mean);
                (length.round() as u32).clamp(1, self.most())
            }
        }
    }

    /// The longest length.
    pub fn most(self) -> u32 {
        match self {
            Lengths::Fixed(length) => length,
            Lengths::Uniform(_, high) => high,
            Lengths::Exponential(mean) => mean.saturating_mul(LONGEST),
        }
    }

    /// The length, if it is always the same.
    pub fn fixed(self) -> Option<u32> {
        match self {
            Lengths::Fixed(length) => Some(length),
            _ => None,
        }
    }
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Lengths, String> {
        let number = |text: &str| text.parse::<u32>().ok().filter(|&length| (1..=1 << 24).contains(&length));
        let lengths = match (text.strip_prefix('~'), text.split_once('-')) {
            (Some(mean), _) => number(mean).map(Lengths::Exponential),
            (None, Some((low, high))) => match (number(low), number(high)) {
                (Some(low), Some(high)) if low <= high => Some(Lengths::Uniform(low, high)),
                _ => None,
            },
            (None, None) => number(text).map(Lengths::Fixed),
        };
        lengths.ok_or_else(|| "expected tokens: 128, 64-512 (uniform) or ~256 (exponential)".to_owned())
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lengths::Fixed(length) => write!(f, "{length}"),
            Lengths::Uniform(low, high) => write!(f, "{low}-{high}"),
            Lengths::Exponential(mean) => write!(f, "~{mean}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_as_they_are_written() {
        for text in ["1", "128", "64-512", "7-7", "~256"] {
            assert_eq!(text.parse::<Lengths>().unwrap().to_string(), text);
        }
        for text in ["", "0", "-1", "9-3", "0-3", "~", "~0", "a", "1-2-3", "99999999999"] {
            assert!(text.parse::<Lengths>().is_err(), "{text}");
        }
    }

    #[test]
    fn lengths_have_their_range_and_mean() {
        let mut random = fastrand::Rng::with_seed(7);
        for (lengths, low, mean) in [
            (Lengths::Fixed(9), 9, 9.0),
            (Lengths::Uniform(10, 30), 10, 20.0),
            (Lengths::Exponential(100), 1, 100.0),
        ] {
            let drawn: Vec<u32> = (0..20_000).map(|_| lengths.draw(&mut random)).collect();
            assert!(drawn.iter().all(|&length| (low..=lengths.most()).contains(&length)), "{lengths}");
            let found = drawn.iter().map(|&length| f64::from(length)).sum::<f64>() / drawn.len() as f64;
            assert!((found - mean).abs() < 0.04 * mean, "{lengths}: {found}");
        }
    }
}
