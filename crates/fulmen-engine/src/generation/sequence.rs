//! The host's view of one sequence of a session.

use fulmen_core::sampling::TokenMask;

use super::Sampling;

/// Recurrent states that a session keeps of each sequence, beside that behind its last token: those at the
/// last chunk border of a prompt and at its end.
pub(super) const KEPT_STATES: usize = 2;

/// States are kept of prompts of at least so many new tokens.
const LEAST_KEPT: usize = 32;

/// A recurrent state that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    /// The tokens that it has seen.
    len: usize,
    /// Where it lies, of the [`KEPT_STATES`] places of the sequence.
    place: usize,
}

/// The tokens of one sequence and how many of them are in the KV cache.
#[derive(Clone, Debug, Default)]
pub(super) struct Sequence {
    /// All tokens, fed or drawn.
    pub(super) tokens: Vec<u32>,
    /// How many of them are in the KV cache and in the recurrent state.
    pub(super) fed: usize,
    /// Whether layers have a recurrent state, which goes back only to where it was kept.
    recurrent: bool,
    /// The states that are kept, by their lengths.
    kept: Vec<Kept>,
    /// The lengths at which the state is to be kept.
    wanted: [usize; 2],
    /// The place of the state with which the next step begins; `None` for the one that there is.
    restore: Option<usize>,
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

    /// So many tokens count as fed, of those that are. A recurrent state goes back to the nearest one before
    /// that is kept, or to the beginning.
    fn rewind(&mut self, fed: usize) {
        if fed >= self.fed {
            return;
        }
        match self.recurrent {
            true => self.go_back(fed),
            false => self.fed = fed,
        }
    }

    fn go_back(&mut self, limit: usize) {
        let kept = self.kept_before(limit);
        self.fed = kept.map_or(0, |kept| kept.len);
        self.restore = kept.map(|kept| kept.place);
    }

    fn kept_before(&self, limit: usize) -> Option<Kept> {
        self.kept.iter().rev().find(|kept| kept.len <= limit).copied()
    }

    /// A step failed that may have changed the recurrent state.
    pub(super) fn failed(&mut self) {
        if self.recurrent {
            self.go_back(self.fed);
        }
    }

    /// Keeps the first `len` tokens.
    pub(super) fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.kept.retain(|kept| kept.len <= len);
        self.rewind(self.tokens.len());
    }

    /// All tokens up to `total` are fed in chunks of so many: the state is kept at the last border and at the
    /// end.
    pub(super) fn keep_states(&mut self, total: usize, chunk: usize) {
        let new = total.saturating_sub(self.fed);
        self.wanted = [0; 2];
        if self.recurrent && new >= LEAST_KEPT {
            self.wanted = [total - (new - 1) % chunk - 1, total];
        }
    }

    /// The place for the state behind the tokens that were fed, if it is to be kept.
    pub(super) fn place_to_keep(&mut self) -> Option<usize> {
        let len = self.fed;
        if len == 0 || !self.wanted.contains(&len) || self.kept.iter().any(|kept| kept.len == len) {
            return None;
        }
        if self.kept.len() == KEPT_STATES {
            self.kept.remove(0);
        }
        (0..KEPT_STATES).find(|&place| self.kept.iter().all(|kept| kept.place != place))
    }

    /// The state behind the tokens that were fed is in this place.
    pub(super) fn kept(&mut self, place: usize) {
        let at = self.kept.partition_point(|kept| kept.len < self.fed);
        self.kept.insert(at, Kept { len: self.fed, place });
    }

    /// The place of the state that a step begins with, if it is not the one that there is.
    pub(super) fn take_restore(&mut self) -> Option<usize> {
        self.restore.take()
    }

    /// Makes sure that there is a token to feed, because only feeding produces results. The keys and values
    /// of the last token may be written a second time, with the same values; with a recurrent state all
    /// tokens behind the last one that is kept are fed again.
    pub(super) fn reopen(&mut self) {
        self.rewind(self.tokens.len().saturating_sub(1));
    }

    /// How many tokens are run to get results after the last of `len` tokens, which begin with those of the
    /// sequence. If every one has been fed, the last one is run again, or all behind a state that is kept.
    pub(super) fn to_feed(&self, len: usize) -> usize {
        match len.saturating_sub(self.fed) {
            0 if self.recurrent => len - self.kept_before(len.saturating_sub(1)).map_or(0, |kept| kept.len),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds a prompt of so many tokens in chunks, and keeps states as a session does.
    fn feed(sequence: &mut Sequence, total: usize, chunk: usize) {
        sequence.tokens.resize(total, 0);
        sequence.keep_states(total, chunk);
        while sequence.fed < total {
            sequence.take_restore();
            sequence.fed = total.min(sequence.fed + chunk);
            if let Some(place) = sequence.place_to_keep() {
                sequence.kept(place);
            }
        }
    }

    #[test]
    fn a_recurrent_state_goes_back_to_one_that_was_kept() {
        let mut sequence = Sequence::new(true);
        feed(&mut sequence, 150, 64);
        assert_eq!(sequence.kept, [Kept { len: 128, place: 0 }, Kept { len: 150, place: 1 }]);
        // Decoded, and then dropped.
        sequence.drew(1);
        sequence.drew(2);
        sequence.truncate(150);
        assert_eq!((sequence.fed, sequence.restore), (150, Some(1)));
        assert_eq!(sequence.to_feed(150), 22, "the last token runs once more, and those behind 128");
        sequence.reopen();
        assert_eq!((sequence.fed, sequence.restore, sequence.kept.len()), (128, Some(0), 2));
        sequence.truncate(140);
        assert_eq!((sequence.fed, sequence.kept.len()), (128, 1));
        // A short prompt is not kept, and a longer one takes the free place.
        feed(&mut sequence, 150, 64);
        assert_eq!((sequence.kept.len(), sequence.take_restore()), (1, None));
        feed(&mut sequence, 200, 64);
        assert_eq!(sequence.kept, [Kept { len: 128, place: 0 }, Kept { len: 200, place: 1 }]);
        feed(&mut sequence, 300, 64);
        assert_eq!(sequence.kept, [Kept { len: 264, place: 0 }, Kept { len: 300, place: 1 }]);
        sequence.failed();
        assert_eq!((sequence.fed, sequence.restore), (300, Some(1)));
        sequence.truncate(10);
        assert_eq!((sequence.fed, sequence.restore, sequence.kept.len()), (0, None, 0));
    }

    #[test]
    fn a_kv_cache_goes_back_anywhere() {
        let mut sequence = Sequence::new(false);
        feed(&mut sequence, 100, 64);
        sequence.truncate(77);
        assert_eq!((sequence.fed, sequence.to_feed(77), sequence.restore), (77, 1, None));
        assert!(sequence.kept.is_empty());
    }
}
