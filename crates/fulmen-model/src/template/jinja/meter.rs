//! What rendering may cost: steps, bytes and items are counted, each as one, and so is the depth of nesting.

use super::error::{Failure, Result};

/// How deep calls, expressions and blocks may nest in each other while they run.
pub(super) const MAX_DEPTH: usize = 200;
/// How deep lists and mappings may nest in each other.
pub(super) const MAX_NESTING: usize = 64;

/// Counts down what is left.
#[derive(Debug)]
pub(super) struct Meter {
    limit: u64,
    left: u64,
    depth: usize,
}

impl Meter {
    pub(super) fn new(limit: u64) -> Meter {
        Meter { limit, left: limit, depth: 0 }
    }

    /// Pays for something before it is done. Memory is paid for by the byte, so it is limited too.
    pub(super) fn pay(&mut self, cost: usize) -> Result<()> {
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        self.left = self.left.checked_sub(cost).ok_or(Failure::Work { limit: self.limit })?;
        Ok(())
    }

    /// Pays for a list of that many values.
    pub(super) fn pay_items(&mut self, count: usize) -> Result<()> {
        self.pay(count.saturating_mul(size_of::<super::value::Value>()))
    }

    pub(super) fn enter(&mut self) -> Result<()> {
        if self.depth == MAX_DEPTH {
            return Err(Failure::Depth { limit: MAX_DEPTH });
        }
        self.depth += 1;
        Ok(())
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }
}
