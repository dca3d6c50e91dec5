//! Rotary position embedding.

use bytemuck::{Pod, Zeroable};
use fulmen_core::{RopeCall, RopePairing, RopeSpec};

use super::Launched;
use crate::queue::{Launch, Queue};

/// Mirrors `RopeSpec` in `rope.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Rotation {
    log2_base: f64,
    freq_scale: f64,
    factors: u64,
    n_rot: u32,
    halves: u32,
    magnitude: f32,
    unused: u32,
}

impl Rotation {
    pub(super) fn new(spec: RopeSpec, factors: Option<u64>) -> Rotation {
        Rotation {
            log2_base: f64::from(spec.base).log2(),
            freq_scale: spec.freq_scale.into(),
            factors: factors.unwrap_or(0),
            n_rot: spec.n_rot,
            halves: u32::from(spec.pairing == RopePairing::NeoX),
            magnitude: spec.magnitude,
            unused: 0,
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    x: u64,
    positions: u64,
    out: u64,
    rope: Rotation,
    n_heads: u32,
    head_dim: u32,
    heads_per_block: u32,
    head_groups: u32,
    chunks: u32,
    unused: u32,
}

/// Heads that share the angle that a thread has computed.
const HEADS: u32 = 4;

pub(crate) fn launch(queue: &mut Queue, call: &RopeCall) -> Launched {
    let RopeCall { input, positions, factors, output, m, n_heads, head_dim, rope } = *call;
    if m == 0 || n_heads == 0 || head_dim == 0 {
        return Ok(0);
    }
    // Pairs, and elements that are only copied.
    let items = head_dim - rope.n_rot / 2;
    let threads = items.clamp(1, 128).next_multiple_of(32);
    let (head_groups, chunks) = (n_heads.div_ceil(HEADS), items.div_ceil(threads));
    let params = Params {
        x: input,
        positions,
        out: output,
        rope: Rotation::new(rope, factors),
        n_heads,
        head_dim,
        heads_per_block: HEADS,
        head_groups,
        chunks,
        unused: 0,
    };
    let count = [m, head_groups, chunks].iter().fold(1u64, |count, &n| count.saturating_mul(n.into()));
    let blocks = queue.blocks("rope", count)?;
    queue.launch(&Launch::new("rope", "rope", blocks, threads), &params)?;
    Ok(1)
}
