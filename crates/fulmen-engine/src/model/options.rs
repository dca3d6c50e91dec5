//! Options of an engine for a model, and the configuration that follows from them.

use std::time::Duration;

use fulmen_core::{DType, Plan, pages_of};
use fulmen_model::ModelError;
use fulmen_model::arch::{Config, GraphSpec, Stage, Step};
use serde::{Deserialize, Serialize};

use super::limits::{RankLimits, ranks_of};
use super::logit_edits::EditBuffers;
use super::page_groups::{KvPages, PageGroups, StagePools};
use super::programs::Programs;
use crate::Model;
use crate::pages::{GroupConfig, GroupKind};
use crate::prefix_cache::Namespace;
use crate::scheduler::{PreemptionMode, SchedulerConfig};

/// How an engine runs a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineOptions {
    /// Positions per sequence; 0 for the model's own context, at most [`EngineOptions::DEFAULT_CONTEXT`].
    pub context: u32,
    /// Sequences that run at the same time; others wait.
    pub max_sequences: u32,
    /// Bytes for KV pages, on all devices together; 0 for what all sequences need, at most three quarters of
    /// the memory that is free on each device. At least one sequence of the whole context is always there.
    pub memory: u64,
    /// KV pages of 128 positions; 0 to let `memory` decide. Layers with a sliding window that is shorter than
    /// the context have pages of their own beside them, at most as many.
    pub pages: u32,
    /// KV pages of layers with a sliding window that is shorter than the context; 0 for what goes with those
    /// of the other layers.
    pub window_pages: u32,
    /// Type of the KV cache: F16, Q8_0 or F32.
    #[serde(with = "crate::wire::dtype")]
    pub cache: DType,
    /// The largest number of rows of a step; 0 for what the device prefers.
    pub max_rows: u32,
    /// The largest number of prefill rows beside decode rows; 0 for a fifth of `max_rows`, or for four times
    /// the decode rows if that is more.
    pub prefill_rows: u32,
    /// The largest number of rows of a step that give log-probabilities of prompt tokens, beside a row with
    /// results for each sequence; 0 for 32, or in batch-invariant mode for a page. Each takes memory for some
    /// rows of logits.
    pub prompt_outputs: u32,
    /// Whether pages are kept for prompts with the same beginning, and with them recurrent states of models
    /// that have some.
    pub prefix_cache: bool,
    /// Bytes for recurrent states that are kept for later prompts, on all devices together; 0 for an eighth
    /// of the memory that is free on each device, for 4 to 64 of them.
    pub state_memory: u64,
    /// Bytes on the host for the pages and recurrent states of preempted sequences; 0 to compute them again.
    pub host_memory: u64,
    /// Whether a request gives the same bits alone and in any batch.
    pub batch_invariant: bool,
    /// The largest number of waiting requests.
    pub queue_limit: usize,
    /// Whether an idle engine makes and captures the programs of steps to come, where capturing takes time
    /// (CUDA), so that no request waits for it.
    pub warm_up: bool,
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
            window_pages: 0,
            cache: DType::F16,
            max_rows: 0,
            prefill_rows: 0,
            prompt_outputs: 0,
            prefix_cache: true,
            state_memory: 0,
            host_memory: 0,
            batch_invariant: false,
            queue_limit: 4096,
            warm_up: true,
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

/// Beside many decode rows, a step has up to this number of prefill rows for each of them, so that prompts of
/// hundreds of sequences end soon and their rows fill decode steps. On an H200 with a model of 4 billion
/// parameters and 256 sequences the 99th percentile of the inter-token latency is 28 ms (docs/results.md).
const PREFILL_ROWS_PER_DECODE_ROW: u32 = 4;

/// When at least a fifth of the running sequences are prompts, steps are as long as these want: 64 clients
/// with short prompts that come together get an eighth more tokens (docs/results.md).
const DECODE_ROWS_PER_PROMPT: u32 = 4;

/// A tenant's next request is ranked this much later for each that it has in the queue or running, so that
/// one with a hundred of them does not keep others waiting. Requests of one tenant keep their order.
const TENANT_SPACING: Duration = Duration::from_millis(100);

/// Rows of a step that give log-probabilities of prompt tokens, unless asked otherwise.
const PROMPT_OUTPUTS: u32 = 32;

