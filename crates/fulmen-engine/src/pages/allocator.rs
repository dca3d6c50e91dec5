//! Pools of all groups of layers, and what a sequence holds in each.

use serde::{Deserialize, Serialize};

use super::Transfer;
use super::list::{PageEntry, PageList, Writer};
use super::pool::{OutOfPages, PageId, PagePool};
use crate::error::{ConfigError, Leak};

/// How a group of layers looks back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupKind {
    /// Attention over all positions.
    #[default]
    Full,
    /// Attention over the last `positions` positions. Pages behind them are freed.
    Window {
        /// Positions that a row sees, its own included.
        positions: u32,
    },
    /// A state of constant size: one page per sequence.
    Recurrent,
}

/// The pages of a group of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupConfig {
    /// How its layers look back.
    pub kind: GroupKind,
    /// Pages on the device.
    pub pages: u32,
    /// Pages on the host, for sequences that are swapped out; 0 for none.
    pub host_pages: u32,
}

impl GroupConfig {
    /// Layers with attention over all positions, and no pages on the host.
    pub fn full(pages: u32) -> GroupConfig {
        GroupConfig { kind: GroupKind::Full, pages, host_pages: 0 }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) kind: GroupKind,
    pub(super) device: PagePool,
    pub(super) host: PagePool,
}

/// The pages of a sequence, one list per group of layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequencePages {
    pub(super) lists: Vec<PageList>,
}

impl SequencePages {
    /// The list of a group.
    pub fn list(&self, group: usize) -> &PageList {
        &self.lists[group]
    }

    pub(crate) fn list_mut(&mut self, group: usize) -> &mut PageList {
        &mut self.lists[group]
    }

    pub(crate) fn lists(&self) -> impl Iterator<Item = &PageList> {
        self.lists.iter()
    }

    /// The lists with the numbers of their groups.
    pub(crate) fn lists_mut(&mut self) -> impl Iterator<Item = (u32, &mut PageList)> {
        (0..).zip(&mut self.lists)
    }

    /// Pages that are held in all groups.
    pub fn held(&self) -> u32 {
        self.lists.iter().map(PageList::held).sum()
    }
}

/// The pools of all groups of layers.
///
/// ```
/// use fulmen_engine::pages::{GroupConfig, PageAllocator};
///
/// let mut allocator = PageAllocator::new(128, &[GroupConfig::full(10)])?;
/// let mut pages = allocator.empty();
/// allocator.grow(&mut pages, 0, 300).unwrap(); // 300 positions: 3 pages
/// assert_eq!((pages.held(), allocator.free(0)), (3, 7));
/// allocator.release(&mut pages);
/// allocator.counted_back().unwrap();
/// # Ok::<(), fulmen_engine::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PageAllocator {
    page_size: u32,
    pub(super) groups: Vec<Group>,
}

impl PageAllocator {
    /// Pools for these groups.
    pub fn new(page_size: u32, groups: &[GroupConfig]) -> Result<PageAllocator, ConfigError> {
        ConfigError::check(page_size > 0, "positions of a KV page", "at least 1", page_size)?;
        ConfigError::check(!groups.is_empty(), "groups of layers", "at least 1", 0)?;
        for group in groups {
            ConfigError::check(group.pages > 0, "KV pages of a group", "at least 1", group.pages)?;
            if let GroupKind::Window { positions } = group.kind {
                ConfigError::check(positions > 0, "positions of a sliding window", "at least 1", positions)?;
            }
        }
        let group = |config: &GroupConfig| Group {
            kind: config.kind,
            device: PagePool::new(config.pages),
            host: PagePool::new(config.host_pages),
        };
        Ok(PageAllocator { page_size, groups: groups.iter().map(group).collect() })
    }

    /// Groups of layers.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// How a group looks back.
    pub fn kind(&self, group: usize) -> GroupKind {
        self.groups[group].kind
    }

    /// Positions of a page.
    pub fn page_size(&self) -> u32 {
        self.page_size
    }

    /// Free pages of a group.
    pub fn free(&self, group: usize) -> u32 {
        self.groups[group].device.free()
    }

    /// All pages of a group.
    pub fn pages(&self, group: usize) -> u32 {
        self.groups[group].device.pages()
    }

    /// Free pages of a group on the host.
    pub fn host_free(&self, group: usize) -> u32 {
        self.groups[group].host.free()
    }

    /// All pages of a group on the host.
    pub fn host_pages(&self, group: usize) -> u32 {
        self.groups[group].host.pages()
    }

    /// The pool of a group.
    pub fn pool(&self, group: usize) -> &PagePool {
        &self.groups[group].device
    }

    /// The pool of a group, for sharing pages and for injecting faults.
    pub fn pool_mut(&mut self, group: usize) -> &mut PagePool {
        &mut self.groups[group].device
    }

    /// No pages.
    pub fn empty(&self) -> SequencePages {
        SequencePages { lists: vec![PageList::default(); self.groups.len()] }
    }

