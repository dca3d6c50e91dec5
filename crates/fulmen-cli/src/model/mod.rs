//! What the commands that run models share: finding and loading them, prompts and piped input,
//! sampling, statistics, Ctrl-C.

pub(crate) mod builtin;
#[cfg_attr(not(feature = "constraint"), path = "no_constraint.rs")]
pub(crate) mod constraint;
pub(crate) mod find;
pub(crate) mod input;
pub(crate) mod interrupt;
pub(crate) mod load;
pub(crate) mod memory;
#[cfg(feature = "server")]
pub(crate) mod nodes;
pub(crate) mod prompt;
pub(crate) mod ranks;
pub(crate) mod sampling;
pub(crate) mod split;
pub(crate) mod stats;
pub(crate) mod suggest;
