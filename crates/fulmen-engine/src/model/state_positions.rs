//! Where the recurrent states of an engine's slots are. A state continues at one position only: that behind
//! the last row that it has seen, or 0, where it starts from zeros.

use crate::error::LaunchError;
use crate::step::Rows;

/// A state that no row can continue.
const UNKNOWN: u32 = u32::MAX;

/// The position that each slot's state continues at.
pub(super) struct StatePositions(Vec<u32>);

impl StatePositions {
    pub(super) fn new(slots: u32) -> StatePositions {
        StatePositions(vec![UNKNOWN; slots as usize])
    }

    /// An error if a row neither starts its state nor continues it.
    pub(super) fn check(&self, rows: &Rows) -> Result<(), LaunchError> {
        let mut next = self.0.clone();
        for row in rows.iter() {
            let (slot, position) = (row.slot, row.position);
            let Some(expected) = next.get_mut(slot as usize) else { continue };
            if position != 0 && position != *expected {
                let reason = format!("the recurrent state does not continue at position {position}");
                return Err(LaunchError::Rejected { slot, reason });
            }
            *expected = position.saturating_add(1);
        }
        Ok(())
    }

    /// The rows were launched; if that failed, their states may have seen some of them.
    pub(super) fn ran(&mut self, rows: &Rows, launched: bool) {
        for row in rows.iter() {
            if let Some(next) = self.0.get_mut(row.slot as usize) {
                *next = if launched { row.position.saturating_add(1) } else { UNKNOWN };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::{Row, RowToken};

    fn rows(rows: &[(u32, u32)]) -> Rows {
        let mut all = Rows::default();
        for &(slot, position) in rows {
            all.push(Row { token: RowToken::Known(1), position, slot });
        }
        all.pad(8);
        all
    }

    #[test]
    fn a_state_starts_at_0_or_goes_on_where_it_is() {
        let mut states = StatePositions::new(3);
        let prompt = rows(&[(1, 0), (1, 1), (2, 0)]);
        assert!(states.check(&prompt).is_ok());
        states.ran(&prompt, true);
        assert!(states.check(&rows(&[(1, 2), (1, 3), (2, 1)])).is_ok());
        for wrong in [(0, 5), (1, 1), (1, 3), (2, 2)] {
            let error = states.check(&rows(&[wrong])).unwrap_err();
            assert!(matches!(error, LaunchError::Rejected { slot, .. } if slot == wrong.0), "{error:?}");
        }
        assert!(states.check(&rows(&[(1, 0), (1, 2)])).is_err());
        states.ran(&rows(&[(1, 2)]), false);
        assert!(states.check(&rows(&[(1, 2)])).is_err() && states.check(&rows(&[(1, 3)])).is_err());
        assert!(states.check(&rows(&[(1, 0), (2, 1)])).is_ok());
    }
}