/// The least and the most recurrent states that are kept unless asked otherwise.
const KEPT_STATES: (u64, u64) = (4, 64);

/// Bytes for KV pages of a device that does not say how many are free.
const UNKNOWN_MEMORY: u64 = 2 << 30;

/// The KV pages of one sequence that has the whole context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceCache {
    /// Their bytes.
    pub bytes: u64,
    /// Pages of layers that see everything.
    pub pages: u32,
    /// Pages of layers with a window, and the window, if they have pages of their own.
    pub window: Option<(u32, u32)>,
}

impl EngineOptions {
    /// The upper limit for `context` 0. A longer context costs little, but kernels are launched for the
    /// longest sequence that there can be.
    pub const DEFAULT_CONTEXT: u32 = 8192;

    /// The configuration of the scheduler for a model.
    pub fn scheduler(&self, model: &Model) -> Result<SchedulerConfig, ModelError> {
        let config = model.config();
        let context = self.resolved_context(config)?;
        at_least("max_sequences", self.max_sequences, 1)?;
        let _between_steps = model.between_steps()?;
        let limits = self.limits_of_all_nodes(model)?;
        let kept = limits.kept_states;
        let (max_rows, prefill_rows) = self.rows(limits.preferred_rows);
        let page_groups = self.page_groups(config, context, max_rows);
        let whole = StagePools::new(config, self.cache, Stage::whole(config.layers), &page_groups)?;
        let mut pages = self.wanted_pages(&whole, &page_groups, context);
        if self.pages == 0 {
            pages = pages.min(self.pages_on_all_nodes(model, limits)?);
            // At least one sequence, or nothing can run.
            pages = pages.max(pages_of(context));
        }
        let host_states = self.host_states(config);
        let states = config.state_bytes(Stage::whole(config.layers));
        let host_memory = self.host_memory.saturating_sub(states.saturating_mul(host_states.into()));
        let mut host_pages = whole.pages_in(&page_groups, host_memory, 0);
        let mut groups = vec![GroupConfig { host_pages, ..GroupConfig::full(pages) }];
        if let Some(positions) = page_groups.window {
            let kind = GroupKind::Window { positions };
            let (pages, host) = (page_groups.pages(pages).window, page_groups.pages(host_pages).window);
            groups.push(GroupConfig { kind, pages, host_pages: host });
        }
        if config.delta_net.is_some() {
            let pages = self.max_sequences.saturating_add(kept);
            groups.push(GroupConfig { kind: GroupKind::Recurrent, pages, host_pages: host_states });
            host_pages = host_pages.min(host_states);
        }
        let preemption = if host_pages > 0 { PreemptionMode::Swap } else { PreemptionMode::Recompute };
        Ok(SchedulerConfig {
            groups,
            page_size: fulmen_core::KV_PAGE,
            max_sequences: self.max_sequences,
            buckets: buckets(max_rows, limits.rows_at_once),
            prefill_rows,
            prompt_outputs: self.prompt_outputs(),
            prefill_rows_per_decode_row: if self.prefill_rows == 0 { PREFILL_ROWS_PER_DECODE_ROW } else { 0 },
            decode_rows_per_prompt: if self.prefill_rows == 0 { DECODE_ROWS_PER_PROMPT } else { 0 },
            queue_limit: self.queue_limit,
            tenant_spacing: TENANT_SPACING,
            preemption,
            prefix_cache: self.prefix_cache,
            namespace: Namespace { model: "".into(), cache_type: self.cache.to_string().into() },
            batch_invariant: self.batch_invariant,
            ..SchedulerConfig::new(config.vocabulary, context, pages)
        })
    }

    /// The KV pages that fit every device of this process.
    pub(super) fn pages_on_node(&self, model: &Model, limits: RankLimits) -> Result<u32, ModelError> {
        let (config, kept) = (model.config(), limits.kept_states);
        let context = self.resolved_context(config)?;
        let (max_rows, _) = self.rows(limits.preferred_rows);
        let groups = self.page_groups(config, context, max_rows);
        let mut pages = u32::MAX;
        for rank in ranks_of(model) {
            pages = pages.min(self.pages_of_rank(&rank, &groups, context, max_rows, kept)?);
        }
        Ok(pages)
    }

