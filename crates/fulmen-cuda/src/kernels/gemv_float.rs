//! Launches of the GEMV with float weights: 1 to 16 rows of activations with weights in f16, bf16 or f32
//! (`gemv_float.cu`).
//!
//! How a launch is configured:
//!
//! - Rows of activations: up to [`MAX_BLOCK_ROWS`] a block, fewer if their f32 values do not fit in shared
//!   memory. A call of more rows has a grid of as many blocks for each chunk of them, and a launch for the
//!   rest.
//! - Grid: one block per SM, each with the same number of rows of every weight matrix.
//! - Tasks: a group of [`GROUP_ROWS`] rows, its columns split if there are few groups, so that the longest
//!   work of a warp is as short as possible ([`TaskSplit`]).
//! - Warps and stages: no more than the work needs, and as many as shared memory has room for.

use bytemuck::Zeroable;
use fulmen_core::{BackendError, DType};

use super::gemm_weight::MAX_WEIGHTS;
use super::small_m::{FusedNorm, LaunchGroup, Matmul, MatmulInput};
use super::{Launched, at_row, type_name};
use crate::device::Caps;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

const WARPS: u32 = 14;
const RING_STAGES: u32 = 3;
/// Rows of a weight matrix that a warp multiplies at once.
const GROUP_ROWS: u32 = 4;
/// Bytes of a row in a stage.
const SEGMENT_BYTES: u32 = 1024;
const STAGE_BYTES: u32 = GROUP_ROWS * SEGMENT_BYTES;
/// Bytes of a row that a warp multiplies at once.
const STEP_BYTES: u32 = 512;

kernel_args! {
    file: "gemv_float.cu";
    constants: [WARPS, RING_STAGES, MAX_WEIGHTS, GROUP_ROWS, SEGMENT_BYTES, STAGE_BYTES, STEP_BYTES];

    #[derive(Debug, Default)]
    struct GemvFloatWeight {
        data: DevicePtr,
        out: DevicePtr,
        bias: DevicePtr,
        residual: DevicePtr,
        rows: u32,
        rows_per_block: u32,
        first_group: u32,
        unused: u32,
    }

    #[derive(Debug)]
    struct GemvFloatArgs {
        x: DevicePtr,
        gamma: DevicePtr,
        normed: DevicePtr,
        epsilon: f32,
        inverse_k: f32,
        k: u32,
        x_pitch: u32,
        row_bytes: u32,
        n_weights: u32,
        gate_up: u32,
        groups: u32,
        segments: u32,
        task_segments: u32,
        splits: u32,
        warps: u32,
        stages: u32,
        gelu: u32,
        weights: [GemvFloatWeight; MAX_WEIGHTS],
    }
}

/// Rows of activations of a block that there are kernels for.
const MAX_BLOCK_ROWS: u32 = 4;

/// The most rows of activations: up to here several chunks of them are faster than the generic kernels, and
/// beyond it the GEMM is faster.
const MAX_ROWS: u32 = 16;

/// Static shared memory, rounded up.
const STATIC_BYTES: u32 = 512;

/// The fewest warps that can load weights at the memory's speed.
const MIN_WARPS: u32 = 4;

/// With fewer warps than this, more of them are better than longer rings.
const MANY_WARPS: u32 = 12;

/// The most bytes of partial sums for which columns are split.
const MAX_SPLIT_BYTES: u32 = 8192;

/// Whether these kernels take the weights and the number of rows.
pub(super) fn takes(input: &MatmulInput, matmuls: &[Matmul]) -> bool {
    let takes = |matmul: &Matmul| {
        matches!(matmul.weight.dtype, DType::F16 | DType::BF16 | DType::F32)
            && matmul.weight.ptr.is_multiple_of(16)
            && matmul.row_bytes(input.k).is_some_and(|bytes| bytes.is_multiple_of(16))
    };
    (1..=MAX_ROWS).contains(&input.m) && matmuls.iter().all(takes)
}

