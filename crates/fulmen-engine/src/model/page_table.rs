//! The page table of a group of layers in device memory, and the host's copy of it.

use fulmen_core::{Backend, BackendError, NO_PAGE};

use super::options::Slots;
use crate::step::TableEdit;

/// `[slot][position / 128]`
pub(super) struct PageTable {
    /// Where the device has it.
    ptr: u64,
    pages: Vec<u32>,
    columns: usize,
    /// Slots of sequences.
    sequences: u32,
}

impl PageTable {
    /// The table of a pool of `pages` pages, of which the last is that of inactive rows. On the device it is
    /// not there yet.
    pub(super) fn new(slots: Slots, columns: u32, pages: u32) -> PageTable {
        let columns = columns as usize;
        let mut table = vec![NO_PAGE; slots.all() as usize * columns];
        for line in table.chunks_mut(columns.max(1)).skip(slots.sequences as usize) {
            line[0] = pages - 1;
        }
        PageTable { ptr: 0, pages: table, columns, sequences: slots.sequences }
    }

    pub(super) fn bytes(&self) -> usize {
        4 * self.pages.len()
    }

    /// Writes it to `ptr`, where it stays.
    pub(super) fn place(&mut self, device: &mut dyn Backend, ptr: u64) -> Result<(), BackendError> {
        self.ptr = ptr;
        device.write(ptr, bytemuck::cast_slice(&self.pages))
    }

    pub(super) fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Changes it: one write from the first to the last change of each slot.
    pub(super) fn edit<'a>(
        &mut self,
        device: &mut dyn Backend,
        edits: impl Iterator<Item = &'a TableEdit>,
    ) -> Result<(), BackendError> {
        let mut changed: Vec<usize> = Vec::new();
        for edit in edits {
            let (column, value) = (edit.index as usize, edit.slot);
            if edit.slot >= self.sequences || column >= self.columns {
                let limit = self.sequences;
                return Err(BackendError::Index { what: "the slot of a page", row: column, value, limit });
            }
            let at = edit.slot as usize * self.columns + column;
            self.pages[at] = edit.page.map_or(NO_PAGE, |page| page.0);
            changed.push(at);
        }
        changed.sort_unstable();
        for run in changed.chunk_by(|a, b| a / self.columns == b / self.columns) {
            let (Some(&first), Some(&last)) = (run.first(), run.last()) else { continue };
            let words = &self.pages[first..=last];
            device.write(self.ptr + 4 * first as u64, bytemuck::cast_slice(words))?;
        }
        Ok(())
    }
}
