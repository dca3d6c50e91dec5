//! The host's view of one sequence of a session.

use fulmen_core::sampling::TokenMask;

use super::Sampling;

/// The tokens of one sequence and how many of them are in the KV cache.
#[derive(Clone, Debug, Default)]
pub(super) struct Sequence {
    /// All tokens, fed or drawn.
    pub(super) tokens: Vec<u32>,
    /// How many of them are in the KV cache and in the recurrent state.
    pub(super) fed: usize,
    /// Whether layers have a recurrent state, which cannot go back.
    recurrent: bool,
    /// Number of tokens drawn.
    pub(super) draws: u32,
    pub(super) sampling: Sampling,
    /// The tokens that may be drawn; all if not given.
    pub(super) mask: Option<TokenMask>,
}

impl Sequence {
    /// A sequence without tokens.
    pub(super) fn new(recurrent: bool) -> Sequence {
        Sequence { recurrent, ..Sequence::default() }
    }

    /// So many tokens count as fed, of those that are. A recurrent state has seen all of them or must start
    /// anew.
    fn rewind(&mut self, fed: usize) {
        if fed < self.fed {
            self.fed = if self.recurrent { 0 } else { fed };
        }
    }

    /// A step failed that may have changed the recurrent state.
    pub(super) fn failed(&mut self) {
        if self.recurrent {
            self.fed = 0;
        }
    }

    /// Keeps the first `len` tokens.
    pub(super) fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.rewind(self.tokens.len());
    }

    /// Makes sure that there is a token to feed, because only feeding produces results. The keys and values
    /// of the last token may be written a second time, with the same values; with a recurrent state all
    /// tokens are fed again.
    pub(super) fn reopen(&mut self) {
        self.rewind(self.tokens.len().saturating_sub(1));
    }

    /// How many tokens are run to get results after the last of `len` tokens, which begin with those of the
    /// sequence. If every one has been fed, the last one is run again, or all of them.
    pub(super) fn to_feed(&self, len: usize) -> usize {
        match len.saturating_sub(self.fed) {
            0 if self.recurrent => len,
            0 => 1,
            left => left,
        }
    }

    /// Appends a token that was drawn; the previous one has been fed.
    pub(super) fn drew(&mut self, token: u32) {
        self.fed = self.tokens.len();
        self.tokens.push(token);
        self.draws = self.draws.wrapping_add(1);
    }
}
