//! Helper function of flash decoding, of its split kernel and of the reduction over splits: `stats_at(at)`,
//! where in `parts` the maximum and the sum of weights of partial result `at` are: behind all partial
//! results, in one vector of four, or in two elements where `width` is 1. One buffer for both, because some
//! devices bind only eight.
//!
//! Expects `params.parts`, the number of partial results.
fn stats_at(at: u32) -> u32 { return params.parts * {{vecs}}u + at * {{width == 4 ? 1 : 2}}u; }
