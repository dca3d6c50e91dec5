//! Launches of the GEMV by expert id (`expert_gemv.cu`).
//!
//! How a launch is configured:
//!
//! - Blocks: about one per SM for one row, with the same number of rows of a weight each; with more rows as
//!   many as keep the rows of a block at a few tasks per warp. Gate-up that forwards q8 activations has
//!   multiples of 32 rows per block.
//! - Lanes per row: as few of 8, 16 (and 32 for down) as let a warp load [`MAX_LOAD_BYTES`] at once.
//! - Stages: two per warp, or one if a warp has only one task or two do not fit.

use fulmen_core::{
    ActivationForm, ExpertDownCall, ExpertGateUpCall, FormOperand, MAX_EXPERTS_PER_ROW, WeightArg,
};

use super::experts::GatedActivation;
use super::small_m::is_dp4a_format;
use super::{Launched, q8_activations, type_name, wide};
use crate::device::Caps;
use crate::forward::{FormKind, Forwarding};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

const WARPS: u32 = 12;
const MAX_STAGES: u32 = 2;
/// Results of a block of the down projection: rows times experts.
const MAX_RESULTS: u32 = 1024;
/// Rows of a block that can be quantized for the next kernel.
const MAX_Q8_ROWS: u32 = 128;

// A thread of a block checks each id, and a thread finishes each row.
const _: () = assert!(MAX_EXPERTS_PER_ROW <= 32 * WARPS && MAX_ROWS <= 32 * WARPS && MAX_ROWS <= MAX_Q8_ROWS);

kernel_args! {
    file: "expert_gemv.cu";
    constants: [WARPS, MAX_STAGES, MAX_RESULTS, MAX_Q8_ROWS, MAX_EXPERTS_PER_ROW];

    #[derive(Debug)]
    struct ExpertGemvArgs {
        x: DevicePtr,
        x_q8: DevicePtr,
        out_q8: DevicePtr,
        ids: DevicePtr,
        weights: DevicePtr,
        w: DevicePtr,
        up: DevicePtr,
        bias: DevicePtr,
        up_bias: DevicePtr,
        residual: DevicePtr,
        out: DevicePtr,
        fault: DevicePtr,
        expert_bytes: u64,
        activation: GatedActivation,
        n: u32,
        k: u32,
        top_k: u32,
        n_experts: u32,
        row_bytes: u32,
        rows_per_block: u32,
        stage_bytes: u32,
        stages: u32,
    }
}

/// Static shared memory, rounded up.
const STATIC_BYTES: u32 = 5120;

/// The most bytes that a warp loads at once, if fewer lanes per row would load more.
const MAX_LOAD_BYTES: u32 = 8448;

/// Rows of a weight that a block has at most.
const MAX_ROWS: u32 = 128;

/// Which of the two kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    GateUp,
    Down,
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GemvConfig {
    lanes: u32,
    rows_per_block: u32,
    stage_bytes: u32,
    stages: u32,
    /// Dynamic shared memory.
    shared: u32,
}

/// Sizes that a configuration depends on.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Rows of an expert's weight, and their bytes.
    n: u32,
    row_bytes: u32,
    /// Bytes of the q8 activations of a block.
    x_bytes: u32,
    /// Blocks in the second dimension: pairs or rows.
    grid_rows: u32,
    /// Experts whose results a block adds up.
    summed: u32,
    /// What the rows of a block are a multiple of: 32 for q8 output, or 1.
    multiple: u32,
}

