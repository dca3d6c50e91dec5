//! Prefill attention on tensor cores (cooperative matrices): queries, keys, weights and values in f16,
//! scores and sums in f32.
//!
//! A NaN among the values reaches as many rows as in [`prefill_tiled`](super::prefill_tiled). Keys and
//! values of a `Q8_0` cache above 65504, which an f16 cache cannot hold either, become infinite.

use fulmen_core::DType;

use super::{AttentionShape, OP, prefill_tiled};
use crate::kernel::Caps;
use crate::kernels::{
    KernelError, LaunchList, Role,
    bind::{KernelBindings, invalid},
    matmul::FragmentOps,
    preprocess::values,
};

/// Threads per team, which is a subgroup where there are cooperative matrices.
const WIDTH: u32 = 32;

/// Query rows of a tile, and keys of a tile.
const ROWS: u32 = prefill_tiled::ROWS;
const KEYS: u32 = 32;
const TEAMS: u32 = ROWS / 16;
const THREADS: u32 = TEAMS * WIDTH;

/// Row strides of the weights (`vec4<f16>`) and of the scores (`vec4<f32>`).
const WEIGHTS_LD: u32 = KEYS / 4 + 2;
const SCORES_LD: u32 = KEYS / 4 + 1;

/// Whether the kernel supports such heads and caches on this device.
pub(super) fn fits(shape: &AttentionShape, fragment_ops: FragmentOps, caps: &Caps) -> bool {
    let coop = caps.cooperative_matrix && caps.subgroups == Some((WIDTH, WIDTH));
    let sizes = Sizes { head_dim: shape.heads.head_dim };
    matches!(shape.kv_type(), DType::F16 | DType::Q8_0)
        && shape.scores.is_plain()
        && caps.f16
        && (coop || fragment_ops == FragmentOps::Emulated)
        && sizes.head_dim.is_multiple_of(16)
        && sizes.head_dim <= 128
        && THREADS <= caps.max_invocations
        && sizes.workgroup_bytes() <= caps.workgroup_memory
}

pub(super) fn launch_list(
    shape: &AttentionShape,
    fragment_ops: FragmentOps,
    caps: &Caps,
) -> Result<LaunchList, KernelError> {
    if !shape.scores.is_plain() {
        return Err(invalid(OP, "no kernel for cooperative matrices has windows, chunks, caps or sinks"));
    }
    if !fits(shape, fragment_ops, caps) {
        let dim = shape.heads.head_dim;
        let reason = format!("the device has no cooperative matrices for heads of {dim} in such a cache");
        return Err(invalid(OP, reason));
    }
    let mut bind = KernelBindings::new("attention prefill coop", caps);
    bind.read("q", Role::Input(0), "vec4<f32>", shape.q_bytes)?;
    let element = if shape.kv_type() == DType::F16 { "vec4<f16>" } else { "u32" };
    bind.read("k", Role::Input(1), element, shape.kv_bytes)?;
    bind.read("v", Role::Input(2), element, shape.kv_bytes)?;
    shape.bind_positions(&mut bind, true)?;
    bind.write("out", Role::Output(0), "vec4<f32>", shape.q_bytes)?;
    let row_tiles = shape.m.div_ceil(ROWS);
    let groups = u64::from(row_tiles) * u64::from(shape.heads.n_heads);
    let groups_word = u32::try_from(groups).map_err(|_| invalid(OP, "more than 2^32 tiles"))?;
    let mut params = shape.params().to_vec();
    params.extend([shape.m, row_tiles, groups_word, shape.scores.scale.to_bits()]);
    let sizes = Sizes { head_dim: shape.heads.head_dim };
    let mut values = shape.values(true);
    values.extend(values![
        coop: fragment_ops == FragmentOps::CooperativeMatrix,
        fragments: sizes.fragments(),
        q_fragments: sizes.q_fragments(),
        key_fragments: KEYS / 16,
        loads: sizes.loads(),
        ld: sizes.ld(),
        q_ld: sizes.q_ld(),
        weights_ld: WEIGHTS_LD,
        scores_ld: SCORES_LD,
        slab: sizes.slab(),
        scores: ROWS * SCORES_LD,
        weights: ROWS * WEIGHTS_LD,
        rows: ROWS,
        keys: KEYS,
        threads: THREADS,
    ]);
    let mut list = LaunchList::default();
    bind.launch(&mut list, "attention/prefill_coop.wgsl", &values, params, groups)?;
    Ok(list)
}

/// Sizes that depend on the head size.
struct Sizes {
    head_dim: u32,
}

impl Sizes {
    /// 16 x 16 fragments across a head.
    fn fragments(&self) -> u32 {
        self.head_dim / 16
    }

    /// Fragments of the queries that are staged in the slab at once.
    fn q_fragments(&self) -> u32 {
        self.fragments().div_ceil(2)
    }

    /// The row stride of keys and values in the slab, in vectors of 4.
    fn ld(&self) -> u32 {
        self.head_dim / 4 + 2
    }

    /// The row stride of queries in the slab.
    fn q_ld(&self) -> u32 {
        4 * self.q_fragments() + 2
    }

    /// Vectors of the slab.
    fn slab(&self) -> u32 {
        (KEYS * self.ld()).max(ROWS * self.q_ld())
    }

    /// Vectors of keys, and as many of values, that a thread loads per tile. Head sizes are multiples
    /// of 16, so all threads load equally many.
    fn loads(&self) -> u32 {
        KEYS * (self.head_dim / 4) / THREADS
    }

    fn workgroup_bytes(&self) -> u32 {
        self.slab() * 8 + ROWS * (SCORES_LD * 16 + WEIGHTS_LD * 8 + 12) + 16
    }
}
