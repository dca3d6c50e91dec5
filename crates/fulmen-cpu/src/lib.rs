//! Fulmen's CPU backend.

pub mod device;
pub mod isa;
pub mod kernels;
pub mod simd;
pub mod threads;