impl GemvConfig {
    fn new(sms: u32, shared_bytes: u32, kind: Kind, sizes: Sizes) -> Option<GemvConfig> {
        let Sizes { n, row_bytes, x_bytes, grid_rows, summed, multiple } = sizes;
        let ring_bytes = shared_bytes.checked_sub(STATIC_BYTES + x_bytes)?;
        let all: &[u32] = if kind == Kind::GateUp { &[8, 16] } else { &[8, 16, 32] };
        (1..=MAX_STAGES).rev().find_map(|most_stages| {
            all.iter().find_map(|&lanes| {
                // A warp has 32 / lanes rows at a time; for gate-up half of them in either matrix.
                let (matrices, task_rows) =
                    if kind == Kind::GateUp { (2, 16 / lanes) } else { (1, 32 / lanes) };
                let task_bytes = task_rows.checked_mul(row_bytes)?;
                if matrices * task_bytes > MAX_LOAD_BYTES && Some(&lanes) != all.last() {
                    return None;
                }
                let stage_bytes = matrices * (task_bytes + 30).next_multiple_of(128);
                let even = (u64::from(n) * u64::from(grid_rows)).div_ceil(sms.into());
                // Both are powers of two.
                let multiple = task_rows.max(multiple);
                let most_rows = MAX_ROWS.min(MAX_RESULTS / summed).max(multiple);
                let rows_per_block = (even.min(most_rows.into()) as u32).next_multiple_of(multiple);
                let rows_per_block = rows_per_block.min(most_rows / multiple * multiple);
                let tasks = rows_per_block / task_rows * summed;
                let stages = most_stages.min(tasks.div_ceil(WARPS));
                let ring = WARPS.checked_mul(stages)?.checked_mul(stage_bytes)?;
                let shared = x_bytes + ring;
                (ring <= ring_bytes).then_some(GemvConfig {
                    lanes,
                    rows_per_block,
                    stage_bytes,
                    stages,
                    shared,
                })
            })
        })
    }
}

/// Bytes of a row, if there is a kernel for the type and the row.
fn row_bytes(weight: &WeightArg, k: u32) -> Option<u32> {
    let fits = is_dp4a_format(weight.dtype) && weight.ptr.is_multiple_of(16) && k.is_multiple_of(32);
    let bytes = weight.dtype.bytes(k as usize).ok().filter(|_| fits)?;
    u32::try_from(bytes).ok()
}

/// The activation of each of a row's experts as q8 activations, in the order of its slots: what gate-up
/// forwards to down at batch 1. It is bound to the ids: down may then read them before it waits.
pub(super) fn forwarded_form(row: u64, ids: u64, top: u32, k: u32) -> ActivationForm {
    let bytes = top as usize * q8_activations::bytes(k);
    let mut form = FormKind::ExpertQ8.of(row, [top, k], bytes, None);
    form.form.operand = Some(FormOperand { ptr: ids, bytes: top as usize * 4 });
    form
}

/// The form of a gate-up's input.
fn input_form(call: &ExpertGateUpCall) -> ActivationForm {
    q8_activations::form(call.input, call.k)
}

/// The form of its output, if the rows of an expert can be forwarded.
fn output_form(call: &ExpertGateUpCall) -> Option<ActivationForm> {
    let forwards = call.m == 1 && !call.batch_invariant && q8_activations::can_forward(call.n());
    forwards.then(|| forwarded_form(call.output, call.ids, call.top, call.n()))
}

/// A gate-up's configuration, with multiples of 32 rows per block where those can be forwarded.
fn gate_up_config(caps: Caps, call: &ExpertGateUpCall) -> Option<(u32, GemvConfig)> {
    let &ExpertGateUpCall { input, gate, up, m, k, top, .. } = call;
    let row_bytes = row_bytes(&gate, k)?;
    let both = gate.dtype == up.dtype && up.ptr.is_multiple_of(16) && wide(&[input]) == 1;
    let x_bytes = u32::try_from(q8_activations::bytes(k)).ok().filter(|_| both)?;
    let multiple = if output_form(call).is_some() { 32 } else { 1 };
    let sizes =
        Sizes { n: call.n(), row_bytes, x_bytes, grid_rows: m.checked_mul(top)?, summed: 1, multiple };
    Some((row_bytes, GemvConfig::new(caps.multiprocessors, caps.shared_bytes, Kind::GateUp, sizes)?))
}

