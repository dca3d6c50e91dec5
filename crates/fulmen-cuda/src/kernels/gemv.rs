//! Launches of the GEMV: one row of activations with block-quantized weights (`gemv.cu`).
//!
//! How a launch is configured:
//!
//! - Grid: one block per SM, each with the same number of rows of every weight matrix. Gate-up that forwards
//!   q8 activations has multiples of 32 rows per block, and as few blocks as do not lengthen the longest work
//!   of a warp.
//! - Lanes per row: as few of 8, 16 and 32 as let a warp load [`MAX_LOAD_BYTES`] at once, that is, as many
//!   rows per warp as possible; all 32 if an SM has fewer than [`FEW_ROWS`] rows. A row that is longer than
//!   that, or than a ring, is loaded in segments of [`SEGMENT_UNITS`] units.
//! - Warps: [`WARPS`]. With two weight formats they are divided so that the slower part is as fast as
//!   possible.
//! - Stages: two per warp, or one if a warp has only one load: the shared memory that is left lets a block of
//!   the next kernel start on the same SM. Also one if two do not fit.

use fulmen_core::{ActivationForm, BackendError};

use super::small_m::{LaunchGroup, MatmulInput};
use super::{Launched, q8_activations};
use crate::device::Caps;
use crate::forward::Forwarding;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

/// The most weight matrices of one launch: Q, K, V and the gate of gated attention.
pub(super) const MAX_WEIGHTS: usize = 4;

const WARPS: u32 = 12;
const MAX_STAGES: u32 = 2;
/// Rows of a block that can be quantized for the next kernel.
const MAX_Q8_RESULTS: u32 = 256;
/// Units of 64 columns in a stage, if a row takes several stages.
const SEGMENT_UNITS: u32 = 64;

kernel_args! {
    file: "gemv.cu";
    constants: [WARPS, MAX_STAGES, MAX_WEIGHTS, MAX_Q8_RESULTS, SEGMENT_UNITS];

    #[derive(Debug, Default)]
    struct GemvWeight {
        data: DevicePtr,
        out: DevicePtr,
        bias: DevicePtr,
        residual: DevicePtr,
        rows: u32,
        row_bytes: u32,
        rows_per_block: u32,
        unused: u32,
    }

    #[derive(Debug)]
    struct GemvArgs {
        x: DevicePtr,
        x_q8: DevicePtr,
        out_q8: DevicePtr,
        gamma: DevicePtr,
        normed: DevicePtr,
        epsilon: f32,
        inverse_k: f32,
        k: u32,
        n_weights: u32,
        first_format_weights: u32,
        first_format_warps: u32,
        stage_bytes: u32,
        segments: u32,
        stages: u32,
        gelu: u32,
        weights: [GemvWeight; MAX_WEIGHTS],
    }
}

/// Static shared memory, rounded up.
const STATIC_BYTES: u32 = 2048;

/// The most bytes that a warp loads at once: more is not faster and leaves less shared memory to the next
/// kernel.
const MAX_LOAD_BYTES: u32 = 8448;

/// With fewer rows per SM than this, all lanes of a warp work on one row.
const FEW_ROWS: u32 = 32;

