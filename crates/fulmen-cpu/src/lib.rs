//! Fulmen's CPU backend.

pub mod isa;
