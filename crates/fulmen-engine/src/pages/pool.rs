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
    /// Allocations so far, counting those that failed.
    allocations: u64,
    fail_at: Option<u64>,
}

impl PagePool {
    /// A pool of `pages` free pages.
    pub fn new(pages: u32) -> PagePool {
        // The lowest numbers are allocated first.
        let free = (0..pages).rev().map(PageId).collect();
        PagePool { references: vec![0; pages as usize], free, allocations: 0, fail_at: None }
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
    }

    /// Drops a reference. The page is free when the last one is dropped.
    pub fn release(&mut self, page: PageId) {
        let references = &mut self.references[page.0 as usize];
        assert!(*references > 0, "page {} is released and not in use", page.0);
        *references -= 1;
        if *references == 0 {
            self.free.push(page);
        }
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
