//! What the pages of recurrent states hold: each a state that continues at one position only, that behind the
//! last row that it has seen, or at 0, where it starts from zeros.

use crate::error::LaunchError;
use crate::pages::{GroupConfig, Transfer};
use crate::step::{Rows, StepPlan};

/// The group of recurrent states, of models that have some.
pub(super) const GROUP: u32 = 1;

/// A state that no row can continue.
const UNKNOWN: u32 = u32::MAX;

/// The position that each page's state continues at.
#[derive(Clone)]
pub(super) struct StatePositions {
    pages: Vec<u32>,
    host: Vec<u32>,
    /// The page of each slot.
    of_slot: Vec<Option<u32>>,
}

impl StatePositions {
    pub(super) fn new(slots: u32, group: GroupConfig) -> StatePositions {
        StatePositions {
            pages: vec![UNKNOWN; group.pages as usize],
            host: vec![UNKNOWN; group.host_pages as usize],
            of_slot: vec![None; slots as usize],
        }
    }

    /// An error if a row neither starts its state nor continues it, or if two slots have rows of one state.
    pub(super) fn check(&self, plan: &StepPlan) -> Result<(), LaunchError> {
        let mut next = self.clone();
        next.follow(plan)?;
        next.run(&plan.rows)
    }

    /// The plan was launched; if that failed, the states of its rows may have seen some of them.
    pub(super) fn ran(&mut self, plan: &StepPlan, launched: bool) {
        let mut next = self.clone();
        // It was checked before.
        if next.follow(plan).is_err() || launched && next.run(&plan.rows).is_err() {
            return;
        }
        if launched {
            *self = next;
            return;
        }
        // The next plan brings what precedes the rows once more.
        for row in plan.rows.iter() {
            if let Some(&Some(page)) = next.of_slot.get(row.slot as usize) {
                self.pages[page as usize] = UNKNOWN;
            }
        }
    }

    /// Copies pages and changes those of slots.
    fn follow(&mut self, plan: &StepPlan) -> Result<(), LaunchError> {
        let outside = || LaunchError::Failed("a page of states that does not exist".to_owned());
        let get = |pages: &[u32], page: u32| pages.get(page as usize).copied().ok_or_else(outside);
        for transfer in plan.prologue.transfers.iter().filter(|transfer| transfer.group() == GROUP) {
            let (position, to) = match *transfer {
                Transfer::Copy { from, to, .. } => {
                    (get(&self.pages, from.0)?, self.pages.get_mut(to.0 as usize))
                }
                Transfer::SwapOut { from, to, .. } => {
                    (get(&self.pages, from.0)?, self.host.get_mut(to.0 as usize))
                }
                Transfer::SwapIn { from, to, .. } => {
                    (get(&self.host, from.0)?, self.pages.get_mut(to.0 as usize))
                }
            };
            *to.ok_or_else(outside)? = position;
        }
        for edit in plan.prologue.table.iter().filter(|edit| edit.group == GROUP) {
            let page = edit.page.map(|page| get(&self.pages, page.0).map(|_| page.0)).transpose()?;
            *self.of_slot.get_mut(edit.slot as usize).ok_or_else(outside)? = page;
        }
        Ok(())
    }

    fn run(&mut self, rows: &Rows) -> Result<(), LaunchError> {
        let mut writer: Vec<Option<u32>> = vec![None; self.pages.len()];
        for row in rows.iter() {
            let (slot, position) = (row.slot, row.position);
            let rejected = |reason: String| Err(LaunchError::Rejected { slot, reason });
            let Some(&Some(page)) = self.of_slot.get(slot as usize) else {
                return rejected("the slot has no page for its recurrent state".to_owned());
            };
            let (expected, writer) = (&mut self.pages[page as usize], &mut writer[page as usize]);
            if writer.is_some_and(|other| other != slot) {
                return rejected("the page of its recurrent state is that of another slot".to_owned());
            }
            if position != 0 && position != *expected {
                return rejected(format!("the recurrent state does not continue at position {position}"));
            }
            (*expected, *writer) = (position.saturating_add(1), Some(slot));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::{GroupKind, PageId};
    use crate::step::{Prologue, Row, RowToken, TableEdit};

    fn plan(pages: &[(u32, u32)], transfers: &[Transfer], rows: &[(u32, u32)]) -> StepPlan {
        let edit =
            |&(slot, page): &(u32, u32)| TableEdit { group: GROUP, slot, index: 0, page: Some(PageId(page)) };
        let mut all = Rows::default();
        for &(slot, position) in rows {
            all.push(Row { token: RowToken::Known(1), position, slot });
        }
        all.pad(8);
        let table = pages.iter().map(edit).collect();
        let prologue = Prologue { transfers: transfers.to_vec(), table, ..Prologue::default() };
        StepPlan { prologue, rows: all, ..StepPlan::default() }
    }

    fn states() -> StatePositions {
        StatePositions::new(3, GroupConfig { kind: GroupKind::Recurrent, pages: 5, host_pages: 2 })
    }

    fn rows(rows: &[(u32, u32)]) -> StepPlan {
        plan(&[], &[], rows)
    }

    #[test]
    fn a_state_starts_at_0_or_goes_on_where_it_is() {
        let mut states = states();
        assert!(states.check(&rows(&[(1, 0)])).is_err(), "no page");
        let prompt = plan(&[(0, 0), (1, 1), (2, 2)], &[], &[(1, 0), (1, 1), (2, 0)]);
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

    #[test]
    fn copies_and_swaps_take_the_position_along() {
        let mut states = states();
        states.ran(&plan(&[(0, 0)], &[], &[(0, 0), (0, 1)]), true);
        let (group, page) = (1, PageId);
        let copy = Transfer::Copy { group, from: page(0), to: page(3) };
        let other = Transfer::Copy { group: 0, from: page(1), to: page(0) };
        // A snapshot stays in page 0, and a second sequence starts from it.
        let copied = plan(&[(0, 3)], &[copy, other], &[(0, 2)]);
        assert!(states.check(&copied).is_ok());
        states.ran(&copied, true);
        let second =
            plan(&[(1, 4)], &[Transfer::Copy { group, from: page(0), to: page(4) }], &[(1, 2), (0, 3)]);
        assert!(states.check(&second).is_ok());
        assert!(states.check(&plan(&[(1, 4)], &[], &[(1, 2)])).is_err(), "nothing was copied");
        assert!(states.check(&plan(&[(1, 3)], &[], &[(1, 3), (0, 4)])).is_err(), "two slots, one page");
        states.ran(&plan(&[], &[Transfer::SwapOut { group, from: page(3), to: page(1) }], &[]), true);
        let back = [Transfer::SwapIn { group, from: page(1), to: page(2) }];
        assert!(states.check(&plan(&[(2, 2)], &back, &[(2, 3)])).is_ok());
        assert!(states.check(&plan(&[(2, 2)], &back, &[(2, 4)])).is_err());
        assert!(states.check(&plan(&[(2, 5)], &[], &[(2, 0)])).is_err(), "there is no such page");
    }
}
