//! The pages of one sequence.

use std::collections::VecDeque;

use super::pool::PageId;
use crate::prefix_cache::NodeId;

/// The kind of rows that wrote a page.
///
/// Prefill and decode may round differently. In batch-invariant mode a page that decode rows have written is
/// therefore never used in place of one that prefill would have written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Writer {
    /// Only rows of prefill chunks, or nothing yet.
    #[default]
    Prefill,
    /// At least one decode row.
    Decode,
}

/// A page of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageEntry {
    /// The page.
    pub id: PageId,
    /// What has written it.
    pub writer: Writer,
    /// The node of the prefix cache that this page belongs to, if the cache holds it, too.
    pub node: Option<NodeId>,
}

impl PageEntry {
    /// A page that only its sequence knows.
    pub fn private(id: PageId, writer: Writer) -> PageEntry {
        PageEntry { id, writer, node: None }
    }
}

/// The pages of a sequence in one group of layers, in the order of their positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageList {
    /// Index of the first page that is kept; the ones before it are behind the window.
    pub(super) first: u32,
    pub(super) entries: VecDeque<PageEntry>,
    /// Pages below this index are in the device's page table already.
    in_table: u32,
    /// Entries of the table below this index have no page.
    cleared: u32,
}

impl PageList {
    /// Index of the first page that is kept: 0 unless pages behind a window were freed.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// One past the index of the last page.
    pub fn end(&self) -> u32 {
        self.first + self.entries.len() as u32
    }

    /// Pages that the sequence holds.
    pub fn held(&self) -> u32 {
        self.entries.len() as u32
    }

    /// The page at `index`, counted from position 0 of the sequence.
    pub fn get(&self, index: u32) -> Option<&PageEntry> {
        self.entries.get(index.checked_sub(self.first)? as usize)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut PageEntry> {
        self.entries.get_mut(index.checked_sub(self.first)? as usize)
    }

    /// The pages with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &PageEntry)> {
        (self.first..).zip(&self.entries)
    }

    /// Leading pages that the prefix cache holds, too.
    pub fn cached_pages(&self) -> u32 {
        self.first + self.entries.partition_point(|entry| entry.node.is_some()) as u32
    }

    pub(crate) fn push(&mut self, entry: PageEntry) {
        self.entries.push_back(entry);
    }

    /// Puts a page at `index`: in the place of another one, or behind the last one. The table is written
    /// again from there.
    pub(crate) fn put(&mut self, index: u32, entry: PageEntry) {
        match self.get_mut(index) {
            Some(old) => *old = entry,
            None => {
                assert_eq!(index, self.end(), "pages of a sequence have no gaps");
                self.push(entry);
            }
        }
        self.in_table = self.in_table.min(index);
    }

    /// Starts at the page of this index: the ones before it are behind the window. Only of an empty list.
    pub(crate) fn start_at(&mut self, first: u32) {
        assert!(self.entries.is_empty(), "a list starts before it has pages");
        self.first = first;
    }

    /// Replaces all pages, and returns those that were there.
    pub(crate) fn replace(&mut self, first: u32, entries: VecDeque<PageEntry>) -> VecDeque<PageEntry> {
        (self.first, self.in_table) = (first, 0);
        std::mem::replace(&mut self.entries, entries)
    }

    /// What the device's page table does not have yet; from now on it does. Entries of pages behind the
    /// window are emptied together with the next change, so that a window costs one write for each page.
    pub(crate) fn take_table_edits(&mut self) -> impl Iterator<Item = (u32, Option<PageId>)> {
        let (from, end) = (self.in_table.max(self.first), self.end());
        let cleared = if from < end { std::mem::replace(&mut self.cleared, self.first) } else { self.first };
        self.in_table = end;
        let skipped = (from - self.first) as usize;
        let new = (from..).zip(self.entries.iter().skip(skipped).map(|entry| Some(entry.id)));
        (cleared..self.first).map(|index| (index, None)).chain(new)
    }
}