    /// What one sequence of the whole context takes at most, on all devices together, with prefill chunks of
    /// up to `preferred` rows unless [`max_rows`](EngineOptions::max_rows) says otherwise.
    pub fn sequence_cache(&self, config: &Config, preferred: u32) -> Result<SequenceCache, ModelError> {
        let context = self.resolved_context(config)?;
        let groups = self.page_groups(config, context, self.rows(preferred).0);
        let pools = StagePools::new(config, self.cache, Stage::whole(config.layers), &groups)?;
        let pages = groups.pages(pages_of(context));
        let window = groups.window.map(|positions| (pages.window, positions));
        Ok(SequenceCache { bytes: pools.bytes(pages, 0), pages: pages.full, window })
    }

    fn page_groups(&self, config: &Config, context: u32, max_rows: u32) -> PageGroups {
        PageGroups::new(config, context, max_rows, self.window_pages)
    }

    /// Recurrent states that are kept on every device of a rank, beside those of sequences.
    pub(super) fn kept_on_rank(&self, rank: &Model) -> u32 {
        let config = rank.rank_config();
        let stages = rank.placement().stages().iter().enumerate();
        let kept = stages.map(|(number, &stage)| {
            let [available, largest] =
                rank.with_stage(number, |device| [device.available_bytes(), device.largest_state()]);
            let widest = config.recurrent_states(stage).into_iter().map(|(_, values)| 4 * u64::from(values));
            let states = largest.zip(widest.max()).map_or(u64::MAX, |(largest, widest)| largest / widest);
            let own = self.max_sequences;
            let fitting = u32::try_from(states.saturating_sub(own.into())).unwrap_or(u32::MAX);
            self.kept_states(config, stage, available).min(fitting)
        });
        kept.min().unwrap_or(0)
    }

    /// Recurrent states that are kept beside those of sequences, on a device with so many bytes available.
    fn kept_states(&self, config: &Config, stage: Stage, available: Option<u64>) -> u32 {
        let states = |memory: u64, bytes: u64| memory.checked_div(bytes).unwrap_or(u64::MAX);
        let kept = match (self.prefix_cache && config.delta_net.is_some(), self.state_memory) {
            (false, _) => 0,
            (true, 0) => {
                let (least, most) = KEPT_STATES;
                states(available.unwrap_or(UNKNOWN_MEMORY) / 8, config.state_bytes(stage)).clamp(least, most)
            }
            (true, memory) => states(memory, config.state_bytes(Stage::whole(config.layers))),
        };
        u32::try_from(kept).unwrap_or(u32::MAX)
    }

    /// Recurrent states on the host: one for each sequence, but at most a quarter of the memory.
    fn host_states(&self, config: &Config) -> u32 {
        let bytes = config.state_bytes(Stage::whole(config.layers));
        let states = (self.host_memory / 4).checked_div(bytes).unwrap_or(0);
        u32::try_from(states).unwrap_or(u32::MAX).min(self.max_sequences)
    }

    /// KV pages that fit every device of a rank.
    fn pages_of_rank(
        &self,
        rank: &Model,
        groups: &PageGroups,
        context: u32,
        max_rows: u32,
        kept: u32,
    ) -> Result<u32, ModelError> {
        let (config, mut pages) = (rank.rank_config(), u32::MAX);
        for (number, &stage) in rank.placement().stages().iter().enumerate() {
            let plan = |spec: &GraphSpec| rank.plan(spec);
            let beside = self.memory_beside_pages(plan, (stage, config), context, max_rows, kept)?;
            let available = rank.with_stage(number, |device| device.available_bytes());
            let pools = StagePools::new(config, self.cache, stage, groups)?;
            pages = pages.min(self.fitting_pages(&pools, groups, available, beside));
        }
        Ok(pages)
    }

    fn resolved_context(&self, config: &Config) -> Result<u32, ModelError> {
        match self.context {
            0 => Ok(config.context.min(EngineOptions::DEFAULT_CONTEXT)),
            asked if asked > config.context => Err(ModelError::Context { asked, limit: config.context }),
            asked => Ok(asked),
        }
    }

