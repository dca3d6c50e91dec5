//! The kernels of models against f64: embedding, positions, the cache, attention, and choosing tokens.

#[path = "../common_rows/mod.rs"]
mod common_rows;
mod embed;
mod rope;
mod store;
mod attention;
mod step;