/// Launches all groups, if there is a configuration for each. The first launch computes the norm, and the
/// others read it.
pub(super) fn run(
    queue: &mut Queue,
    input: &MatmulInput,
    groups: &[LaunchGroup<'_>],
    forwarding: &Forwarding<'_>,
) -> Option<Launched> {
    let configs = configs(queue.caps(), input, groups)?;
    Some(launch(queue, input, &configs, forwarding))
}

fn configs(caps: Caps, input: &MatmulInput, groups: &[LaunchGroup<'_>]) -> Option<Vec<GemvConfig>> {
    groups.iter().map(|group| GemvConfig::new(caps, input, group)).collect()
}

/// The q8 activations of the input, if there is a kernel that reads them and no norm to compute.
pub(super) fn accepted_forms(
    caps: Caps,
    input: &MatmulInput,
    groups: &[LaunchGroup<'_>],
) -> Vec<ActivationForm> {
    let configs = configs(caps, input, groups).unwrap_or_default();
    let accepts = input.norm.is_none() && configs.iter().any(|config| config.takes_q8);
    if accepts { vec![q8_activations::form(input.x, input.k)] } else { Vec::new() }
}

/// Whether gate-up can write its result in this form.
pub(super) fn forwards(
    caps: Caps,
    input: &MatmulInput,
    groups: &[LaunchGroup<'_>],
    activation: &ActivationForm,
) -> bool {
    let configs = configs(caps, input, groups).unwrap_or_default();
    configs.iter().any(|config| config.forwarded_form() == Some(*activation))
}

fn stage_config(caps: Caps, k: u32, group: &LaunchGroup<'_>) -> Option<StageConfig> {
    let x_bytes = u32::try_from(q8_activations::bytes(k)).ok()?;
    let ring_bytes = caps.shared_bytes.checked_sub(STATIC_BYTES + x_bytes)?;
    StageConfig::new(caps.multiprocessors, k, group, ring_bytes)
}

/// A launch, but for what only its turn in the call decides.
#[derive(Debug)]
struct GemvConfig {
    /// The entry's name after `gemv_` or `gemv_q8_`.
    entry: String,
    /// Whether there is an entry for forwarded q8 activations: for one weight.
    takes_q8: bool,
    blocks: u32,
    /// Whether the result may be forwarded as q8 activations.
    forwards_q8: bool,
    shared: u32,
    args: GemvArgs,
}

impl GemvConfig {
    /// The form in which the result may be forwarded.
    fn forwarded_form(&self) -> Option<ActivationForm> {
        let GemvWeight { out, rows, .. } = self.args.weights[0];
        self.forwards_q8.then(|| q8_activations::form(out, rows))
    }

    fn new(caps: Caps, input: &MatmulInput, group: &LaunchGroup<'_>) -> Option<GemvConfig> {
        let (matmuls, gate_up, sms) = (group.matmuls, group.gate_up, caps.multiprocessors);
        let mut weights = [GemvWeight::default(); MAX_WEIGHTS];
        for (to, matmul) in weights.iter_mut().zip(matmuls) {
            *to = GemvWeight {
                data: matmul.weight.ptr,
                out: matmul.out,
                bias: matmul.bias,
                residual: matmul.residual,
                rows: matmul.weight.rows,
                row_bytes: matmul.row_bytes(input.k)?,
                ..GemvWeight::default()
            };
        }
        let x_bytes = u32::try_from(q8_activations::bytes(input.k)).ok()?;
        let StageConfig { lanes, stage_bytes, segments, max_stages } = stage_config(caps, input.k, group)?;

        // Gate and up are walked through together.
        let used = if gate_up { 1 } else { matmuls.len() };
        let task_rows = if gate_up { 16 / lanes } else { 32 / lanes };
        let partition = RowPartition::new(&weights[..used], group.first_format.min(used), task_rows, sms);
        let rows = matmuls[0].weight.rows;
        let q8_partition = (gate_up && q8_activations::can_forward(rows))
            .then(|| partition.for_q8_output(rows, task_rows))
            .flatten();
        let forwards_q8 = q8_partition.is_some();
        let partition = q8_partition.unwrap_or(partition);
        for (index, weight) in weights.iter_mut().take(matmuls.len()).enumerate() {
            weight.rows_per_block = partition.rows_per_block[index.min(used - 1)];
        }
        // No more stages than loads: a block of the next kernel may fit beside this one.
        let stages = max_stages.min(partition.tasks_per_warp * segments).max(1);
        // One more block without rows, if there is an SM for it, has time to store the norm.
        let full = (0..used).all(|i| partition.blocks * partition.rows_per_block[i] <= weights[i].rows);
        let extra_block = input.norm.is_some() && full && partition.blocks < sms;
        let multi = if matmuls.len() > 1 && !gate_up { "multi_" } else { "" };
        let args = GemvArgs {
            x: input.x,
            x_q8: 0,
            out_q8: 0,
            gamma: 0,
            normed: 0,
            epsilon: 0.0,
            inverse_k: 1.0 / input.k as f32,
            k: input.k,
            n_weights: matmuls.len() as u32,
            first_format_weights: group.first_format as u32,
            first_format_warps: partition.first_format_warps,
            stage_bytes,
            segments,
            stages,
            gelu: group.gelu(),
            weights,
        };
        Some(GemvConfig {
            entry: format!("{multi}{}_lanes{lanes}", group.name()),
            takes_q8: matmuls.len() == 1,
            blocks: partition.blocks + u32::from(extra_block),
            forwards_q8,
            shared: x_bytes + WARPS * stages * stage_bytes,
            args,
        })
    }
}

/// What a warp loads at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StageConfig {
    /// Lanes per row.
    lanes: u32,
    stage_bytes: u32,
    /// Stages that a row takes.
    segments: u32,
    /// Stages of a ring that fit.
    max_stages: u32,
}

impl StageConfig {
    /// The first of 8, 16 and 32 lanes per row for which a warp's load is not too large and the rings fit,
    /// with one stage if they do not fit with two.
    fn new(sms: u32, k: u32, group: &LaunchGroup<'_>, ring_bytes: u32) -> Option<StageConfig> {
        let rows = group.matmuls.iter().map(|matmul| matmul.weight.rows).sum::<u32>();
        let one_row = !group.gate_up && !group.two_formats();
        let all: &[u32] = if one_row { &[8, 16, 32] } else { &[8, 16] };
        let choices: &[u32] = if rows.div_ceil(sms) < FEW_ROWS && one_row { &[32] } else { all };
        (1..=MAX_STAGES).rev().find_map(|stages| {
            choices.iter().find_map(|&lanes| {
                let last = Some(&lanes) == all.last();
                let (row_bytes, segment_bytes) = StageConfig::load_bytes(k, group)?;
                let rows_bytes = (32 / lanes).checked_mul(row_bytes)?;
                let fits = |load_bytes: u32| {
                    let stage_bytes = StageConfig::stage_bytes(load_bytes, group.gate_up);
                    (WARPS * stages * stage_bytes <= ring_bytes).then_some(stage_bytes)
                };
                let whole = (rows_bytes <= MAX_LOAD_BYTES || last && lanes < 32)
                    .then(|| fits(rows_bytes))
                    .flatten()
                    .map(|stage_bytes| (stage_bytes, 1));
                let cut = || (lanes == 32).then(|| fits(segment_bytes)).flatten();
                let segments = k.div_ceil(64).div_ceil(SEGMENT_UNITS);
                let (stage_bytes, segments) = whole.or_else(|| Some((cut()?, segments)))?;
                Some(StageConfig { lanes, stage_bytes, segments, max_stages: stages })
            })
        })
    }

    /// The most bytes of a row, and of a segment of it.
    fn load_bytes(k: u32, group: &LaunchGroup<'_>) -> Option<(u32, u32)> {
        let (mut row_bytes, mut chunk_bytes) = (0, 0);
        for matmul in group.matmuls {
            row_bytes = row_bytes.max(matmul.row_bytes(k)?);
            chunk_bytes = chunk_bytes.max(matmul.weight.dtype.bytes(256).unwrap_or(0) as u32);
        }
        Some((row_bytes, SEGMENT_UNITS / 4 * chunk_bytes))
    }

    /// The 16-byte vectors that cover the rows of each weight.
    fn stage_bytes(load_bytes: u32, gate_up: bool) -> u32 {
        if gate_up {
            2 * (load_bytes / 2 + 30).next_multiple_of(128)
        } else {
            (load_bytes + 30).next_multiple_of(128)
        }
    }
}

/// How rows are divided among blocks, and tasks among warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowPartition {
    blocks: u32,
    /// Rows of each weight per block; the last blocks may have fewer.
    rows_per_block: [u32; MAX_WEIGHTS],
    /// Warps that work on the weights of the first format.
    first_format_warps: u32,
    /// Tasks of the warp that has the most.
    tasks_per_warp: u32,
}

impl RowPartition {
    /// The first `first_format` weights have the first format. A task is `task_rows` rows. There is a block
    /// for each SM, even if fewer would have the same longest work: the last one is idle then, and has time
    /// to store a norm.
    fn new(weights: &[GemvWeight], first_format: usize, task_rows: u32, blocks: u32) -> RowPartition {
        let (mut rows_per_block, mut tasks, mut row_bytes) = ([0; MAX_WEIGHTS], [0; 2], [0; 2]);
        for (index, weight) in weights.iter().enumerate() {
            rows_per_block[index] = weight.rows.div_ceil(blocks);
            let format = usize::from(index >= first_format);
            tasks[format] += rows_per_block[index].div_ceil(task_rows);
            row_bytes[format] = u64::from(weight.row_bytes);
        }
        let per_warp = |tasks: u32, warps: u32| tasks.div_ceil(warps.max(1));
        let longest = |warps: u32| {
            let [first, second] = [(tasks[0], warps, row_bytes[0]), (tasks[1], WARPS - warps, row_bytes[1])]
                .map(|(tasks, warps, bytes)| u64::from(per_warp(tasks, warps)) * bytes);
            first.max(second)
        };
        let choices = if tasks[1] > 0 { 1..=WARPS - 1 } else { WARPS..=WARPS };
        let first_format_warps = choices.min_by_key(|&warps| longest(warps)).unwrap_or(WARPS);
        let tasks_per_warp =
            per_warp(tasks[0], first_format_warps).max(per_warp(tasks[1], WARPS - first_format_warps));
        RowPartition { blocks, rows_per_block, first_format_warps, tasks_per_warp }
    }

    /// With multiples of 32 rows per block, which can be quantized to q8, if the longest work grows by no
    /// more than a quarter. Uses as few blocks as have the same longest work: the down projection, which
    /// needs the shared memory of a whole SM, starts on the others.
    fn for_q8_output(&self, rows: u32, task_rows: u32) -> Option<RowPartition> {
        let tasks = |each: u32| each.div_ceil(task_rows).div_ceil(WARPS);
        let least = rows.div_ceil(self.blocks).next_multiple_of(32);
        let each =
            (least..=MAX_Q8_RESULTS).step_by(32).take_while(|&each| tasks(each) == tasks(least)).last()?;
        let (blocks, tasks_per_warp) = (rows.div_ceil(each), tasks(each));
        let partition = RowPartition {
            blocks,
            rows_per_block: [each, 0, 0, 0],
            first_format_warps: WARPS,
            tasks_per_warp,
        };
        (tasks_per_warp <= self.tasks_per_warp + self.tasks_per_warp / 4).then_some(partition)
    }
}

fn launch(
    queue: &mut Queue,
    input: &MatmulInput,
    configs: &[GemvConfig],
    forwarding: &Forwarding<'_>,
) -> Result<usize, BackendError> {
    let forwarded = forwarding.input(&q8_activations::form(input.x, input.k));
    for (index, config) in configs.iter().enumerate() {
        let mut args = config.args;
        if let (Some(norm), 0) = (input.norm, index) {
            args.x = norm.input;
            args.gamma = norm.gamma;
            args.normed = norm.output;
            args.epsilon = norm.epsilon;
        }
        let x_q8 = forwarded.filter(|_| config.takes_q8);
        args.x_q8 = x_q8.unwrap_or(0);
        args.out_q8 = config.forwarded_form().and_then(|form| forwarding.output(&form)).unwrap_or(0);
        let entry = format!("gemv_{}{}", if x_q8.is_some() { "q8_" } else { "" }, config.entry);
        let launch = Launch::new("gemv", &entry, config.blocks, 32 * WARPS).shared(config.shared);
        queue.launch(&launch, &args)?;
    }
    Ok(configs.len())
}

#[cfg(test)]
mod tests {
    use fulmen_core::{DType, GateActivation, WeightArg};

    use super::super::small_m::Matmul;
    use super::*;

    fn weights(rows: &[(u32, u32)]) -> Vec<GemvWeight> {
        rows.iter()
            .map(|&(rows, row_bytes)| GemvWeight { rows, row_bytes, ..GemvWeight::default() })
            .collect()
    }

    /// Lanes, stage bytes, segments and stages for `rows` rows of each type, with this much shared memory.
    fn stage(k: u32, types: &[DType], rows: u32, gate_up: bool, shared_kib: u32) -> Option<[u32; 4]> {
        let matmul = |&dtype: &DType| Matmul {
            weight: WeightArg { ptr: 4096, dtype, rows },
            out: 0,
            bias: 0,
            residual: 0,
        };
        let matmuls: Vec<Matmul> = types.iter().map(matmul).collect();
        let first_format = types.iter().filter(|&dtype| *dtype == types[0]).count();
        let group =
            LaunchGroup { matmuls: &matmuls, first_format, gate_up, activation: GateActivation::Silu };
        let ring_bytes = (shared_kib << 10) - STATIC_BYTES - q8_activations::bytes(k) as u32;
        let config = StageConfig::new(132, k, &group, ring_bytes)?;
        let StageConfig { lanes, stage_bytes, segments, max_stages } = config;
        assert!(WARPS * max_stages * stage_bytes <= ring_bytes, "{config:?}");
        Some([lanes, stage_bytes, segments, max_stages])
    }

    #[test]
    fn rings_fit_in_the_shared_memory_of_every_generation() {
        use DType::{Q4_K, Q6_K, Q8_0};
        // Columns, types, rows and whether it is gate-up; what fits 9.0, and 8.6.
        type Case = (u32, &'static [DType], u32, bool, Option<[u32; 4]>, Option<[u32; 4]>);
        let table: &[Case] = &[
            // Qwen3-4B: QKV in one format and in two, output projection, gate and up, down, LM head.
            (2560, &[Q4_K; 3], 2048, false, Some([8, 5888, 1, 2]), Some([16, 2944, 1, 2])),
            (2560, &[Q4_K, Q4_K, Q6_K], 2048, false, Some([8, 8448, 1, 2]), Some([16, 4352, 1, 1])),
            (4096, &[Q4_K], 2560, false, Some([32, 2432, 1, 2]), Some([32, 2432, 1, 2])),
            (2560, &[Q4_K; 2], 9728, true, Some([8, 5888, 1, 2]), Some([16, 3072, 1, 2])),
            (2560, &[Q6_K; 2], 9728, true, Some([8, 8704, 1, 2]), Some([16, 4352, 1, 1])),
            (9728, &[Q6_K], 2560, false, Some([32, 8064, 1, 2]), Some([32, 3456, 3, 2])),
            (9728, &[Q8_0], 2560, false, Some([32, 4480, 3, 2]), Some([32, 4480, 3, 1])),
            (2560, &[Q6_K], 151_936, false, Some([8, 8448, 1, 2]), Some([32, 2176, 1, 2])),
            // Gate and up of a large model: only one stage fits, or none.
            (8192, &[Q4_K; 2], 28_672, true, Some([16, 9472, 1, 1]), None),
        ];
        for &(k, types, rows, gate_up, hopper, ampere) in table {
            let found = [227, 99].map(|kib| stage(k, types, rows, gate_up, kib));
            assert_eq!(found, [hopper, ampere], "{k} {types:?} {rows}");
        }
    }

    #[test]
    fn every_row_has_a_block() {
        // Weights, how many have the first format, rows of a task; rows per block, and tasks per warp.
        type Case = (&'static [(u32, u32)], usize, u32, [u32; MAX_WEIGHTS], u32);
        let table: &[Case] = &[
            // Qwen3-4B: QKV in one format and in two, gate and up, output projection, LM head.
            (&[(4096, 1440), (1024, 1440), (1024, 1440)], 3, 4, [32, 8, 8, 0], 1),
            (&[(4096, 1440), (1024, 1440), (1024, 2100)], 2, 4, [32, 8, 8, 0], 1),
            (&[(9728, 1440)], 1, 2, [74, 0, 0, 0], 4),
            (&[(2560, 2304)], 1, 1, [20, 0, 0, 0], 2),
            (&[(151_936, 2100)], 1, 4, [1152, 0, 0, 0], 24),
            // Fewer rows than warps.
            (&[(5, 100)], 1, 1, [1, 0, 0, 0], 1),
        ];
        for &(rows, first, task_rows, each, tasks) in table {
            let partition = RowPartition::new(&weights(rows), first, task_rows, 132);
            assert_eq!((partition.rows_per_block, partition.tasks_per_warp), (each, tasks), "{rows:?}");
            let covered = |(weight, each): (&(u32, u32), u32)| each * partition.blocks >= weight.0;
            assert!(rows.iter().zip(each).all(covered), "{rows:?}");
        }
    }

    #[test]
    fn q8_is_forwarded_where_blocks_of_32_rows_are_not_much_slower() {
        // Rows; blocks, rows per block and tasks per warp.
        let table = [
            (9728, Some((102, 96, 4))),
            (12_288, Some((128, 96, 4))),
            (8192, Some((128, 64, 3))),
            (14_336, Some((112, 128, 6))),
            (2048, None),
            (4864, None),
        ];
        for (rows, expected) in table {
            let partition = RowPartition::new(&weights(&[(rows, 1440)]), 1, 2, 132).for_q8_output(rows, 2);
            let numbers = |p: RowPartition| (p.blocks, p.rows_per_block[0], p.tasks_per_warp);
            assert_eq!(partition.map(numbers), expected, "{rows}");
        }
    }

    #[test]
    fn warps_are_divided_between_two_formats_by_their_work() {
        let two_formats = weights(&[(4096, 1440), (1024, 1440), (1024, 2100)]);
        assert_eq!(RowPartition::new(&two_formats, 2, 4, 132).first_format_warps, 10);
    }
}
