//! What the commands that run models share: options, loading with a bar, the memory floor.

pub(crate) mod floor;
pub(crate) mod load;
