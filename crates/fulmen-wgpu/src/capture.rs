//! Captured programs and their replay.
//!
//! A captured program is a [`DispatchList`], or several where one submission would take too long.
//! Pipelines, bind groups and parameters exist; a replay of each list is one pass and one submission,
//! without encoding once it is recorded in a Vulkan command buffer. A captured program keeps the
//! scratch memory that it was recorded with. It is refused after memory that it uses was freed, or
//! after a weight was rewritten of which it uses a repacked copy.

use std::ops::Range;
use std::sync::Arc;

use crate::encode::DispatchList;

/// One captured program.
pub(crate) struct Captured {
    /// One list per submission.
    pub(crate) lists: Vec<Arc<DispatchList>>,
    /// For each dispatch, the calls of the program that it belongs to.
    pub(crate) calls: Vec<Range<usize>>,
}

impl Captured {
    pub(crate) fn new(lists: Vec<DispatchList>, calls: Vec<Range<usize>>) -> Captured {
        Captured { lists: lists.into_iter().map(Arc::new).collect(), calls }
    }
}
