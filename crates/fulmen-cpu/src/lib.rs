//! Fulmen's CPU backend.

pub mod isa;
pub mod simd;
pub mod threads;
