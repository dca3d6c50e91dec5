//! Rotary position embedding (`rope.cu`), and its arguments in other kernels (`rope.cuh`).

use fulmen_core::{RopeCall, RopePairing, RopeSpec};

use super::Launched;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "rope.cu";

    pub(super) struct RopeArgs {
        log2_base: f64,
        freq_factors: DevicePtr,
        freq_scale: f32,
        magnitude: f32,
        n_rot: u32,
        neox: u32,
    }

    struct RopeKernelArgs {
        x: DevicePtr,
        positions: DevicePtr,
        out: DevicePtr,
        rope: RopeArgs,
        n_heads: u32,
        head_dim: u32,
        heads_per_block: u32,
        head_groups: u32,
        chunks: u32,
        unused: u32,
    }
}

impl RopeArgs {
    pub(super) fn new(spec: RopeSpec, freq_factors: Option<u64>) -> RopeArgs {
        RopeArgs {
            log2_base: f64::from(spec.base).log2(),
            freq_factors: freq_factors.unwrap_or(0),
            freq_scale: spec.freq_scale,
            magnitude: spec.magnitude,
            n_rot: spec.n_rot,
            neox: u32::from(spec.pairing == RopePairing::NeoX),
        }
    }
}

/// Heads for which a thread computes an angle once.
const HEADS_PER_BLOCK: u32 = 4;

pub(crate) fn launch(queue: &mut Queue, call: &RopeCall) -> Launched {
    let RopeCall { input, positions, factors, output, m, n_heads, head_dim, rope } = *call;
    if m == 0 || n_heads == 0 || head_dim == 0 {
        return Ok(0);
    }
    // Pairs, and dims that are only copied.
    let items = head_dim - rope.n_rot / 2;
    let threads = items.clamp(1, 128).next_multiple_of(32);
    let (head_groups, chunks) = (n_heads.div_ceil(HEADS_PER_BLOCK), items.div_ceil(threads));
    let args = RopeKernelArgs {
        x: input,
        positions,
        out: output,
        rope: RopeArgs::new(rope, factors),
        n_heads,
        head_dim,
        heads_per_block: HEADS_PER_BLOCK,
        head_groups,
        chunks,
        unused: 0,
    };
    let count = [m, head_groups, chunks].iter().fold(1u64, |count, &n| count.saturating_mul(n.into()));
    let blocks = queue.blocks("rope", count)?;
    queue.launch(&Launch::new("rope", "rope", blocks, threads), &args)?;
    Ok(1)
}
