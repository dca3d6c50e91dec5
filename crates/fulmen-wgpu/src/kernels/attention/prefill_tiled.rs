//! Prefill attention: tiled flash attention in f32, with tiles of query rows and keys in workgroup memory.
//!
//! A masked key still contributes its value times 0, so a NaN among the values reaches all rows of a
//! tile in which any row attends to it.

use super::{AttentionShape, KvInput, OP};
use crate::kernel::Caps;
use crate::kernels::{
    KernelError, LaunchList, Role,
    bind::{KernelBindings, invalid},
    preprocess::values,
};

/// Query rows and keys of a tile, and threads: 4 rows x 4 keys each.
pub(super) const ROWS: u32 = 64;
const KEYS: u32 = 32;
const THREADS: u32 = ROWS / 4 * KEYS / 4;

/// Row strides of the tiles in vectors; one more than needed, to avoid bank conflicts of the
/// transposing stores.
const Q_STRIDE: u32 = ROWS / 4 + 1;
const K_STRIDE: u32 = KEYS / 4 + 1;

/// How much of a tile is in workgroup memory at a time.
struct TileConfig {
    /// Vectors of 4 elements per head, and of those per chunk of queries and keys.
    vecs: u32,
    chunk_vecs: u32,
    /// The whole queries stay in workgroup memory.
    q_whole: bool,
    /// Keys whose values are staged at a time.
    value_keys: u32,
}

impl TileConfig {
    fn new(shape: &AttentionShape, caps: &Caps) -> Option<Self> {
        let head_dim = shape.heads.head_dim;
        if !head_dim.is_multiple_of(32) || head_dim > 256 || caps.max_invocations < THREADS {
            return None;
        }
        let vecs = head_dim / 4;
        let configs = [(true, 8, 16), (true, 4, 8), (false, 4, 8), (false, 4, 4), (false, 2, 2)];
        let mut configs = configs.into_iter().map(|(q_whole, chunk_vecs, value_keys)| Self {
            vecs,
            chunk_vecs,
            q_whole,
            value_keys,
        });
        configs.find(|config| config.bytes() <= caps.workgroup_memory)
    }

    fn q_vecs(&self) -> u32 {
        if self.q_whole { self.vecs } else { self.chunk_vecs }
    }

    /// Vectors of `q_tile`.
    fn q_vectors(&self) -> u32 {
        self.q_vecs() * 4 * Q_STRIDE
    }

    /// Vectors of `tile`.
    fn vectors(&self) -> u32 {
        (self.chunk_vecs * 4 * K_STRIDE).max(self.value_keys * self.vecs).max(8 * ROWS / 4)
    }

    /// Bytes of workgroup memory.
    fn bytes(&self) -> u32 {
        (self.q_vectors() + self.vectors() + KEYS * ROWS / 4) * 16 + 2 * ROWS * 4
    }
}

/// Whether the kernel supports such heads on this device.
pub(super) fn fits(shape: &AttentionShape, caps: &Caps) -> bool {
    // With sinks there is a ninth buffer, which some devices cannot bind.
    let binds = shape.scores.sinks.is_none() || caps.max_storage_buffers > 8;
    binds && TileConfig::new(shape, caps).is_some()
}

pub(super) fn launch_list(shape: &AttentionShape, caps: &Caps) -> Result<LaunchList, KernelError> {
    let config = TileConfig::new(shape, caps).ok_or_else(|| shape.unsupported_head_dim())?;
    let mut bind = KernelBindings::new("attention prefill tiled", caps);
    shape.bind_qkv(&mut bind)?;
    shape.bind_positions(&mut bind, true)?;
    bind.write("out", Role::Output(0), "vec4<f32>", shape.q_bytes)?;
    shape.bind_sinks(&mut bind)?;
    let tiles = shape.m.div_ceil(ROWS);
    let groups = u64::from(tiles) * u64::from(shape.heads.n_heads);
    let groups_word = u32::try_from(groups).map_err(|_| invalid(OP, "more than 2^32 tiles"))?;
    let mut params = shape.params().to_vec();
    params.extend([shape.m, tiles, groups_word, shape.scores.scale.to_bits()]);
    params.extend(shape.score_params());
    let mut values = shape.values(true);
    values.extend(values![
        own: config.vecs / 8,
        chunk_vecs: config.chunk_vecs,
        q_whole: config.q_whole,
        q_vecs: config.q_vecs(),
        q_vectors: config.q_vectors(),
        vectors: config.vectors(),
        value_keys: config.value_keys,
        q_stride: Q_STRIDE,
        k_stride: K_STRIDE,
        rows: ROWS,
        keys: KEYS,
        threads: THREADS,
    ]);
    let mut list = LaunchList::default();
    bind.launch(&mut list, "attention/prefill_tiled.wgsl", &values, params, groups)?;
    Ok(list)
}

/// The fewest workgroups that keep a device busy.
const MIN_WORKGROUPS: u64 = 64;

/// Whether there are enough rows for a prefill kernel. Rows with sequence numbers may all be of
/// different sequences, and then a tile would do the work of one row at a time.
pub(super) fn pays_off(shape: &AttentionShape) -> bool {
    let few = match shape.kv {
        KvInput::Cache { sequences: true, .. } => 256,
        _ => ROWS / 2,
    };
    let groups = u64::from(shape.m.div_ceil(ROWS)) * u64::from(shape.heads.n_heads);
    shape.m > few && groups >= MIN_WORKGROUPS
}
