//! Launches of the int8 GEMM: 2 to 8 rows of activations with block-quantized weights (`gemm_q8.cu`, which
//! explains the kernel).
//!
//! How a launch is configured:
//!
//! - Teams: half as many warps as the GEMV of one row gives lanes to a row of the weights, so that sums have
//!   the GEMV's order and a row of activations gets the same bits as alone.
//! - Grid: one block per SM at most, each with the same number of tasks of 32 rows (16 of gate and of up);
//!   gate-up that forwards q8 rows has an even number. A norm's result is stored by blocks without tasks
//!   where there are SMs for them.
//! - Stages: segments of 1024 columns, or of 128 for each warp of the team if that is more; up to
//!   [`MAX_STAGES`] that fit [`MAX_RING_BYTES`].

use fulmen_core::{ActivationForm, BackendError, DType};

use super::q8_rows::MAX_ROWS;
use super::small_m::{LaunchGroup, MAX_WEIGHTS, MatmulInput};
use super::{Launched, gemv, q8_rows};
use crate::device::Caps;
use crate::forward::Forwarding;
use crate::l2_prefetch::L2Prefetch;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

const MAX_WARPS: u32 = 16;
const MAX_TEAMS: u32 = 4;
const MAX_STAGES: u32 = 4;
/// Rows of weights of a task.
const TASK_ROWS: u32 = 32;
/// Rows of a block that can be quantized for the next kernel.
const MAX_Q8_RESULTS: u32 = 256;

kernel_args! {
    file: "gemm_q8.cu";
    constants: [MAX_WARPS, MAX_TEAMS, MAX_STAGES, MAX_WEIGHTS, MAX_ROWS, TASK_ROWS, MAX_Q8_RESULTS];

    #[derive(Debug, Default)]
    struct GemmQ8Weight {
        data: DevicePtr,
        out: DevicePtr,
        bias: DevicePtr,
        residual: DevicePtr,
        rows: u32,
        row_bytes: u32,
        first_task: u32,
        unused: u32,
    }

    #[derive(Debug)]
    struct GemmQ8Args {
        x: DevicePtr,
        x_q8: DevicePtr,
        out_q8: DevicePtr,
        gamma: DevicePtr,
        normed: DevicePtr,
        epsilon: f32,
        inverse_k: f32,
        k: u32,
        m: u32,
        x_rows: u32,
        first_format_weights: u32,
        n_weights: u32,
        tasks: u32,
        tasks_per_block: u32,
        team_shift: u32,
        segment_halves: u32,
        segments: u32,
        stages: u32,
        stage_bytes: u32,
        pitch: u32,
        teams: u32,
        weights: [GemmQ8Weight; MAX_WEIGHTS],
        prefetch: L2Prefetch,
    }
}

/// Upper bounds of static shared memory: results that are quantized, and the rest.
const RESULT_BYTES: u32 = MAX_ROWS * MAX_Q8_RESULTS * 4;
const STATIC_BYTES: u32 = 1024;

/// Bytes that a warp's sums take in a stage at the end of a task.
const WARP_SUM_BYTES: u32 = 2 * MAX_ROWS * (TASK_ROWS + 4) * 4;

/// The most bytes of all rings: more does not help to cover the latency of memory.
const MAX_RING_BYTES: u32 = 176 << 10;

/// Halves of 128 columns in a stage, unless the team has more warps.
const SEGMENT_HALVES: u32 = 8;

/// Warps of a block that quantizes its activations, at least.
const QUANTIZING_WARPS: u32 = 12;

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