fn down_config(caps: Caps, call: &ExpertDownCall) -> Option<(u32, GemvConfig)> {
    let &ExpertDownCall { input, down, m, k, top, .. } = call;
    let row_bytes = row_bytes(&down, k).filter(|_| wide(&[input]) == 1)?;
    let x_bytes = u32::try_from(q8_activations::bytes(k)).ok()?.checked_mul(top)?;
    let sizes = Sizes { n: call.n(), row_bytes, x_bytes, grid_rows: m, summed: top, multiple: 1 };
    Some((row_bytes, GemvConfig::new(caps.multiprocessors, caps.shared_bytes, Kind::Down, sizes)?))
}

/// The forms in which a gate-up reads its input.
pub(super) fn accepted_forms_of_gate_up(caps: Caps, call: &ExpertGateUpCall) -> Vec<ActivationForm> {
    let accepts = call.m == 1 && q8_activations::can_forward(call.k) && gate_up_config(caps, call).is_some();
    if accepts { vec![input_form(call)] } else { Vec::new() }
}

/// The forms in which a down reads its input.
pub(super) fn accepted_forms_of_down(caps: Caps, call: &ExpertDownCall) -> Vec<ActivationForm> {
    let accepts = call.m == 1 && q8_activations::can_forward(call.k) && down_config(caps, call).is_some();
    if accepts { vec![forwarded_form(call.input, call.ids, call.top, call.k)] } else { Vec::new() }
}

/// Whether a gate-up can write its result in this form.
pub(super) fn forwards(caps: Caps, call: &ExpertGateUpCall, activation: &ActivationForm) -> bool {
    output_form(call) == Some(*activation) && gate_up_config(caps, call).is_some()
}

/// `None` if there is no configuration.
pub(super) fn launch_gate_up(
    queue: &mut Queue,
    call: &ExpertGateUpCall,
    forwarding: &Forwarding<'_>,
) -> Option<Launched> {
    let &ExpertGateUpCall { input, ids, gate, up, output, m, k, top, n_experts, .. } = call;
    let (row_bytes, config) = gate_up_config(queue.caps(), call)?;
    let n = call.n();
    let args = ExpertGemvArgs {
        x: input,
        x_q8: forwarding.input(&input_form(call)).unwrap_or(0),
        out_q8: output_form(call).and_then(|form| forwarding.output(&form)).unwrap_or(0),
        ids,
        weights: 0,
        w: gate.ptr,
        up: up.ptr,
        bias: call.gate_bias.unwrap_or(0),
        up_bias: call.up_bias.unwrap_or(0),
        residual: 0,
        out: output,
        fault: queue.fault(),
        expert_bytes: u64::from(n) * u64::from(row_bytes),
        activation: call.activation.into(),
        n,
        k,
        top_k: top,
        n_experts,
        row_bytes,
        rows_per_block: config.rows_per_block,
        stage_bytes: config.stage_bytes,
        stages: config.stages,
    };
    let entry = format!("expert_gate_up_{}_lanes{}", type_name(gate.dtype), config.lanes);
    Some(launch(queue, &entry, &config, m.checked_mul(top)?, &args))
}

/// `None` if there is no configuration.
pub(super) fn launch_down(
    queue: &mut Queue,
    call: &ExpertDownCall,
    forwarding: &Forwarding<'_>,
) -> Option<Launched> {
    let &ExpertDownCall { input, ids, weights, down, output, m, k, top, n_experts, .. } = call;
    let (row_bytes, config) = down_config(queue.caps(), call)?;
    let n = call.n();
    let args = ExpertGemvArgs {
        x: input,
        x_q8: forwarding.input(&forwarded_form(input, ids, top, k)).unwrap_or(0),
        out_q8: 0,
        ids,
        weights,
        w: down.ptr,
        up: 0,
        bias: call.bias.unwrap_or(0),
        up_bias: 0,
        residual: call.residual.unwrap_or(0),
        out: output,
        fault: queue.fault(),
        expert_bytes: u64::from(n) * u64::from(row_bytes),
        activation: fulmen_core::GatedActivation::SwiGlu.into(),
        n,
        k,
        top_k: top,
        n_experts,
        row_bytes,
        rows_per_block: config.rows_per_block,
        stage_bytes: config.stage_bytes,
        stages: config.stages,
    };
    let entry = format!("expert_down_{}_lanes{}", type_name(down.dtype), config.lanes);
    Some(launch(queue, &entry, &config, m, &args))
}

