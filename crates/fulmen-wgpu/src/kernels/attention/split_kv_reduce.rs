//! The second launch of flash decoding: combines the partial results of the chunks, optionally also as
//! q8 activations.

use super::{
    OP,
    decode::{DecodeConfig, MAX_CHUNKS, MIN_CHUNK},
};
use crate::kernel::Caps;
use crate::kernels::{
    KernelError, LaunchList,
    bind::{KernelBindings, invalid},
    launch_list::threads,
    preprocess::values,
    qmatmul::q8_block_place,
};

/// Chunks per split that a thread loads before their factors are known.
const EARLY: u32 = 8;

impl DecodeConfig<'_> {
    pub(super) fn launch_reduce(
        &self,
        list: &mut LaunchList,
        bind: KernelBindings<'_>,
        heads: u64,
        q8: bool,
        caps: &Caps,
    ) -> Result<(), KernelError> {
        let Self { shape, across, .. } = *self;
        let threads = threads(128, caps).max(across);
        let groups = u32::try_from(heads).map_err(|_| invalid(OP, "more than 2^32 heads"))?;
        let n_heads = shape.heads.n_heads;
        let q8_at = q8_block_place(shape.heads.q_width(), &format!("number / {n_heads}u"), "block");
        let mut values = shape.values(false);
        values.extend(values![
            q8,
            q8_at,
            across,
            threads,
            keep_queries: self.keep_queries(),
            splits: threads / across,
            early: EARLY,
            max_chunks: MAX_CHUNKS,
            min_chunk: MIN_CHUNK,
        ]);
        let mut params = shape.params().to_vec();
        params.extend([self.chunks, groups, self.parts()?]);
        params.extend(shape.scores.window);
        params.extend(shape.scores.chunk);
        bind.launch(list, "attention/split_kv_reduce.wgsl", &values, params, heads)
    }
}