/// Launches all groups, if there is a configuration for each. The first launch of a chunk of rows computes
/// the norm, and the others read it.
pub(super) fn run(queue: &mut Queue, input: &MatmulInput, groups: &[LaunchGroup<'_>]) -> Option<Launched> {
    let caps = queue.caps();
    let configs = |m: u32| -> Option<Vec<FloatConfig>> {
        groups.iter().map(|group| FloatConfig::new(caps, m, input.k, group)).collect()
    };
    let most = MAX_BLOCK_ROWS.min(input.m);
    let (rows, whole) = (1..=most).rev().find_map(|rows| Some((rows, configs(rows)?)))?;
    let (count, left) = (input.m / rows, input.m % rows);
    let rest = if left == 0 { Vec::new() } else { configs(left)? };
    Some(launch(queue, input, &[(0, count, whole), (count * rows, 1, rest)]))
}

/// Launches so many chunks of rows of activations each, with the row that they start with.
fn launch(queue: &mut Queue, input: &MatmulInput, chunks: &[(u32, u32, Vec<FloatConfig>)]) -> Launched {
    let mut launched = 0;
    for (row, count, configs) in chunks {
        for (index, config) in configs.iter().enumerate() {
            config.launch(queue, input.x, input.norm.filter(|_| index == 0), (*row, *count))?;
            launched += 1;
        }
    }
    Ok(launched)
}

/// A launch, but for its activations.
#[derive(Debug)]
struct FloatConfig {
    entry: String,
    blocks: u32,
    shared: u32,
    args: GemvFloatArgs,
}

impl FloatConfig {
    /// For `m` rows of `k` activations. `None` if they do not fit in shared memory.
    fn new(caps: Caps, m: u32, k: u32, group: &LaunchGroup<'_>) -> Option<FloatConfig> {
        let first = group.matmuls.first()?;
        let row_bytes = first.row_bytes(k)?;
        let mut args = GemvFloatArgs {
            inverse_k: 1.0 / k as f32,
            k,
            x_pitch: (row_bytes.div_ceil(STEP_BYTES) * STEP_BYTES) / (row_bytes / k),
            row_bytes,
            n_weights: group.matmuls.len() as u32,
            gate_up: group.gate_up.into(),
            gelu: group.gelu(),
            segments: row_bytes.div_ceil(SEGMENT_BYTES),
            ..GemvFloatArgs::zeroed()
        };
        let mut blocks = 1;
        for (to, matmul) in args.weights.iter_mut().zip(group.matmuls) {
            let rows = matmul.weight.rows;
            let rows_per_block = rows.div_ceil(caps.multiprocessors);
            *to = GemvFloatWeight {
                data: matmul.weight.ptr,
                out: matmul.out,
                bias: matmul.bias,
                residual: matmul.residual,
                rows,
                rows_per_block,
                first_group: args.groups,
                unused: 0,
            };
            blocks = blocks.max(rows.div_ceil(rows_per_block));
            args.groups += rows_per_block.div_ceil(GROUP_ROWS);
        }
        let x_bytes = m.checked_mul(args.x_pitch)?.checked_mul(4)?;
        // Partial sums of one split.
        let sum_bytes = (args.groups * GROUP_ROWS).checked_mul(4 * m)?;
        let fixed = x_bytes.checked_add(sum_bytes.max(MAX_SPLIT_BYTES))?.checked_add(STATIC_BYTES)?;
        let rings = caps.shared_bytes.checked_sub(fixed)?;
        let warps = |stages: u32| (rings / (stages * STAGE_BYTES)).min(WARPS);
        let stages = if warps(RING_STAGES) >= MANY_WARPS { RING_STAGES } else { RING_STAGES - 1 };
        let max_warps = warps(stages);
        let max_splits = (MAX_SPLIT_BYTES / sum_bytes.max(1)).max(1);
        let split = TaskSplit::new(args.groups, args.segments, (max_warps, stages), max_splits)?;
        args.task_segments = split.segments;
        args.splits = split.splits;
        args.warps = split.warps;
        args.stages = split.stages;
        Some(FloatConfig {
            entry: format!("gemv_float_{}_rows{m}", type_name(first.weight.dtype)),
            blocks,
            shared: split.warps * split.stages * STAGE_BYTES + x_bytes + sum_bytes * split.splits,
            args,
        })
    }

    /// Launches so many chunks of rows of activations, from `row` on.
    fn launch(
        &self,
        queue: &mut Queue,
        x: u64,
        norm: Option<FusedNorm>,
        (row, chunks): (u32, u32),
    ) -> Result<(), BackendError> {
        let mut args = self.args;
        let k = args.k;
        args.x = at_row(x, row, k);
        if let Some(norm) = norm {
            args.x = at_row(norm.input, row, k);
            args.gamma = norm.gamma;
            args.normed = at_row(norm.output, row, k);
            args.epsilon = norm.epsilon;
        }
        for weight in &mut args.weights {
            weight.out = at_row(weight.out, row, weight.rows);
            weight.residual = at_row(weight.residual, row, weight.rows);
        }
        let launch = Launch::new("gemv_float", &self.entry, self.blocks, 32 * WARPS);
        Ok(queue.launch(&launch.rows(chunks).shared(self.shared), &args)?)
    }
}

/// How the columns of a block's row groups are split into tasks, and the warps that take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TaskSplit {
    /// Segments of a task; the last split of a row may have fewer.
    segments: u32,
    splits: u32,
    warps: u32,
    stages: u32,
}

impl TaskSplit {
    /// With the shortest longest work of a warp, where a task costs half a segment more than its segments,
    /// and no more warps than that needs. `None` if there are too few warps.
    fn new(
        groups: u32,
        segments: u32,
        (max_warps, max_stages): (u32, u32),
        max_splits: u32,
    ) -> Option<TaskSplit> {
        if max_warps < MIN_WARPS {
            return None;
        }
        let tasks = |each: u32| groups * segments.div_ceil(each);
        let rounds = |each: u32| tasks(each).div_ceil(max_warps);
        let each = (1..=segments)
            .rev()
            .filter(|&each| segments.div_ceil(each) <= max_splits)
            .min_by_key(|&each| u64::from(rounds(each)) * u64::from(2 * each + 1))?;
        let splits = segments.div_ceil(each);
        Some(TaskSplit {
            segments: each,
            splits,
            warps: tasks(each).div_ceil(rounds(each)),
            stages: max_stages.min(rounds(each) * each),
        })
    }
}

