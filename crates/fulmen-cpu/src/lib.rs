//! Fulmen's CPU backend.

pub mod isa;
pub mod kernels;
pub mod threads;
