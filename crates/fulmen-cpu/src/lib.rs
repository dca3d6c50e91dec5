//! Fulmen's CPU backend.

pub mod device;
pub mod isa;
