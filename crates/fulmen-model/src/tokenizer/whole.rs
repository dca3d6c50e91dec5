//! Which tokens BPE produces from their own text.
//!
//! Most pre-tokens are themselves a token, and merging would only arrive at that token again. For a few
//! tokens it would not, because no sequence of merges produces them. Each token is checked when it is first
//! encountered.

use std::sync::atomic::{AtomicU8, Ordering};

use super::{TokenizerError, error::reserve};

/// What is known about each token so far. Threads that race write the same value.
#[derive(Debug)]
pub(super) struct Whole(Vec<AtomicU8>);

const YES: u8 = 1;
const NO: u8 = 2;

impl Whole {
    pub(super) fn new(tokens: usize) -> Result<Whole, TokenizerError> {
        let mut known = Vec::new();
        reserve(known.try_reserve_exact(tokens), "the tokens", tokens)?;
        known.resize_with(tokens, || AtomicU8::new(0));
        Ok(Whole(known))
    }

    /// Whether merging the token's text is known to produce the token.
    #[inline]
    pub(super) fn is_sure(&self, id: u32) -> bool {
        self.0[id as usize].load(Ordering::Relaxed) == YES
    }

    /// Records whether merging the token's text produces the token.
    pub(super) fn learn(&self, id: u32, merged: &[u32]) {
        self.0[id as usize].store(if merged == [id] { YES } else { NO }, Ordering::Relaxed);
    }
}
