//! Sampling, launch 1 of 3: the largest logit of each part of a row (a tree reduction), and clears the
//! histogram.
//!
//! **Work partition.** One workgroup per part of a row, one thread per `threads`-th logit.
//!
//! **Bindings.** `logits` [m][n] f32; `keys` [m][parts] of (order key, index); `bins` [m][bins][3].
//!
//! **Preconditions.** None.
//!
//! **Bound** by memory bandwidth; not measured.
#include "argmax_parts.wgsl"

fn begin_part(row: u32, part: u32, thread: u32) {
    for (var i = part * {{threads}}u + thread; i < {{bins}}u * 3u; i += params.parts * {{threads}}u) {
        bins[row * ({{bins}}u * 3u) + i] = 0u;
    }
}

fn key_at(at: u32, i: u32) -> vec2<u32> { return key_of(logits[at], i); }

fn put(number: u32, best: vec2<u32>) { keys[number] = best; }
