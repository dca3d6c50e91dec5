//! Options of an engine for a model, and the configuration that follows from them.

use fulmen_core::{DType, KvPool, PageLayout, pages_of};
use fulmen_model::arch::Config;
use fulmen_model::{Model, ModelError};

use crate::pages::GroupConfig;
use crate::prefix_cache::Namespace;
use crate::scheduler::{PreemptionMode, SchedulerConfig};

/// How an engine runs a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Positions per sequence; 0 for the model's own context, at most [`EngineOptions::DEFAULT_CONTEXT`].
    pub context: u32,
    /// Sequences that run at the same time; others wait.
    pub max_sequences: u32,
    /// Bytes for KV pages on the device; 0 for what all sequences need, at most three quarters of the memory
    /// that is free. At least one sequence of the whole context is always there.
    pub memory: u64,
    /// KV pages of 128 positions; 0 to let `memory` decide.
    pub pages: u32,
    /// Type of the KV cache: F16, Q8_0 or F32.
    pub cache: DType,
    /// The largest number of rows of a step; 0 for what the device prefers.
    pub max_rows: u32,
    /// The largest number of prefill rows beside decode rows; 0 for a fifth of `max_rows`.
    pub prefill_rows: u32,
    /// Whether pages are kept for prompts with the same beginning.
    pub prefix_cache: bool,
    /// Bytes on the host for the pages of preempted sequences; 0 to compute them again.
    pub host_memory: u64,
    /// Whether a request gives the same bits alone and in any batch.
    pub batch_invariant: bool,
    /// The largest number of waiting requests.
    pub queue_limit: usize,
    /// Whether steps are launched op by op even if the device can replay a captured program.
    pub eager: bool,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            context: 0,
            max_sequences: 64,
            memory: 0,
            pages: 0,
            cache: DType::F16,
            max_rows: 0,
            prefill_rows: 0,
            prefix_cache: true,
            host_memory: 0,
            batch_invariant: false,
            queue_limit: 4096,
            eager: false,
        }
    }
}

/// The most rows of a step unless asked otherwise. Longer steps would gain little and delay the tokens of all
/// sequences.
const MAX_ROWS: u32 = 2048;

/// Beside decode rows, a step has at most this share of its rows for prompts, which bounds the time between
/// two tokens of a sequence: about 15 ms on an H200 with a model of 4 billion parameters.
const PREFILL_SHARE: u32 = 5;

/// Bytes for KV pages of a device that does not say how many are free.
const UNKNOWN_MEMORY: u64 = 2 << 30;

impl EngineOptions {
    /// The upper limit for `context` 0. A longer context costs little, but kernels are launched for the
    /// longest sequence that there can be.
    pub const DEFAULT_CONTEXT: u32 = 8192;

    /// The configuration of the scheduler for a model.
    pub fn scheduler(&self, model: &Model) -> Result<SchedulerConfig, ModelError> {
        let config = model.config();
        let context = match self.context {
            0 => config.context.min(EngineOptions::DEFAULT_CONTEXT),
            asked if asked > config.context => {
                return Err(ModelError::Context { asked, limit: config.context });
            }
            asked => asked,
        };
        at_least("max_sequences", self.max_sequences, 1)?;
        let (preferred, available) =
            model.with_device(|device| (device.prefill_chunk(), device.available_bytes()));
        let mut max_rows = if self.max_rows == 0 { preferred.clamp(1, MAX_ROWS) } else { self.max_rows };
        max_rows = max_rows.max(self.max_sequences);
        let beside_decode = max_rows.div_ceil(PREFILL_SHARE);
        let mut prefill_rows = if self.prefill_rows == 0 { beside_decode } else { self.prefill_rows };
        if self.batch_invariant {
            max_rows = max_rows.max(self.max_sequences - 1 + fulmen_core::KV_PAGE);
            prefill_rows = prefill_rows.max(fulmen_core::KV_PAGE);
        }
        let pool = pool(config, self.cache)?;
        let pages = self.pages(&pool, context, available);
        let host_pages = pool.pages_in(usize::try_from(self.host_memory).unwrap_or(usize::MAX));
        let group = GroupConfig { host_pages, ..GroupConfig::full(pages) };
        let preemption = if host_pages > 0 { PreemptionMode::Swap } else { PreemptionMode::Recompute };
        Ok(SchedulerConfig {
            groups: vec![group],
            page_size: fulmen_core::KV_PAGE,
            max_sequences: self.max_sequences,
            buckets: buckets(max_rows),
            prefill_rows,
            queue_limit: self.queue_limit,
            preemption,
            prefix_cache: self.prefix_cache,
            namespace: Namespace { model: "".into(), cache_type: self.cache.to_string().into() },
            batch_invariant: self.batch_invariant,
            ..SchedulerConfig::new(config.vocabulary, context, pages)
        })
    }

    fn pages(&self, pool: &KvPool, context: u32, available: Option<u64>) -> u32 {
        if self.pages > 0 {
            return self.pages;
        }
        let sequence = pages_of(context);
        let bytes = match self.memory {
            0 => available.map_or(UNKNOWN_MEMORY, |bytes| bytes / 4 * 3),
            asked => asked,
        };
        let fit = pool.pages_in(usize::try_from(bytes).unwrap_or(usize::MAX));
        // Admission keeps a page free for each sequence that runs.
        let with_reserve = sequence.saturating_add(1).saturating_mul(self.max_sequences);
        let wanted = if self.memory == 0 { with_reserve } else { u32::MAX };
        wanted.min(fit).max(sequence)
    }
}

fn at_least(what: &'static str, got: u32, least: u32) -> Result<(), ModelError> {
    match got >= least {
        true => Ok(()),
        false => {
            Err(ModelError::Option { what, expected: format!("at least {least}"), found: got.to_string() })
        }
    }
}

/// The KV pages of a model, without their number.
pub(super) fn pool(config: &Config, cache: DType) -> Result<KvPool, ModelError> {
    let layout = PageLayout::new(cache, config.heads).map_err(|problem| ModelError::Option {
        what: "the type of the KV cache",
        expected: "F16, Q8_0 or F32".to_owned(),
        found: problem.to_string(),
    })?;
    Ok(KvPool { layers: vec![layout; config.layers as usize], n_pages: 0 })
}

/// Row counts that programs are made for: four in each power of two, so that at most a fifth of the rows of a
/// step is inactive, and the largest.
fn buckets(max_rows: u32) -> Vec<u32> {
    let mut buckets: Vec<u32> = (1..8).collect();
    let mut base = 8u32;
    while base < max_rows {
        buckets.extend([4, 5, 6, 7].map(|quarters| base / 4 * quarters));
        base = base.saturating_mul(2);
    }
    buckets.retain(|&rows| rows < max_rows);
    buckets.push(max_rows);
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_waste_at_most_a_fifth_of_their_rows() {
        for max_rows in [1, 2, 7, 8, 9, 100, 512, 2048] {
            let buckets = buckets(max_rows);
            assert!(buckets.is_sorted_by(|a, b| a < b), "{buckets:?}");
            assert_eq!((buckets[0], buckets.last()), (1, Some(&max_rows)));
            for rows in 1..=max_rows {
                let bucket = buckets.iter().find(|&&bucket| bucket >= rows).unwrap();
                assert!((bucket - rows) * 5 <= *bucket, "{rows} rows in {bucket}");
            }
        }
    }
}