#[cfg(test)]
mod tests {
    use fulmen_core::{GateActivation, WeightArg};

    use super::*;

    const H200: Caps =
        Caps { capability: 90, multiprocessors: 132, shared_bytes: 227 << 10, l2_bytes: 50 << 20 };

    fn matmul(dtype: DType, rows: u32) -> Matmul {
        let weight = WeightArg { ptr: 4096, dtype, rows };
        Matmul { weight, out: 1 << 20, bias: 0, residual: 0 }
    }

    fn config(m: u32, k: u32, dtype: DType, rows: &[u32]) -> Option<FloatConfig> {
        let matmuls: Vec<Matmul> = rows.iter().map(|&rows| matmul(dtype, rows)).collect();
        let group = LaunchGroup {
            matmuls: &matmuls,
            first_format: rows.len(),
            gate_up: false,
            activation: GateActivation::Silu,
        };
        FloatConfig::new(H200, m, k, &group)
    }

    #[test]
    fn work_is_divided_evenly_among_as_few_warps_as_possible() {
        // Groups of a block and segments of a row; segments and splits of a task, warps.
        let table = [
            // Qwen3-4B in f16: QKV, output projection, gate and up, down, LM head.
            ((12, 5), (5, 1, 12)),
            ((5, 8), (4, 2, 10)),
            ((38, 5), (5, 1, 13)),
            ((5, 19), (4, 5, 13)),
            ((288, 5), (5, 1, 14)),
            // One row and one segment, and one row that all warps share.
            ((1, 1), (1, 1, 1)),
            ((1, 120), (9, 14, 14)),
        ];
        for ((groups, segments), expected) in table {
            let split = TaskSplit::new(groups, segments, (WARPS, RING_STAGES), 100).unwrap();
            assert_eq!((split.segments, split.splits, split.warps), expected, "{groups} {segments}");
            assert!(split.segments * split.splits >= segments);
            assert!((split.splits - 1) * split.segments < segments, "every split has segments");
        }
        assert_eq!(TaskSplit::new(5, 8, (MIN_WARPS - 1, 2), 100), None);
        assert_eq!(TaskSplit::new(1, 120, (WARPS, 2), 1).unwrap().splits, 1);
    }

    #[test]
    fn every_row_has_a_block_and_every_block_fits() {
        let shapes: [(u32, &[u32]); 7] = [
            (2560, &[4096, 1024, 1024]),
            (4096, &[2560]),
            (9728, &[2560]),
            (2560, &[151_936]),
            (8, &[1]),
            (576, &[576, 192, 192]),
            (1000, &[65, 5]),
        ];
        for (k, rows) in shapes {
            for m in 1..=MAX_BLOCK_ROWS {
                for dtype in [DType::F16, DType::BF16, DType::F32] {
                    let Some(config) = config(m, k, dtype, rows) else {
                        assert!(k == 9728 && m == 4, "{k} columns fit {m} times");
                        continue;
                    };
                    let args = &config.args;
                    assert!(config.shared + STATIC_BYTES <= H200.shared_bytes, "{config:?}");
                    assert!(args.x_pitch >= k && args.x_pitch.is_multiple_of(128), "{config:?}");
                    for (weight, &rows) in args.weights.iter().zip(rows) {
                        assert!(weight.rows_per_block * config.blocks >= rows, "{config:?}");
                    }
                    let last = args.weights[rows.len() - 1];
                    let groups = last.first_group + last.rows_per_block.div_ceil(GROUP_ROWS);
                    assert_eq!(args.groups, groups, "{config:?}");
                }
            }
        }
        assert!(config(1, 200 << 10, DType::F16, &[64]).is_none(), "a row that is too long");
    }

    #[test]
    fn rows_must_be_whole_vectors() {
        let input = MatmulInput { x: 0, norm: None, m: 1, k: 0 };
        for (dtype, k, expected) in [
            (DType::F16, 8, true),
            (DType::F16, 12, false),
            (DType::BF16, 1000, true),
            (DType::F32, 4, true),
            (DType::F32, 6, false),
            (DType::Q8_0, 32, false),
        ] {
            assert_eq!(takes(&MatmulInput { k, ..input }, &[matmul(dtype, 3)]), expected, "{dtype:?} {k}");
        }
        let unaligned =
            Matmul { weight: WeightArg { ptr: 8, dtype: DType::F16, rows: 1 }, ..matmul(DType::F16, 1) };
        assert!(!takes(&MatmulInput { k: 8, ..input }, &[unaligned]));
        assert!(!takes(&MatmulInput { k: 8, m: MAX_ROWS + 1, ..input }, &[matmul(DType::F16, 3)]));
    }
}
