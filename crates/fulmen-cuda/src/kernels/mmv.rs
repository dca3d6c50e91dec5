//! Products of one row with block-quantised weights.

use bytemuck::{Pod, Zeroable};
use fulmen_core::BackendError;

use super::Launched;
use super::few_rows::{Group, Input, MAX_PARTS};
use crate::device::Caps;
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
struct Part {
    weight: u64,
    out: u64,
    bias: u64,
    residual: u64,
    rows: u32,
    row_bytes: u32,
    each: u32,
    extra: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Args {
    x: u64,
    gamma: u64,
    normed: u64,
    epsilon: f32,
    k: u32,
    parts: u32,
    first_parts: u32,
    first_warps: u32,
    stage_bytes: u32,
    segments: u32,
    depth: u32,
    part: [Part; MAX_PARTS],
}

// As in `mmv.cu`.
const WARPS: u32 = 12;
const GROUP_BYTES: u32 = 768;
const SEGMENT: u32 = 64;

/// Stages of a warp's ring.
const DEPTH: u32 = 2;

/// Static shared memory, rounded up.
const STATIC_BYTES: u32 = 1024;

/// Bytes that a warp fetches at once, at most: more is not faster and takes room from the next kernel.
const FETCH_BYTES: u32 = 8448;

/// Multiprocessors have so few rows each that all lanes of a warp share one.
const FEW_ROWS: u32 = 32;

/// All launches, if there is a plan for each. The first computes the norm, and the others read it.
pub(super) fn run(queue: &mut Queue, input: &Input, groups: &[Group<'_>]) -> Option<Launched> {
    let plans: Option<Vec<_>> = groups.iter().map(|group| plan(queue.caps(), input, group)).collect();
    plans.map(|plans| launch(queue, input, &plans))
}

struct Plan {
    entry: String,
    shared: u32,
    args: Args,
}

fn plan(caps: Caps, input: &Input, group: &Group<'_>) -> Option<Plan> {
    let blocks = caps.multiprocessors;
    let (parts, mixed) = (group.parts, group.mixed());
    let mut args = Args {
        x: input.x,
        gamma: 0,
        normed: 0,
        epsilon: 0.0,
        k: input.k,
        parts: parts.len() as u32,
        first_parts: group.first as u32,
        first_warps: group.share(WARPS, input.k)?,
        stage_bytes: 0,
        segments: 1,
        depth: DEPTH,
        part: [Part::default(); MAX_PARTS],
    };
    for (to, part) in args.part.iter_mut().zip(parts) {
        let rows = part.weight.rows;
        *to = Part {
            weight: part.weight.ptr,
            out: part.out,
            bias: part.bias,
            residual: part.residual,
            rows,
            row_bytes: part.row_bytes(input.k)?,
            each: rows / blocks,
            extra: rows % blocks,
        };
    }
    let longest = args.part.iter().map(|part| part.row_bytes).max()?;
    let rows = parts.iter().map(|part| part.weight.rows).sum::<u32>().div_ceil(blocks);
    let x_bytes = input.k.div_ceil(512) * GROUP_BYTES;
    let room = caps.shared_bytes.checked_sub(STATIC_BYTES + x_bytes)?;
    // As many rows for a warp as it may fetch at once, or a part of one.
    let all: &[u32] = if group.pair || mixed { &[8, 16] } else { &[8, 16, 32] };
    let lanes: &[u32] = if rows < FEW_ROWS && !group.pair && !mixed { &[32] } else { all };
    let chunk = parts.iter().map(|part| part.weight.dtype.bytes(256).unwrap_or(0)).max()? as u32;
    let (lanes, stage, segments) = lanes.iter().find_map(|&lanes| {
        let mut fetched = (32 / lanes).checked_mul(longest)?;
        let mut segments = 1;
        if lanes == 32 && fetched > FETCH_BYTES {
            segments = input.k.div_ceil(64).div_ceil(SEGMENT);
            fetched = SEGMENT / 4 * chunk;
        }
        // Whole pieces around each weight's rows.
        let stage = if group.pair {
            2 * (fetched / 2 + 30).next_multiple_of(128)
        } else {
            (fetched + 30).next_multiple_of(128)
        };
        let last = Some(&lanes) == all.last();
        let fits = WARPS * DEPTH * stage <= room && (fetched <= FETCH_BYTES || last);
        fits.then_some((lanes, stage, segments))
    })?;
    args.stage_bytes = stage;
    args.segments = segments;
    let entry = format!("mmv_{}_l{lanes}", group.name());
    Some(Plan { entry, shared: x_bytes + WARPS * DEPTH * stage, args })
}

fn launch(queue: &mut Queue, input: &Input, plans: &[Plan]) -> Result<usize, BackendError> {
    let blocks = queue.caps().multiprocessors;
    for (index, plan) in plans.iter().enumerate() {
        let mut args = plan.args;
        if let (Some(norm), 0) = (input.norm, index) {
            args.x = norm.input;
            args.gamma = norm.gamma;
            args.normed = norm.output;
            args.epsilon = norm.epsilon;
        }
        let launch = Launch::new("mmv", &plan.entry, blocks, 32 * WARPS).shared(plan.shared);
        queue.launch(&launch, &args)?;
    }
    Ok(plans.len())
}
