//! Configuration of the scheduler.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::ConfigError;
use crate::pages::{GroupConfig, PAGE_SIZE};
use crate::prefix_cache::Namespace;

/// From so many prompts at a time on, a step may be as long as the prompts want.
pub const MANY_PROMPTS: u32 = 4;

/// What happens to the pages of a preempted sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PreemptionMode {
    /// They are dropped, and the sequence is computed again from its tokens.
    #[default]
    Recompute,
    /// They are copied to the host and back. Where the host has too few pages, they are dropped.
    Swap,
}

/// Configuration of a [`Scheduler`](crate::Scheduler).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerConfig {
    /// Tokens of the model's vocabulary.
    pub vocabulary: u32,
    /// Positions of the model's context.
    pub context: u32,
    /// Positions of a page.
    pub page_size: u32,
    /// The pools, one per group of layers.
    pub groups: Vec<GroupConfig>,
    /// Slots: the largest number of sequences that run at the same time.
    pub max_sequences: u32,
    /// Row counts for which the device has programs, in increasing order. The last one is the largest number
    /// of rows of a step.
    pub buckets: Vec<u32>,
    /// The largest number of prefill rows in a step that also has decode rows. A larger number is faster in
    /// total and lets the decoding sequences wait longer for each token.
    pub prefill_rows: u32,
    /// More of them where there are many decode rows: this number for each. A step of many decode rows takes
    /// long by itself, so that proportionate chunks delay its tokens by about the same factor.
    pub prefill_rows_per_decode_row: u32,
    /// Prompts take all rows that decode rows leave where [`MANY_PROMPTS`] or more of them are being read,
    /// and at least one for so many decode rows; 0 for never. When many requests begin at once, a few long
    /// steps serve all of them sooner than many short ones.
    pub decode_rows_per_prompt: u32,
    /// The largest number of rows of a step that give log-probabilities of prompt tokens. Beside them, each
    /// sequence may have one row with results.
    pub prompt_outputs: u32,
    /// Pages that stay free per running sequence when another is admitted, so that those that run can grow.
    pub reserve_pages: u32,
    /// The largest number of waiting requests.
    pub queue_limit: usize,
    /// How long a request must have waited to come before a new one whose priority is higher by 1. Bounds how
    /// many requests can overtake one.
    pub aging: Duration,
    /// How much later a request is ranked for each request of the same tenant that is not finished, so that
    /// one tenant does not occupy the whole queue. Zero for first come, first served.
    pub tenant_spacing: Duration,
    /// What happens to the pages of a preempted sequence.
    pub preemption: PreemptionMode,
    /// Whether pages are kept for prompts with the same beginning. Needs groups of full attention, behind
    /// which there may be some with windows or one of recurrent states.
    pub prefix_cache: bool,
    /// Recurrent states are kept for later prompts at multiples of so many positions, beside the ends of
    /// prompts. A multiple of `page_size`.
    pub snapshot_interval: u32,
    /// What cached pages are pages of.
    pub namespace: Namespace,
    /// Whether a request gives the same bits alone and in any batch: prefill chunks begin at page borders,
    /// and decoded positions are never computed by prefill.
    pub batch_invariant: bool,
}

impl SchedulerConfig {
    /// One group of full attention with `pages` pages of [`PAGE_SIZE`] positions, up to 256 sequences, and
    /// buckets of powers of two up to 2048 rows.
    pub fn new(vocabulary: u32, context: u32, pages: u32) -> SchedulerConfig {
        SchedulerConfig {
            vocabulary,
            context,
            page_size: PAGE_SIZE,
            groups: vec![GroupConfig::full(pages)],
            max_sequences: 256,
            buckets: (0..12).map(|power| 1 << power).collect(),
            prefill_rows: 512,
            prefill_rows_per_decode_row: 0,
            decode_rows_per_prompt: 0,
            prompt_outputs: PAGE_SIZE,
            reserve_pages: 1,
            queue_limit: 4096,
            aging: Duration::from_secs(5),
            tenant_spacing: Duration::ZERO,
            preemption: PreemptionMode::default(),
            prefix_cache: true,
            snapshot_interval: 2048,
            namespace: Namespace::default(),
            batch_invariant: false,
        }
    }

    /// The largest number of rows of a step.
    pub fn max_rows(&self) -> u32 {
        self.buckets.last().copied().unwrap_or(0)
    }

    /// The largest number of rows of a step that have results.
    pub fn max_outputs(&self) -> u32 {
        self.max_sequences.saturating_add(self.prompt_outputs).min(self.max_rows())
    }

    /// The largest number of prefill rows of so many prompts beside so many decode rows.
    pub(super) fn prefill_rows_beside(&self, decode_rows: u32, prompts: u32) -> u32 {
        if prompts >= MANY_PROMPTS && decode_rows <= prompts.saturating_mul(self.decode_rows_per_prompt) {
            return self.max_rows();
        }
        self.prefill_rows.max(decode_rows.saturating_mul(self.prefill_rows_per_decode_row))
    }

    /// The smallest bucket that holds `rows` rows.
    pub(crate) fn bucket(&self, rows: u32) -> u32 {
        self.buckets.iter().copied().find(|&bucket| bucket >= rows).unwrap_or(rows)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let check = |holds, what, expected: &str, got: u32| ConfigError::check(holds, what, expected, got);
        let last = u32::MAX - 1;
        check((1..=last).contains(&self.vocabulary), "vocabulary", "1 to 2^32 - 2 tokens", self.vocabulary)?;
        check((2..=last).contains(&self.context), "context", "2 to 2^32 - 2 positions", self.context)?;
        let rising = self.buckets.is_sorted_by(|a, b| a < b) && self.buckets.first() > Some(&0);
        let buckets = format!("{:?}", self.buckets);
        ConfigError::check(rising, "buckets", "increasing row counts from 1 on", buckets)?;
        let (max_rows, page, sequences) = (self.max_rows(), self.page_size, self.max_sequences);
        let expected = format!("1 to {max_rows}, the largest bucket");
        check((1..=max_rows).contains(&sequences), "max_sequences", &expected, sequences)?;
        check(self.prefill_rows > 0, "prefill_rows", "at least 1", self.prefill_rows)?;
        check(self.prompt_outputs > 0, "prompt_outputs", "at least 1", self.prompt_outputs)?;
        if self.batch_invariant {
            let expected = format!("at least a page ({page}) in batch-invariant mode");
            check(self.prefill_rows >= page, "prefill_rows", &expected, self.prefill_rows)?;
            check(self.prompt_outputs >= page, "prompt_outputs", &expected, self.prompt_outputs)?;
            let rows = (sequences - 1).saturating_add(page);
            let expected = format!("at least {rows} (max_sequences - 1 + page) in batch-invariant mode");
            check(max_rows >= rows, "the largest bucket", &expected, max_rows)?;
        }
        Ok(())
    }
}
