//! One sequence of a session, as the host knows it.

use super::Sampling;

/// The tokens of one sequence and how many of them are in the cache.
#[derive(Clone, Debug, Default)]
pub(super) struct Sequence {
    /// All tokens, fed or drawn.
    pub(super) tokens: Vec<u32>,
    /// How many of them are in the cache.
    pub(super) fed: usize,
    /// How many tokens it has drawn.
    pub(super) draws: u32,
    pub(super) sampling: Sampling,
}

impl Sequence {
    /// Keeps the first `len` tokens.
    pub(super) fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.fed = self.fed.min(self.tokens.len());
    }

    /// Makes sure that there is a token to feed: results come from feeding. The last one's keys and values are written
    /// again, to the same.
    pub(super) fn reopen(&mut self) {
        self.fed = self.fed.min(self.tokens.len().saturating_sub(1));
    }

    /// A token that was drawn; the one before it has been fed.
    pub(super) fn drew(&mut self, token: u32) {
        self.fed = self.tokens.len();
        self.tokens.push(token);
        self.draws = self.draws.wrapping_add(1);
    }
}
