//! A model of tensor parallelism: how long a decode step would take on several devices.
//!
//! ```text
//!  step = a rank's part of the step, measured alone on this device + its collectives, by a model of the link
//!  all-reduce of b bytes by n ranks = base + hop · log2 n + 2 · (n − 1) / n · b / bandwidth
//!  all-gather of b bytes from each  = base + hop · log2 n +     (n − 1)     · b / bandwidth
//! ```
//!
//! The part of a rank runs as it would: its shard of every weight, its heads and their KV cache, captured as
//! one program. What is not measured is what the model leaves out: collectives that wait because a rank is
//! late, and links that are shared with others.

use serde::Serialize;

use super::decode::{DecodeOptions, measure};
use super::{LoadedModel, OpProfile};
use crate::BenchError;
use crate::memory_bandwidth::{self, DeviceState};
use crate::progress::{Progress, Steps};

/// How fast ranks exchange values. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Its name.
    pub name: &'static str,
    /// Time of a collective of no bytes between no ranks, in µs.
    pub base_us: f64,
    /// What each doubling of the ranks adds, in µs.
    pub hop_us: f64,
    /// Bytes per second of one direction that collectives reach.
    pub bytes_per_second: f64,
}

impl Link {
    /// Assumed, not measured: NVLink 4 within a node, PCIe 5 with peer access, and InfiniBand NDR between
    /// nodes, as collectives inside a captured step.
    pub const KNOWN: [Link; 3] = [
        Link { name: "nvlink", base_us: 6.0, hop_us: 2.0, bytes_per_second: 300e9 },
        Link { name: "pcie", base_us: 12.0, hop_us: 6.0, bytes_per_second: 25e9 },
        Link { name: "ib", base_us: 20.0, hop_us: 8.0, bytes_per_second: 40e9 },
    ];

    fn latency_us(&self, ranks: u32) -> f64 {
        if ranks < 2 { 0.0 } else { self.base_us + self.hop_us * f64::from(ranks).log2() }
    }

    /// Time of an all-reduce, in µs.
    pub fn all_reduce_us(&self, ranks: u32, bytes: f64) -> f64 {
        let moved = 2.0 * f64::from(ranks.saturating_sub(1)) / f64::from(ranks.max(1)) * bytes;
        self.latency_us(ranks) + 1e6 * moved / self.bytes_per_second
    }

    /// Time of an all-gather of `bytes` from each rank, in µs.
    pub fn all_gather_us(&self, ranks: u32, bytes: f64) -> f64 {
        let moved = f64::from(ranks.saturating_sub(1)) * bytes;
        self.latency_us(ranks) + 1e6 * moved / self.bytes_per_second
    }
}

/// The collectives of a step. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepCollectives {
    /// All-reduces.
    pub all_reduces: usize,
    /// Bytes of one of them.
    pub all_reduce_bytes: f64,
    /// All-gathers.
    pub all_gathers: usize,
    /// Bytes of one of them, of each rank.
    pub all_gather_bytes: f64,
}

impl StepCollectives {
    /// Those in the ops of a step of one of `ranks`.
    fn of(profile: &OpProfile, ranks: u32) -> StepCollectives {
        let mut found = StepCollectives::default();
        for row in &profile.ops {
            let each = |parts: f64| row.bytes as f64 / row.calls.max(1) as f64 / parts;
            // A reduced value is read and written; of a gathered one, all parts are written.
            if row.op.starts_with("AllReduce") {
                found.all_reduces += row.calls;
                found.all_reduce_bytes = each(2.0);
            } else if row.op.starts_with("AllGather") {
                found.all_gathers += row.calls;
                found.all_gather_bytes = each(1.0 + f64::from(ranks));
            }
        }
        found
    }

    /// Their time, in µs.
    pub fn us(&self, link: &Link, ranks: u32) -> f64 {
        self.all_reduces as f64 * link.all_reduce_us(ranks, self.all_reduce_bytes)
            + self.all_gathers as f64 * link.all_gather_us(ranks, self.all_gather_bytes)
    }
}

/// A decode step on a number of ranks. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ParallelTimes {
    /// Ranks.
    pub ranks: u32,
    /// Tokens in the KV cache before the first step.
    pub depth: u32,
    /// Sequences that decode together.
    pub batch: u32,
    /// Bytes of the weights of a rank.
    pub rank_weight_bytes: u64,
    /// A rank's part of a step, measured.
    pub rank_us: f64,
    /// Its collectives.
    pub collectives: StepCollectives,
    /// Their time by the model.
    pub collectives_us: f64,
    /// The predicted time of a step.
    pub step_us: f64,
    /// Predicted tokens of all sequences per second.
    pub tokens_per_second: f64,
}

/// Measures rank 0 of `ranks` on its device, and adds the collectives.
///
/// # Errors
/// What the model reports.
pub fn bench_rank(
    loaded: &LoadedModel,
    ranks: u32,
    options: &DecodeOptions,
    link: &Link,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<ParallelTimes>, BenchError> {
    let mut steps = Steps::new(1 + options.depths.len() * options.batches.len(), progress);
    steps.start("memory bandwidth");
    let bandwidth = memory_bandwidth::measure(loaded, DeviceState::Idle);
    steps.finish(1);
    let mut tests = Vec::new();
    for &depth in &options.depths {
        for &batch in &options.batches {
            steps.start(&format!("1 of {ranks} ranks at depth {depth}, batch {batch}"));
            let times = measure(loaded, options, depth, batch, bandwidth)?;
            let collectives = StepCollectives::of(&times.profile, ranks);
            let collectives_us = if ranks > 1 { collectives.us(link, ranks) } else { 0.0 };
            let step_us = times.step_us + collectives_us;
            tests.push(ParallelTimes {
                ranks,
                depth,
                batch,
                rank_weight_bytes: loaded.model.weight_bytes(),
                rank_us: times.step_us,
                collectives,
                collectives_us,
                step_us,
                tokens_per_second: 1e6 * f64::from(batch) / step_us,
            });
            steps.finish(1);
        }
    }
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectives_take_latency_and_bytes() {
        let link = Link { name: "test", base_us: 5.0, hop_us: 1.0, bytes_per_second: 1e9 };
        // 8 ranks: 5 + 3 µs; 2 · 7/8 · 8000 bytes at 1000 bytes per µs.
        assert_eq!(link.all_reduce_us(8, 8000.0), 8.0 + 14.0);
        assert_eq!(link.all_gather_us(8, 1000.0), 8.0 + 7.0);
        assert_eq!((link.all_reduce_us(1, 8000.0), link.all_gather_us(1, 8000.0)), (0.0, 0.0));
        let step = StepCollectives {
            all_reduces: 3,
            all_reduce_bytes: 8000.0,
            all_gathers: 1,
            all_gather_bytes: 1000.0,
        };
        assert_eq!(step.us(&link, 8), 3.0 * 22.0 + 15.0);
    }
}
