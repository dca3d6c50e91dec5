//! Pages of a preempted sequence on the host.

use super::allocator::{PageAllocator, SequencePages};
use super::list::{PageEntry, Writer};
use super::pool::{OutOfPages, PageId};
use super::{GroupKind, Transfer};

/// The pages of a sequence that is swapped out, one list per group of layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwappedPages {
    lists: Vec<HostList>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct HostList {
    first: u32,
    pages: Vec<(PageId, Writer)>,
}

impl SwappedPages {
    /// Pages that swapping in allocates in a group.
    pub fn held(&self, group: usize) -> u32 {
        self.lists[group].pages.len() as u32
    }
}

impl PageAllocator {
    /// Copies the pages of a sequence that hold `positions` positions to the host. The caller then releases
    /// the pages. Nothing is allocated if the host has too few pages.
    pub fn swap_out(
        &mut self,
        pages: &SequencePages,
        positions: u32,
    ) -> Result<(SwappedPages, Vec<Transfer>), OutOfPages> {
        let (mut swapped, mut transfers) = (SwappedPages::default(), Vec::new());
        for (group, list) in pages.lists.iter().enumerate() {
            let written = self.page_end(group, positions).saturating_sub(list.first) as usize;
            let mut to = HostList { first: list.first, pages: Vec::new() };
            for entry in list.entries.iter().take(written) {
                let Ok(page) = self.groups[group].host.allocate() else {
                    swapped.lists.push(to);
                    self.release_swapped(swapped);
                    return Err(OutOfPages);
                };
                to.pages.push((page, entry.writer));
                transfers.push(Transfer::SwapOut { group: group as u32, from: entry.id, to: page });
            }
            swapped.lists.push(to);
        }
        Ok((swapped, transfers))
    }

    /// Copies pages back from the host and frees them there. Where it fails, nothing has changed.
    pub fn swap_in(
        &mut self,
        swapped: &mut SwappedPages,
    ) -> Result<(SequencePages, Vec<Transfer>), OutOfPages> {
        let (mut pages, mut transfers) = (self.empty(), Vec::new());
        for (group, from) in swapped.lists.iter().enumerate() {
            pages.lists[group].first = from.first;
            for &(page, writer) in &from.pages {
                let Ok(id) = self.groups[group].device.allocate() else {
                    self.release(&mut pages);
                    return Err(OutOfPages);
                };
                pages.lists[group].push(PageEntry::private(id, writer));
                transfers.push(Transfer::SwapIn { group: group as u32, from: page, to: id });
            }
        }
        self.release_swapped(std::mem::take(swapped));
        Ok((pages, transfers))
    }

    /// Frees pages on the host.
    pub fn release_swapped(&mut self, swapped: SwappedPages) {
        for (group, list) in self.groups.iter_mut().zip(swapped.lists) {
            list.pages.iter().for_each(|&(page, _)| group.host.release(page));
        }
    }

    /// How many groups have attention, if prefixes can be reused: groups of full attention, behind which
    /// there may be groups with windows or one of recurrent states.
    pub fn reusable(&self) -> Option<usize> {
        let kinds = || self.groups.iter().map(|group| group.kind);
        let full = kinds().take_while(|&kind| kind == GroupKind::Full).count();
        let rest: Vec<GroupKind> = kinds().skip(full).collect();
        let windows = rest.iter().all(|kind| matches!(kind, GroupKind::Window { .. }));
        match rest[..] {
            _ if full == 0 => None,
            [GroupKind::Recurrent] => Some(full),
            _ => windows.then_some(self.groups.len()),
        }
    }
}
