//! A pool of page numbers with reference counts.

use serde::{Deserialize, Serialize};

use crate::error::Leak;

/// The number of a page in the pool of a group of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageId(pub u32);

/// There is no free page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no page is free")]
pub struct OutOfPages;

/// Page numbers 0 to n - 1, each free or referenced by one or more sequences or by the prefix cache.
///
/// A released page can be allocated again at once, also while a step that reads it is in flight: a device
/// runs steps in the order of their launches, so whoever gets the page writes to it later.
#[derive(Clone, Debug)]
pub struct PagePool {
    /// References to each page; 0 for free pages.
    references: Vec<u32>,
    free: Vec<PageId>,
    /// Whether a page is one that can be evicted: one of its references is the prefix cache's, which can do
    /// without it.
    evictable: Vec<bool>,
    /// Evictable pages without another reference.
    unused: u32,
    /// Allocations so far, counting those that failed.
    allocations: u64,
    fail_at: Option<u64>,
}

impl PagePool {
    /// A pool of `pages` free pages.
    pub fn new(pages: u32) -> PagePool {
        // The lowest numbers are allocated first.
        let free = (0..pages).rev().map(PageId).collect();
        let (references, evictable) = (vec![0; pages as usize], vec![false; pages as usize]);
        PagePool { references, free, evictable, unused: 0, allocations: 0, fail_at: None }
    }

    /// Takes a free page, with one reference.
    pub fn allocate(&mut self) -> Result<PageId, OutOfPages> {
        self.allocations += 1;
        if self.fail_at == Some(self.allocations) {
            return Err(OutOfPages);
        }
        let page = self.free.pop().ok_or(OutOfPages)?;
        self.references[page.0 as usize] = 1;
        Ok(page)
    }

    /// Adds a reference to a page that is in use.
    pub fn retain(&mut self, page: PageId) {
        let references = &mut self.references[page.0 as usize];
        assert!(*references > 0, "page {} is retained and not in use", page.0);
        *references += 1;
        self.unused -= u32::from(*references == 2 && self.evictable[page.0 as usize]);
    }

    /// Drops a reference. The page is free when the last one is dropped.
    pub fn release(&mut self, page: PageId) {
        let references = &mut self.references[page.0 as usize];
        assert!(*references > 0, "page {} is released and not in use", page.0);
        *references -= 1;
        self.unused += u32::from(*references == 1 && self.evictable[page.0 as usize]);
        if *references == 0 {
            assert!(!self.evictable[page.0 as usize], "page {} is free and in the prefix cache", page.0);
            self.free.push(page);
        }
    }

    /// Notes that one of the references to a page is that of the prefix cache, which can do without it, or
    /// that it is no more.
    pub(crate) fn set_evictable(&mut self, page: PageId, evictable: bool) {
        let at = page.0 as usize;
        if std::mem::replace(&mut self.evictable[at], evictable) != evictable && self.references[at] == 1 {
            self.unused = if evictable { self.unused + 1 } else { self.unused - 1 };
        }
    }

    /// Evictable pages that nobody else refers to.
    pub(crate) fn unused(&self) -> u32 {
        self.unused
    }

    /// References to a page.
    pub fn references(&self, page: PageId) -> u32 {
        self.references[page.0 as usize]
    }

    /// Free pages.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// All pages.
    pub fn pages(&self) -> u32 {
        self.references.len() as u32
    }

    /// Lets the `n`-th allocation from now on fail, for tests.
    pub fn fail_allocation(&mut self, n: u64) {
        self.fail_at = Some(self.allocations + n);
    }

    /// Whether every page was given back.
    pub fn counted_back(&self, name: &str) -> Result<(), Leak> {
        let held = self.references.iter().filter(|&&references| references > 0).count();
        assert_eq!(held + self.free.len(), self.references.len(), "a page is free and in use at once");
        Leak::check(name, held, self.references.len())
    }
}
