//! The kernels of models against f64: embedding, positions, the cache, attention, and choosing tokens.

mod attention;
#[path = "../common_rows/mod.rs"]
mod common_rows;
mod embed;
mod rope;
mod sample;
mod step;
mod store;
