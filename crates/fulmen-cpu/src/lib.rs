//! Fulmen's CPU backend.

pub mod isa;
pub mod kernels;
pub mod kv_view;
pub mod simd;
pub mod threads;
