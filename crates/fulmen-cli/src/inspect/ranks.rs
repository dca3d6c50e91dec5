//! What the ranks of tensor parallelism need.

use std::sync::Arc;

use fulmen_model::arch::{Config, Sharding, split_fused};
use fulmen_model::source::ModelSource;
use fulmen_model::summary::Memory;

/// More ranks than the machines that this is read on have devices.
const MAX_RANKS: u32 = 8;

/// The memory of each of a number of ranks.
pub(super) struct RankNeeds {
    pub(super) ranks: u32,
    pub(super) weights: u64,
    /// The KV cache of its heads in F16.
    pub(super) kv_f16: u64,
}

/// The numbers of ranks from 2 on that a model can be divided by; none if it cannot be run.
pub(super) fn possible(source: &Arc<dyn ModelSource>, memory: Option<&Memory>) -> Vec<RankNeeds> {
    let (Ok(source), Some(memory)) = (split_fused(Arc::clone(source)), memory) else { return Vec::new() };
    let Ok(config) = Config::read(source.as_ref()) else { return Vec::new() };
    let needs = |ranks: u32| {
        let sharding = Sharding::new(&config, source.as_ref(), ranks).ok()?;
        let (own, all) = (sharding.config(0).heads.n_kv_heads, config.heads.n_kv_heads);
        let kv_f16 = memory.kv_f16 / u64::from(all) * u64::from(own);
        Some(RankNeeds { ranks, weights: sharding.rank_bytes(source.as_ref()), kv_f16 })
    };
    (2..=MAX_RANKS).filter_map(needs).collect()
}