    /// One past the index of the last page that `positions` positions need.
    pub fn page_end(&self, group: usize, positions: u32) -> u32 {
        match self.groups[group].kind {
            GroupKind::Recurrent => positions.min(1),
            _ => positions.div_ceil(self.page_size),
        }
    }

    /// Pages that a sequence of `positions` positions holds at most at a time, if it runs in chunks of up to
    /// `chunk` rows.
    pub fn demand(&self, group: usize, positions: u32, chunk: u32) -> u32 {
        let all = self.page_end(group, positions);
        match self.groups[group].kind {
            // The window, the chunk, and a partial page at either end.
            GroupKind::Window { positions } => {
                all.min(positions.saturating_add(chunk).div_ceil(self.page_size).saturating_add(1))
            }
            _ => all,
        }
    }

    /// Index of the first page that a row at `position`, or a later one, sees.
    pub fn first_seen(&self, group: usize, position: u32) -> u32 {
        match self.groups[group].kind {
            GroupKind::Window { positions } => {
                position.saturating_add(1).saturating_sub(positions) / self.page_size
            }
            GroupKind::Full | GroupKind::Recurrent => 0,
        }
    }

    /// Pages that are missing for `positions` positions.
    pub fn missing(&self, pages: &SequencePages, group: usize, positions: u32) -> u32 {
        self.page_end(group, positions).saturating_sub(pages.lists[group].end())
    }

    /// Allocates pages until the list covers `positions` positions. Where it fails, the pages that were
    /// allocated stay in the list.
    pub fn grow(
        &mut self,
        pages: &mut SequencePages,
        group: usize,
        positions: u32,
    ) -> Result<(), OutOfPages> {
        let end = self.page_end(group, positions);
        let list = &mut pages.lists[group];
        while list.end() < end {
            let id = self.groups[group].device.allocate()?;
            list.push(PageEntry::private(id, Writer::default()));
        }
        Ok(())
    }

    /// Frees the pages that a row at `position`, and any later one, does not see.
    pub fn free_behind(&mut self, pages: &mut SequencePages, position: u32) {
        for group in 0..self.groups.len() {
            let (seen, list) = (self.first_seen(group, position), &mut pages.lists[group]);
            while list.first < seen.min(list.end()) {
                if let Some(entry) = list.entries.pop_front() {
                    self.groups[group].device.release(entry.id);
                }
                list.first += 1;
            }
        }
    }

    /// Makes the page at `index` safe to write: if somebody else refers to it, the sequence gets a page of
    /// its own, and the device must copy the contents first.
    pub fn make_writable(
        &mut self,
        pages: &mut SequencePages,
        group: usize,
        index: u32,
    ) -> Result<Option<Transfer>, OutOfPages> {
        let (pool, list) = (&mut self.groups[group].device, &mut pages.lists[group]);
        let Some(&PageEntry { id: from, writer, .. }) = list.get(index) else { return Ok(None) };
        if pool.references(from) == 1 {
            return Ok(None);
        }
        let to = pool.allocate()?;
        pool.release(from);
        list.put(index, PageEntry::private(to, writer));
        Ok(Some(Transfer::Copy { group: group as u32, from, to }))
    }

    /// A second sequence with the same pages. A recurrent state cannot be shared: the device must copy it.
    pub fn fork(&mut self, pages: &SequencePages) -> Result<(SequencePages, Vec<Transfer>), OutOfPages> {
        let (mut forked, mut copies) = (self.empty(), Vec::new());
        for (group, list) in pages.lists.iter().enumerate() {
            forked.lists[group].first = list.first;
            for entry in &list.entries {
                let id = match self.groups[group].kind {
                    GroupKind::Recurrent => match self.snapshot(group, entry.id) {
                        Ok((id, copy)) => {
                            copies.push(copy);
                            id
                        }
                        Err(error) => {
                            self.release(&mut forked);
                            return Err(error);
                        }
                    },
                    _ => {
                        self.groups[group].device.retain(entry.id);
                        entry.id
                    }
                };
                forked.lists[group].push(PageEntry::private(id, entry.writer));
            }
        }
        Ok((forked, copies))
    }

    /// A copy of a page, for a recurrent state that a later sequence may start from. The caller releases it
    /// ([`PagePool::release`]).
    pub fn snapshot(&mut self, group: usize, from: PageId) -> Result<(PageId, Transfer), OutOfPages> {
        let to = self.groups[group].device.allocate()?;
        Ok((to, Transfer::Copy { group: group as u32, from, to }))
    }

    /// Gives back all pages of a sequence.
    pub fn release(&mut self, pages: &mut SequencePages) {
        for (group, list) in self.groups.iter_mut().zip(&mut pages.lists) {
            list.entries.iter().for_each(|entry| group.device.release(entry.id));
            *list = PageList::default();
        }
    }

    /// Whether every page of every pool was given back.
    pub fn counted_back(&self) -> Result<(), Leak> {
        self.groups.iter().enumerate().try_for_each(|(at, group)| {
            group.device.counted_back(&format!("KV pages of group {at}"))?;
            group.host.counted_back(&format!("host pages of group {at}"))
        })
    }
}
