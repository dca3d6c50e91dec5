//! Which tokens their own text leads to.
//!
//! Most pieces of a text are a token as a whole, and merging would only find that token again. For a few tokens it
//! would not: no merges lead to them. Each token is found out when it is first met.

use std::sync::atomic::{AtomicU8, Ordering};

/// What is known of each token so far. Threads that find out the same at once write the same.
#[derive(Debug)]
pub(super) struct Whole(Vec<AtomicU8>);

const YES: u8 = 1;
const NO: u8 = 2;

impl Whole {
    pub(super) fn new(tokens: usize) -> Whole {
        Whole((0..tokens).map(|_| AtomicU8::new(0)).collect())
    }

    /// Whether merging the token's text is known to give the token.
    #[inline]
    pub(super) fn is_sure(&self, id: u32) -> bool {
        self.0[id as usize].load(Ordering::Relaxed) == YES
    }

    /// Keeps what merging the text of a token gave.
    pub(super) fn learn(&self, id: u32, merged: &[u32]) {
        self.0[id as usize].store(if merged == [id] { YES } else { NO }, Ordering::Relaxed);
    }
}
