//! An engine with a small model on real backends: many requests give the tokens of running alone.

mod compare;
mod cpu;
mod edits;
mod host_experts;
mod not_finite;
mod prompt_logprobs;
mod scenario;
mod split;
#[path = "../tiny/mod.rs"]
mod tiny;
mod wgpu;
mod windows;
