//! Flash decoding: attention for decode and small batches. The context is split into chunks, as many as
//! the device needs to be filled, whatever its length.

use super::{AttentionShape, BATCH_INVARIANT_ROWS, KvInput, OP, fused_rope_store::FusedRopeStore};
use crate::kernel::Caps;
use crate::kernels::{
    KernelError, LaunchList, Role,
    bind::{KernelBindings, invalid},
    launch_list::{product, threads},
    preprocess::values,
    qmatmul::q8_bytes,
};

/// Positions per tile, whose weights are in workgroup memory.
const BLOCK: u32 = 256;

/// The fewest positions per chunk that are worth a workgroup.
pub(super) const MIN_CHUNK: u32 = 32;

/// Workgroups that fill a large device.
const FULL_DEVICE: u64 = 256;

/// The most chunks of a context.
pub(super) const MAX_CHUNKS: u32 = 64;

/// Positions that a team scores at once.
const UNROLL: u32 = 4;

/// How the work is divided among workgroups, teams and threads.
pub(super) struct DecodeConfig<'a> {
    pub(super) shape: &'a AttentionShape,
    threads: u32,
    /// Query heads per workgroup, and workgroups per KV head.
    heads: u32,
    head_blocks: u32,
    /// Threads across the vectors of a head: a power of two.
    pub(super) across: u32,
    /// Threads per team, and whether they reduce with subgroup shuffles.
    lanes: u32,
    shuffle: bool,
    pub(super) chunks: u32,
    /// RoPE and KV store, fused into the first launch.
    pub(super) fused: Option<FusedRopeStore<'a>>,
}

pub(super) fn launch_list(shape: &AttentionShape, caps: &Caps) -> Result<LaunchList, KernelError> {
    launches(&DecodeConfig::new(shape, caps)?, false, caps)
}

/// The number of chunks is that of the largest number of rows whose partial results fit, whatever the number
/// of rows is.
pub(super) fn batch_invariant(shape: &AttentionShape, caps: &Caps) -> Result<LaunchList, KernelError> {
    let config = DecodeConfig::new(shape, caps)?;
    let sets = u64::from(shape.heads.n_kv_heads) * u64::from(config.head_blocks);
    let row = u64::from(shape.heads.q_width()) * 4;
    let fitting = caps.max_binding / 2 / (row * u64::from(BATCH_INVARIANT_ROWS)).max(1);
    let longest = match shape.kv {
        KvInput::Rows => MAX_CHUNKS,
        KvInput::Cache { .. } => shape.capacity.div_ceil(MIN_CHUNK).min(MAX_CHUNKS),
    };
    // At most 64.
    let chunks = FULL_DEVICE.div_ceil(sets.max(1)).min(longest.into()).min(fitting).max(1) as u32;
    launches(&DecodeConfig { chunks, ..config }, false, caps)
}

/// The first launch also rotates and stores, where it can; the second also writes q8 activations if
/// heads are multiples of 32 elements.
pub(super) fn plan_fused(
    shape: &AttentionShape,
    fused: FusedRopeStore<'_>,
    caps: &Caps,
) -> Result<Option<LaunchList>, KernelError> {
    let mut config = DecodeConfig::new(shape, caps)?;
    if config.chunks == 1 || !fused.fits(shape, config.heads, config.threads)? {
        return Ok(None);
    }
    config.fused = Some(fused);
    let q8 = shape.heads.head_dim.is_multiple_of(32);
    match launches(&config, q8, caps) {
        Err(KernelError::TooManyBuffers { .. }) => Ok(None),
        list => list.map(Some),
    }
}

/// The second launch also writes q8 activations, if there is one and heads are multiples of 32 elements.
pub(super) fn plan_with_q8(shape: &AttentionShape, caps: &Caps) -> Result<Option<LaunchList>, KernelError> {
    let config = DecodeConfig::new(shape, caps)?;
    if config.chunks == 1 || !shape.heads.head_dim.is_multiple_of(32) {
        return Ok(None);
    }
    launches(&config, true, caps).map(Some)
}

