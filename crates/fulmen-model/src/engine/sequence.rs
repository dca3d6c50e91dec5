//! The host's view of one sequence of a session.

use fulmen_core::sampling::TokenMask;

use super::Sampling;

/// The tokens of one sequence and how many of them are in the KV cache.
#[derive(Clone, Debug, Default)]
pub(super) struct Sequence {
    /// All tokens, fed or drawn.
    pub(super) tokens: Vec<u32>,
    /// How many of them are in the KV cache.
    pub(super) fed: usize,
    /// Number of tokens drawn.
    pub(super) draws: u32,
    pub(super) sampling: Sampling,
    /// The tokens that may be drawn; all if not given.
    pub(super) mask: Option<TokenMask>,
}

impl Sequence {
    /// Keeps the first `len` tokens.
    pub(super) fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.fed = self.fed.min(self.tokens.len());
    }

    /// Makes sure that there is a token to feed, because only feeding produces results. The keys and values
    /// of the last token may be written a second time, with the same values.
    pub(super) fn reopen(&mut self) {
        self.fed = self.fed.min(self.tokens.len().saturating_sub(1));
    }

    /// Appends a token that was drawn; the previous one has been fed.
    pub(super) fn drew(&mut self, token: u32) {
        self.fed = self.tokens.len();
        self.tokens.push(token);
        self.draws = self.draws.wrapping_add(1);
    }
}