    /// Bytes that a stage needs beside its weights on a device that prefers so many rows of a prefill and has
    /// so many bytes available: see [`FitFor::Engine`](crate::FitFor::Engine).
    pub(crate) fn stage_bytes(
        &self,
        config: &Config,
        plan: impl Fn(&GraphSpec) -> Result<Plan, ModelError>,
        stage: Stage,
        preferred: u32,
        available: u64,
    ) -> Result<u64, ModelError> {
        let context = self.resolved_context(config)?;
        at_least("max_sequences", self.max_sequences, 1)?;
        let (rows, _) = self.rows(preferred);
        let kept = self.kept_states(config, stage, Some(available));
        let beside = self.memory_beside_pages(plan, (stage, config), context, rows, kept)?;
        let groups = self.page_groups(config, context, rows);
        let pools = StagePools::new(config, self.cache, stage, &groups)?;
        let bytes = |pages: u32| pools.bytes(groups.pages(pages), 1);
        let whole = StagePools::new(config, self.cache, Stage::whole(config.layers), &groups)?;
        let wanted = bytes(self.wanted_pages(&whole, &groups, context));
        let kept = if self.pages > 0 || self.memory > 0 { wanted } else { wanted.min(available / 4) };
        Ok(beside.saturating_add(kept.max(bytes(pages_of(context)))))
    }

    /// The most rows of a step, and of its prefill chunks, if a device prefers so many.
    fn rows(&self, preferred: u32) -> (u32, u32) {
        let mut max_rows = if self.max_rows == 0 { preferred.clamp(1, MAX_ROWS) } else { self.max_rows };
        max_rows = max_rows.max(self.max_sequences);
        let beside_decode = max_rows.div_ceil(PREFILL_SHARE);
        let mut prefill_rows = if self.prefill_rows == 0 { beside_decode } else { self.prefill_rows };
        if self.batch_invariant {
            max_rows = max_rows.max(self.max_sequences - 1 + fulmen_core::KV_PAGE);
            prefill_rows = prefill_rows.max(fulmen_core::KV_PAGE);
        }
        (max_rows, prefill_rows)
    }

    /// The most rows of a step with log-probabilities of prompt tokens.
    fn prompt_outputs(&self) -> u32 {
        let asked = if self.prompt_outputs == 0 { PROMPT_OUTPUTS } else { self.prompt_outputs };
        if self.batch_invariant { asked.max(fulmen_core::KV_PAGE) } else { asked }
    }

    /// The most rows of a step with results, of `max_rows`.
    fn max_outputs(&self, max_rows: u32) -> u32 {
        self.max_sequences.saturating_add(self.prompt_outputs()).min(max_rows)
    }

    /// KV pages that were asked for, or that all sequences need.
    fn wanted_pages(&self, pools: &StagePools, groups: &PageGroups, context: u32) -> u32 {
        match (self.pages, self.memory) {
            (0, 0) => {
                // Admission keeps a page free for each sequence that runs.
                pages_of(context).saturating_add(1).saturating_mul(self.max_sequences)
            }
            (0, memory) => pools.pages_in(groups, memory, 0),
            (pages, _) => pages,
        }
    }

    /// Bytes that a stage needs beside its weights and KV pages: the arena of the largest program, rows, page
    /// tables, histories, masks, recurrent states of sequences and those that are kept.
    fn memory_beside_pages(
        &self,
        plan: impl Fn(&GraphSpec) -> Result<Plan, ModelError>,
        (stage, config): (Stage, &Config),
        context: u32,
        max_rows: u32,
        kept: u32,
    ) -> Result<u64, ModelError> {
        let slots = Slots::new(self.max_sequences);
        let window = u32::from(self.page_groups(config, context, max_rows).window.is_some());
        let spec = graph_spec(self.cache, slots, context, KvPages { full: 1, window }, 1);
        let outputs = self.max_outputs(max_rows);
        let (arena, rows) = Programs::memory(plan, (stage, &spec), max_rows, outputs)?;
        let edits = EditBuffers::bytes(outputs.next_power_of_two(), config.vocabulary).iter().sum::<usize>();
        // The page tables are smaller than the history.
        let history = 4 * slots.all() as usize * context as usize;
        let states = config.state_bytes(stage).saturating_mul(slots.sequences.saturating_add(kept).into());
        Ok(((arena + rows + edits + 2 * history) as u64).saturating_add(states))
    }

    /// Full KV pages of a stage that fit a device, with those of windows, which has so many bytes available
    /// and needs `beside` of them for something else. What was asked for in bytes is not limited.
    fn fitting_pages(
        &self,
        pools: &StagePools,
        groups: &PageGroups,
        available: Option<u64>,
        beside: u64,
    ) -> u32 {
        if self.memory > 0 || pools.is_empty() {
            return u32::MAX;
        }
        let bytes = match available {
            None => UNKNOWN_MEMORY,
            Some(bytes) => (bytes / 4 * 3).min(bytes.saturating_sub(beside)),
        };
        // One more in each group is that of inactive rows.
        pools.pages_in(groups, bytes, u32::from(available.is_some()))
    }
}