/// Whether there is a configuration for each group.
pub(super) fn takes(caps: Caps, input: &MatmulInput, groups: &[LaunchGroup<'_>]) -> bool {
    configs(caps, input, groups).is_some()
}

fn configs(caps: Caps, input: &MatmulInput, groups: &[LaunchGroup<'_>]) -> Option<Vec<GemmQ8Config>> {
    let rows = (2..=MAX_ROWS).contains(&input.m);
    if !(rows && caps.int8_rows && caps.has_clusters()) {
        return None;
    }
    groups.iter().map(|group| GemmQ8Config::new(caps, input, group)).collect()
}

/// The q8 rows of the input, if there is no norm to compute.
pub(super) fn accepted_forms(input: &MatmulInput) -> Vec<ActivationForm> {
    let accepts = input.norm.is_none() && q8_rows::can_forward(input.m, input.k);
    if accepts { vec![q8_rows::form(input.x, input.m, input.k)] } else { Vec::new() }
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

/// A launch, but for what only its turn in the call decides.
#[derive(Debug)]
struct GemmQ8Config {
    entry: String,
    blocks: u32,
    /// Blocks without tasks, which store the result of a norm.
    extra_blocks: u32,
    warps: u32,
    forwards_q8: bool,
    shared: u32,
    args: GemmQ8Args,
}

impl GemmQ8Config {
    /// The form in which the result may be forwarded.
    fn forwarded_form(&self) -> Option<ActivationForm> {
        let GemmQ8Weight { out, rows, .. } = self.args.weights[0];
        self.forwards_q8.then(|| q8_rows::form(out, self.args.m, rows))
    }

    fn new(caps: Caps, input: &MatmulInput, group: &LaunchGroup<'_>) -> Option<GemmQ8Config> {
        let (matmuls, gate_up, sms) = (group.matmuls, group.gate_up, caps.multiprocessors);
        let task_rows = if gate_up { TASK_ROWS / 2 } else { TASK_ROWS };
        let mut weights = [GemmQ8Weight::default(); MAX_WEIGHTS];
        let mut tasks = 0;
        for (to, matmul) in weights.iter_mut().zip(matmuls) {
            let aligned = matches!(matmul.weight.dtype, DType::Q4_K | DType::Q5_K);
            if aligned && !matmul.weight.ptr.is_multiple_of(16) {
                return None;
            }
            *to = GemmQ8Weight {
                data: matmul.weight.ptr,
                out: matmul.out,
                bias: matmul.bias,
                residual: matmul.residual,
                rows: matmul.weight.rows,
                row_bytes: matmul.row_bytes(input.k)?,
                first_task: tasks,
                unused: 0,
            };
            tasks += if gate_up && tasks > 0 { 0 } else { matmul.weight.rows.div_ceil(task_rows) };
        }
        let x_bytes = u32::try_from(q8_rows::bytes(input.m, input.k)).ok()?;
        let static_bytes = STATIC_BYTES + if gate_up { RESULT_BYTES } else { 0 };
        let ring_bytes = caps.shared_bytes.checked_sub(static_bytes + x_bytes)?.min(MAX_RING_BYTES);
        let tasks_per_block = tasks.div_ceil(sms);
        let q8_tasks = tasks_per_block.next_multiple_of(2);
        let forwards_q8 = gate_up
            && q8_rows::can_forward(input.m, matmuls[0].weight.rows)
            && q8_tasks * task_rows <= MAX_Q8_RESULTS;
        let tasks_per_block = if forwards_q8 { q8_tasks } else { tasks_per_block };
        let team_warps = gemv::lanes_per_row(caps, input.k, group)? / 2;
        let ring = RingConfig::new(input.k, group, team_warps, tasks_per_block, ring_bytes)?;
        let blocks = tasks.div_ceil(tasks_per_block);
        let args = GemmQ8Args {
            x: input.x,
            x_q8: 0,
            out_q8: 0,
            gamma: 0,
            normed: 0,
            epsilon: 0.0,
            inverse_k: 1.0 / input.k as f32,
            k: input.k,
            m: input.m,
            x_rows: q8_rows::padded(input.m),
            first_format_weights: group.first_format as u32,
            n_weights: matmuls.len() as u32,
            tasks,
            tasks_per_block,
            team_shift: team_warps.trailing_zeros(),
            segment_halves: ring.segment_halves,
            segments: ring.segments,
            stages: ring.stages,
            stage_bytes: ring.stage_bytes,
            pitch: ring.pitch,
            teams: ring.teams,
            weights,
            prefetch: L2Prefetch::default(),
        };
        Some(GemmQ8Config {
            entry: format!("gemm_q8_{}", group.name()),
            blocks,
            extra_blocks: (sms - blocks).min(input.m),
            warps: ring.teams * team_warps,
            forwards_q8,
            // Loads of unaligned words may go beyond the last row.
            shared: x_bytes + ring.teams * ring.stages * ring.stage_bytes + 16,
            args,
        })
    }
}

/// The rings of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingConfig {
    teams: u32,
    /// Halves of 128 columns in a stage.
    segment_halves: u32,
    /// Stages that a task takes.
    segments: u32,
    stages: u32,
    stage_bytes: u32,
    /// Bytes from one row of a stage to the next.
    pitch: u32,
}

impl RingConfig {
    /// As many teams as share the tasks evenly, with two stages each; fewer teams if that does not fit, then
    /// shorter segments, then one stage.
    fn new(
        k: u32,
        group: &LaunchGroup<'_>,
        team_warps: u32,
        tasks_per_block: u32,
        ring_bytes: u32,
    ) -> Option<RingConfig> {
        let most = (MAX_WARPS / team_warps).min(MAX_TEAMS).min(tasks_per_block);
        let rounds = tasks_per_block.div_ceil(most);
        let halves = k.div_ceil(q8_rows::Q8_ROWS_HALF).next_multiple_of(team_warps);
        let config = |least: u32, segment: u32, teams: u32| {
            let segment_halves = segment.min(halves);
            let (pitch, stage_bytes) = RingConfig::stage(group, team_warps, segment_halves);
            let segments = halves.div_ceil(segment_halves);
            let loads = tasks_per_block.div_ceil(teams) * segments;
            let stages = (ring_bytes / (teams * stage_bytes)).min(MAX_STAGES).min(loads);
            let config = RingConfig { teams, segment_halves, segments, stages, stage_bytes, pitch };
            (stages >= least.min(loads)).then_some(config)
        };
        [2, 1].into_iter().find_map(|least| {
            [SEGMENT_HALVES.max(team_warps), team_warps].into_iter().find_map(|segment| {
                (1..=tasks_per_block.div_ceil(rounds)).rev().find_map(|teams| config(least, segment, teams))
            })
        })
    }

    /// Pitch and bytes of a stage.
    fn stage(group: &LaunchGroup<'_>, team_warps: u32, segment_halves: u32) -> (u32, u32) {
        let chunk_bytes = |dtype: DType| dtype.bytes(256).unwrap_or(0) as u32;
        let chunk = group.matmuls.iter().map(|matmul| chunk_bytes(matmul.weight.dtype)).max().unwrap_or(0);
        // The 16-byte chunks that cover a row, and an odd number of them, so that rows lie in other banks.
        let pitch = ((chunk * segment_halves / 2 + 15).div_ceil(16) | 1) * 16;
        let bytes = (TASK_ROWS * pitch).max(team_warps * WARP_SUM_BYTES);
        (pitch, bytes.next_multiple_of(128))
    }
}

fn launch(
    queue: &mut Queue,
    input: &MatmulInput,
    configs: &[GemmQ8Config],
    forwarding: &Forwarding<'_>,
) -> Result<usize, BackendError> {
    let forwarded = forwarding.input(&q8_rows::form(input.x, input.m, input.k));
    for (index, config) in configs.iter().enumerate() {
        let mut args = config.args;
        let mut blocks = config.blocks;
        if let (Some(norm), 0) = (input.norm, index) {
            args.x = norm.input;
            args.gamma = norm.gamma;
            args.normed = norm.output;
            args.epsilon = norm.epsilon;
            blocks += config.extra_blocks;
        }
        args.x_q8 = forwarded.unwrap_or(0);
        args.out_q8 = config.forwarded_form().and_then(|form| forwarding.output(&form)).unwrap_or(0);
        args.prefetch = forwarding.prefetch.filter(|_| index == 0).unwrap_or_default();
        let warps = if forwarded.is_some() { config.warps } else { config.warps.max(QUANTIZING_WARPS) };
        let launch = Launch::new("gemm_q8", &config.entry, blocks, 32 * warps).shared(config.shared);
        queue.launch(&launch, &args)?;
    }
    Ok(configs.len())
}

#[cfg(test)]
mod tests {
    use fulmen_core::WeightArg;

    use super::super::small_m::Matmul;
    use super::*;

    const H200: Caps = Caps {
        capability: 90,
        multiprocessors: 132,
        shared_bytes: 232_448,
        l2_bytes: 60 << 20,
        int8_rows: true,
    };

    fn config(m: u32, k: u32, weights: &[(DType, u32)], gate_up: bool) -> Option<GemmQ8Config> {
        let matmul = |&(dtype, rows): &(DType, u32)| Matmul {
            weight: WeightArg { ptr: 4096, dtype, rows },
            out: 1 << 20,
            bias: 0,
            residual: 0,
        };
        let matmuls: Vec<Matmul> = weights.iter().map(matmul).collect();
        let first_format = weights.iter().filter(|weight| weight.0 == weights[0].0).count();
        let input = MatmulInput { x: 4096, norm: None, m, k };
        GemmQ8Config::new(H200, &input, &LaunchGroup { matmuls: &matmuls, first_format, gate_up })
    }

    #[test]
    fn every_row_has_a_task_and_every_block_fits() {
        use DType::{Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};
        let shapes: [(u32, &[u32], bool); 8] = [
            (2560, &[4096, 1024, 1024], false),
            (4096, &[2560], false),
            (2560, &[9728, 9728], true),
            (9728, &[2560], false),
            (2560, &[151_936], false),
            (12_288, &[4096], false),
            (256, &[1], false),
            (768, &[67, 67], true),
        ];
        for (k, rows, gate_up) in shapes {
            for dtype in [Q4_0, Q4_K, Q5_K, Q6_K, Q8_0] {
                for m in 2..=MAX_ROWS {
                    let weights: Vec<_> = rows.iter().map(|&rows| (dtype, rows)).collect();
                    let config = config(m, k, &weights, gate_up).unwrap();
                    let (args, task_rows) = (&config.args, if gate_up { 16 } else { 32 });
                    let tasks: u32 = rows[..if gate_up { 1 } else { rows.len() }]
                        .iter()
                        .map(|n| n.div_ceil(task_rows))
                        .sum();
                    assert_eq!(args.tasks, tasks, "{config:?}");
                    assert!(
                        config.blocks <= 132 && config.blocks * args.tasks_per_block >= tasks,
                        "{config:?}"
                    );
                    let team = 1 << args.team_shift;
                    assert!(config.warps == args.teams * team && config.warps <= MAX_WARPS, "{config:?}");
                    assert!((1..=MAX_STAGES).contains(&args.stages), "{config:?}");
                    assert!(args.segment_halves.is_multiple_of(team), "{config:?}");
                    assert!(args.segments * args.segment_halves * 128 >= k, "{config:?}");
                    assert!(args.stage_bytes >= (32 * args.pitch).max(team * WARP_SUM_BYTES), "{config:?}");
                    assert_eq!(args.pitch % 32, 16, "{config:?}");
                    let fixed = STATIC_BYTES + if gate_up { RESULT_BYTES } else { 0 };
                    assert!(config.shared + fixed <= H200.shared_bytes, "{config:?}");
                    assert!(!config.forwards_q8 || args.tasks_per_block.is_multiple_of(2), "{config:?}");
                }
            }
        }
    }

    #[test]
    fn teams_follow_the_lanes_of_the_gemv() {
        use DType::{Q4_K, Q6_K};
        // Columns, weights and whether it is gate-up; warps of a team, teams, tasks of a block, blocks.
        type Case = (u32, &'static [(DType, u32)], bool, [u32; 4]);
        let table: &[Case] = &[
            (2560, &[(Q4_K, 4096), (Q4_K, 1024), (Q6_K, 1024)], false, [4, 2, 2, 96]),
            (4096, &[(Q4_K, 2560)], false, [16, 1, 1, 80]),
            (2560, &[(Q4_K, 9728), (Q4_K, 9728)], true, [4, 3, 6, 102]),
            (9728, &[(Q6_K, 2560)], false, [16, 1, 1, 80]),
            (2560, &[(Q6_K, 151_936)], false, [4, 3, 36, 132]),
        ];
        for &(k, weights, gate_up, expected) in table {
            let GemmQ8Config { blocks, args, .. } = config(8, k, weights, gate_up).unwrap();
            let found = [1 << args.team_shift, args.teams, args.tasks_per_block, blocks];
            assert_eq!(found, expected, "{k} {weights:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_left_to_other_kernels() {
        let fits = |m, k| config(m, k, &[(DType::Q4_K, 5120)], false).is_some();
        assert!(fits(2, 25_600) && fits(4, 25_600) && !fits(8, 25_600));
        assert!(fits(8, 14_336));
        let unaligned = WeightArg { ptr: 4104, dtype: DType::Q4_K, rows: 64 };
        let matmuls = [Matmul { weight: unaligned, out: 0, bias: 0, residual: 0 }];
        let group = LaunchGroup { matmuls: &matmuls, first_format: 1, gate_up: false };
        let input = MatmulInput { x: 4096, norm: None, m: 2, k: 256 };
        assert!(GemmQ8Config::new(H200, &input, &group).is_none());
    }
}
