//! What the commands that run models share: finding them, options, loading with a bar, the memory floor, Ctrl-C.

pub(crate) mod find;
pub(crate) mod floor;
pub(crate) mod interrupt;
pub(crate) mod load;
pub(crate) mod prompt;
pub(crate) mod sampling;
pub(crate) mod stats;
pub(crate) mod story;