/// The slots of an engine: those of sequences, then those of inactive rows, which share one KV page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    pub(super) sequences: u32,
    pub(super) inactive: u32,
}

impl Slots {
    /// A decode step has at most a fifth of inactive rows, each with a slot of its own: attention is slow
    /// where many rows are of one sequence.
    pub(super) fn new(sequences: u32) -> Slots {
        Slots { sequences, inactive: sequences / 4 + 1 }
    }

    pub(super) fn all(self) -> u32 {
        self.sequences.saturating_add(self.inactive)
    }

    /// The slot and the position of an inactive row, by its number among them. Those of one slot have
    /// positions that follow each other, so that they read what they have stored in the same step.
    pub(super) fn of_inactive(self, number: u32) -> (u32, u32) {
        (self.sequences + number % self.inactive, number / self.inactive % fulmen_core::KV_PAGE)
    }
}

/// The graphs of an engine with so many slots, KV pages and pages of recurrent states, but for their step.
pub(super) fn graph_spec(cache: DType, slots: Slots, context: u32, pages: KvPages, states: u32) -> GraphSpec {
    GraphSpec {
        step: Step::Mixed { rows: 1, chunks: 0, results: None },
        cache,
        sequences: slots.all(),
        capacity: context,
        // The last page of a group is that of inactive rows, which have no recurrent state.
        pages: pages.full.saturating_add(1),
        window_pages: if pages.window > 0 { pages.window.saturating_add(1) } else { 0 },
        states,
        stage: None,
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

/// Row counts that programs are made for: four in each power of two, so that at most a fifth of the rows of a
/// step is inactive, eight from 64 to 256 rows, where a row takes longest, what a device runs at once, and
/// the largest.
pub(super) fn buckets(max_rows: u32, rows_at_once: u32) -> Vec<u32> {
    let mut buckets: Vec<u32> = (1..8).collect();
    let mut base = 8u32;
    while base < max_rows {
        let step = if (64..256).contains(&base) { base / 8 } else { base / 4 };
        buckets.extend((base..2 * base).step_by(step as usize));
        base = base.saturating_mul(2);
    }
    if (129..256).contains(&rows_at_once) {
        buckets.push(rows_at_once);
    }
    buckets.retain(|&rows| rows < max_rows);
    buckets.push(max_rows);
    buckets.sort_unstable();
    buckets.dedup();
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inactive_rows_of_a_decode_step_have_slots_of_their_own() {
        for sequences in [1, 2, 16, 33, 64, 129, 256] {
            let (slots, buckets) = (Slots::new(sequences), buckets(2048, 0));
            for rows in 1..=sequences {
                let bucket = buckets.iter().find(|&&bucket| bucket >= rows).unwrap();
                let places = (0..bucket - rows).map(|number| slots.of_inactive(number));
                let distinct: std::collections::HashSet<u32> = places.clone().map(|(slot, _)| slot).collect();
                assert_eq!(distinct.len() as u32, bucket - rows, "{rows} rows of {sequences} sequences");
                assert!(places.into_iter().all(|(slot, position)| slot < slots.all() && position == 0));
            }
        }
    }

    #[test]
    fn buckets_waste_at_most_a_fifth_of_their_rows() {
        for (max_rows, at_once) in
            [(1, 132), (2, 0), (7, 4), (8, 8), (9, 0), (100, 132), (512, 132), (2048, 144), (2048, 108)]
        {
            let buckets = buckets(max_rows, at_once);
            assert!(!(129..max_rows).contains(&at_once) || buckets.contains(&at_once), "{buckets:?}");
            assert!(buckets.is_sorted_by(|a, b| a < b), "{buckets:?}");
            assert_eq!((buckets[0], buckets.last()), (1, Some(&max_rows)));
            for rows in 1..=max_rows {
                let bucket = buckets.iter().find(|&&bucket| bucket >= rows).unwrap();
                assert!((bucket - rows) * 5 <= *bucket, "{rows} rows in {bucket}");
            }
        }
    }
}