fn launch(
    queue: &mut Queue,
    entry: &str,
    config: &GemvConfig,
    grid_rows: u32,
    args: &ExpertGemvArgs,
) -> Launched {
    let blocks = queue.blocks(entry, args.n.div_ceil(config.rows_per_block).into())?;
    let rows = queue.rows(entry, grid_rows.into())?;
    let launch = Launch::new("expert_gemv", entry, blocks, 32 * WARPS).rows(rows).shared(config.shared);
    queue.launch(&launch, args)?;
    Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(kind: Kind, sizes: Sizes) -> Option<[u32; 4]> {
        let config = GemvConfig::new(132, 227 << 10, kind, sizes)?;
        assert!(config.shared + STATIC_BYTES <= 227 << 10 && config.rows_per_block > 0, "{config:?}");
        assert!(config.rows_per_block * sizes.summed <= MAX_RESULTS || kind == Kind::GateUp, "{config:?}");
        Some([config.lanes, config.rows_per_block, config.stage_bytes, config.stages])
    }

    #[test]
    fn qwen3_30b_a3b_has_a_block_per_sm() {
        // Q4_K gate and up of 768 x 2048 at batch 1 and 16: 16 blocks for each of 8 pairs, 6 for each of 128.
        let gate_up = |pairs| Sizes {
            n: 768,
            row_bytes: 1152,
            x_bytes: 3072,
            grid_rows: pairs,
            summed: 1,
            multiple: 1,
        };
        assert_eq!(config(Kind::GateUp, gate_up(8)), Some([8, 48, 4864, 2]));
        // With q8 output 12 blocks for each of 8 pairs.
        assert_eq!(config(Kind::GateUp, Sizes { multiple: 32, ..gate_up(8) }), Some([8, 64, 4864, 2]));
        assert_eq!(config(Kind::GateUp, gate_up(128)), Some([8, 128, 4864, 2]));
        // Q6_K down of 2048 x 768: 128 blocks for one row.
        let down =
            |m| Sizes { n: 2048, row_bytes: 630, x_bytes: 8 * 1536, grid_rows: m, summed: 8, multiple: 1 };
        assert_eq!(config(Kind::Down, down(1)), Some([8, 16, 2560, 2]));
        assert_eq!(config(Kind::Down, down(16)), Some([8, 128, 2560, 2]));
    }

    #[test]
    fn gpt_oss_20b_has_a_configuration() {
        // MXFP4 gate, up and down of 2880 x 2880, four experts of 32.
        let gate_up = |pairs| Sizes {
            n: 2880,
            row_bytes: 1530,
            x_bytes: 4608,
            grid_rows: pairs,
            summed: 1,
            multiple: 1,
        };
        let down =
            |m| Sizes { n: 2880, row_bytes: 1530, x_bytes: 4 * 4608, grid_rows: m, summed: 4, multiple: 1 };
        for m in [1, 2, 16, 32] {
            assert!(config(Kind::GateUp, gate_up(4 * m)).is_some_and(|config| config[3] == 2));
            assert!(config(Kind::Down, down(m)).is_some_and(|config| config[3] == 2));
        }
    }

    #[test]
    fn odd_sizes_have_configurations() {
        for n in [1, 3, 67, 768, 4096] {
            for (grid_rows, summed) in [(1, 1), (1, 32), (32, 8), (256, 1)] {
                for row_bytes in [17, 18, 34, 630, 4608, 7616] {
                    let sizes = Sizes { n, row_bytes, x_bytes: 768 * summed, grid_rows, summed, multiple: 1 };
                    for kind in [Kind::GateUp, Kind::Down] {
                        assert!(config(kind, sizes).is_some(), "{kind:?} {sizes:?}");
                    }
                }
            }
        }
        // Rows that no ring holds.
        let long = Sizes { n: 64, row_bytes: 40_000, x_bytes: 30_000, grid_rows: 1, summed: 1, multiple: 1 };
        assert_eq!(config(Kind::GateUp, long), None);
    }
}