fn launches(config: &DecodeConfig<'_>, q8: bool, caps: &Caps) -> Result<LaunchList, KernelError> {
    let shape = config.shape;
    let mut list = LaunchList::default();
    let split = config.chunks > 1;
    let heads = u64::from(shape.m) * u64::from(shape.heads.n_heads);
    let parts = product(OP, "the partial results", &[shape.q_bytes, config.chunks.into()])?;
    // Behind them a maximum and a sum for each.
    let stats = heads * u64::from(config.chunks) * if shape.width() == 4 { 16 } else { 8 };
    let parts = parts + stats;
    let keep_queries = config.keep_queries();
    let label = if config.fused.is_some() { "rope_store attention decode" } else { "attention decode" };
    let mut bind = KernelBindings::new(label, caps);
    match &config.fused {
        Some(fused) => fused.bind(shape, &mut bind)?,
        None => shape.bind_qkv(&mut bind)?,
    }
    shape.bind_positions(&mut bind, true)?;
    if split {
        bind.write("parts", Role::Scratch(0), shape.val(), parts)?;
        list.scratch = vec![parts];
        if keep_queries {
            list.scratch.push(shape.q_bytes);
        }
    } else {
        bind.write("out", Role::Output(0), shape.val(), shape.q_bytes)?;
    }
    config.launch_decode(&mut list, bind, caps)?;
    if split {
        let mut bind = KernelBindings::new("attention split-KV reduce", caps);
        shape.bind_positions(&mut bind, false)?;
        bind.read("parts", Role::Scratch(0), shape.val(), parts)?;
        bind.write("out", Role::Output(0), shape.val(), shape.q_bytes)?;
        if q8 {
            let bytes = q8_bytes(shape.m, shape.heads.q_width());
            bind.write("dst", Role::Output(2), "vec4<u32>", bytes)?;
        }
        if keep_queries {
            bind.read("rotated", Role::Scratch(1), shape.val(), shape.q_bytes)?;
            bind.write("q_out", Role::Output(5), shape.val(), shape.q_bytes)?;
        }
        shape.bind_sinks(&mut bind)?;
        config.launch_reduce(&mut list, bind, heads, q8, caps)?;
    }
    Ok(list)
}

impl<'a> DecodeConfig<'a> {
    fn new(shape: &'a AttentionShape, caps: &Caps) -> Result<Self, KernelError> {
        let threads = threads(256, caps);
        let head_blocks = shape.group.div_ceil(4);
        let heads = shape.group.div_ceil(head_blocks);
        let head_blocks = shape.group.div_ceil(heads);
        let across = shape.vecs().next_power_of_two();
        if across > threads {
            return Err(shape.unsupported_head_dim());
        }
        // Teams that reduce with shuffles lie within a subgroup.
        let (lanes, shuffle) = match caps.subgroups {
            Some((min, max)) if min >= 4 && threads.is_multiple_of(max) => (across.min(min).min(32), true),
            _ => (across.min(8), false),
        };
        let sets = u64::from(shape.m) * u64::from(shape.heads.n_kv_heads) * u64::from(head_blocks);
        let max_chunks = u64::from(shape.capacity.div_ceil(MIN_CHUNK)).clamp(1, MAX_CHUNKS.into());
        // At most 64.
        let chunks = FULL_DEVICE.div_ceil(sets.max(1)).min(max_chunks) as u32;
        // The second launch knows the sinks.
        let chunks = if shape.scores.sinks.is_some() { chunks.max(2) } else { chunks };
        Ok(Self { shape, threads, heads, head_blocks, across, lanes, shuffle, chunks, fused: None })
    }

    /// The number of partial results.
    pub(super) fn parts(&self) -> Result<u32, KernelError> {
        let Self { shape, chunks, .. } = *self;
        let parts = u64::from(shape.m) * u64::from(shape.heads.n_heads) * u64::from(chunks);
        u32::try_from(parts).map_err(|_| invalid(OP, "more than 2^32 partial results"))
    }

    /// Whether the rotated queries are an output, too.
    pub(super) fn keep_queries(&self) -> bool {
        self.fused.as_ref().is_some_and(|fused| fused.keep_queries)
    }

    fn launch_decode(
        &self,
        list: &mut LaunchList,
        bind: KernelBindings<'_>,
        caps: &Caps,
    ) -> Result<(), KernelError> {
        let Self { shape, threads, heads, head_blocks, across, lanes, shuffle, .. } = *self;
        let sets = shape.heads.n_kv_heads * head_blocks;
        let groups = u64::from(shape.m) * u64::from(sets) * u64::from(self.chunks);
        let groups_word = u32::try_from(groups).map_err(|_| invalid(OP, "more than 2^32 chunks"))?;
        let mut params = shape.params().to_vec();
        params.extend([self.chunks, groups_word, self.parts()?, shape.scores.scale.to_bits()]);
        let mut values = shape.values(true);
        if let Some(fused) = &self.fused {
            values.extend(fused.values(threads, caps));
            params.push(fused.spec.epsilon.to_bits());
        }
        params.extend(shape.score_params());
        values.extend(values![
            threads,
            heads,
            head_blocks,
            sets,
            across,
            lanes,
            shuffle,
            fused_rope: self.fused.is_some(),
            split_kv: self.chunks > 1,
            lanes_log2: lanes.ilog2(),
            per_lane: shape.vecs().div_ceil(lanes),
            teams: threads / lanes,
            splits: threads / across,
            unroll: UNROLL,
            block: BLOCK,
            min_chunk: MIN_CHUNK,
        ]);
        bind.launch(list, "attention/decode.wgsl", &values, params, groups)
    }
}
