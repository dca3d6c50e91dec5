//! Restrictions of the tokens that may be sampled.

use std::sync::Arc;

/// A bit per token: bit `t % 32` of word `t / 32` is set if token `t` is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask(pub Arc<[u32]>);

impl TokenMask {
    /// A mask for `vocabulary` tokens.
    pub fn new(vocabulary: u32, allowed: impl Fn(u32) -> bool) -> TokenMask {
        let mut words = vec![0; vocabulary.div_ceil(32) as usize];
        (0..vocabulary)
            .filter(|&token| allowed(token))
            .for_each(|token| words[token as usize / 32] |= 1 << (token % 32));
        TokenMask(words.into())
    }

    /// Whether a token is allowed.
    pub fn allows(&self, token: u32) -> bool {
        self.0.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// Whether no token is allowed.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }
}

/// Restricts the tokens of a sequence, for example to a grammar. An error ends the sequence.
pub trait Constraint: Send {
    /// The tokens that may come next; none if the sequence is complete and no token ends it. It may be called
    /// several times for the same position.
    fn mask(&mut self) -> Result<TokenMask, String>;

    /// Goes on after a token that was sampled.
    fn accept(&mut self, token: u32) -> Result<(), String>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_a_bit_per_token() {
        let mask = TokenMask::new(70, |token| token % 33 == 2);
        assert_eq!(*mask.0, [1 << 2, 1 << 3, 1 << 4]);
        assert!(mask.allows(35) && !mask.allows(34) && !mask.allows(1000) && !mask.is_empty());
        assert!(TokenMask::new(0, |_| true).is_empty() && TokenMask::new(40, |_| false).is_empty());
    }
}
