//! An engine with a small model on real backends: many requests give the tokens of running alone.

mod common;
mod cpu;
