//! The budget of rendering: each step, byte and item costs one unit. Also limits the nesting depth.

use super::error::{Failure, Result};

/// Maximum nesting depth of calls, expressions and blocks at run time.
pub(super) const MAX_DEPTH: usize = 200;
/// Maximum nesting depth of lists and mappings.
pub(super) const MAX_NESTING: usize = 64;

/// The remaining budget and current depth.
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

    /// Charges the budget before the work is done. Memory is charged by the byte, so it is limited, too.
    pub(super) fn pay(&mut self, cost: usize) -> Result<()> {
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        self.left = self.left.checked_sub(cost).ok_or(Failure::Work { limit: self.limit })?;
        Ok(())
    }

    /// Charges for a list of this many values.
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
