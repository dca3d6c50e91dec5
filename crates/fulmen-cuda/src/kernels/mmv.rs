//! Products of one row with block-quantised weights.
//!
//! While a program is recorded, neighbouring calls become the items of one launch: [`Chain`] collects them, and the queue
//! launches what was collected before anything else. Otherwise each is a launch of its own, of the same kernel.

use bytemuck::{Pod, Zeroable};
use fulmen_core::DType;

use super::Launched;
use super::few_rows::{Group, Input, MAX_PARTS};
use crate::device::Caps;
use crate::error::CudaError;
use crate::queue::{Arg, Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
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
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct Item {
    x: u64,
    gamma: u64,
    normed: u64,
    epsilon: f32,
    k: u32,
    parts: u32,
    pair: u32,
    lanes: u32,
    segments: u32,
    format: [u32; MAX_PARTS],
    chunk: u32,
    part: [Part; MAX_PARTS],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct Args {
    arrived: u64,
    items: u32,
    stage_bytes: u32,
    depth: u32,
    x_bytes: u32,
    rehearsals: u32,
    unused: u32,
    item: [Item; MAX_ITEMS],
}

// As in `mmv.cu`.
const WARPS: u32 = 12;
const GROUP_BYTES: u32 = 768;
const SEGMENT: u32 = 64;
const MAX_ITEMS: usize = 8;
const MAX_DEPTH: u32 = 4;

/// Items that a chain rehearses: those that differ in their code.
const REHEARSALS: u32 = 3;

/// Bytes of a weight that a rehearsal reads.
const REHEARSED_BYTES: u64 = 512;

/// Stages of a warp's ring, at least.
const DEPTH: u32 = 2;

/// Static shared memory, rounded up.
const STATIC_BYTES: u32 = 1024;

/// Bytes that a warp fetches at once, at most, unless one row is longer.
const FETCH_BYTES: u32 = 8448;

/// Multiprocessors have so few rows each that all lanes of a warp share one.
const FEW_ROWS: u32 = 32;

/// An item and the shared memory that it needs.
#[derive(Clone, Copy, Debug)]
struct Plan {
    item: Item,
    x_bytes: u32,
    stage_bytes: u32,
}

/// Items of one launch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chain {
    plans: Vec<Plan>,
}

impl Chain {
    pub(crate) fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }

    /// Whether one more item may be launched with those that are there.
    fn takes(&self, caps: Caps, plan: &Plan) -> bool {
        let with = self.plans.iter().chain([plan]);
        self.plans.len() < MAX_ITEMS && depth(caps, with).is_some()
    }

    /// The launch, and its arguments.
    fn args(&self, caps: Caps, arrived: u64) -> Option<(u32, Args)> {
        let depth = depth(caps, self.plans.iter())?;
        let (x_bytes, stage_bytes) = room(self.plans.iter());
        let items = self.plans.len() as u32;
        let readable = |plan: &Plan| {
            let first = &plan.item.part[0];
            let bytes = u64::from(first.rows) * u64::from(first.row_bytes);
            first.weight.is_multiple_of(16) && bytes >= REHEARSED_BYTES
        };
        let rehearsals = if items > 1 && self.plans.iter().all(readable) { items.min(REHEARSALS) } else { 0 };
        let mut args = Args { arrived, items, stage_bytes, depth, x_bytes, rehearsals, ..Args::default() };
        for (to, plan) in args.item.iter_mut().zip(&self.plans) {
            *to = plan.item;
        }
        Some((x_bytes + WARPS * depth * stage_bytes, args))
    }

    /// Launches the items, and is empty then.
    pub(crate) fn launch(&mut self, queue: &mut Queue) -> Result<(), CudaError> {
        let arrived = queue.arrived()?;
        let caps = queue.caps();
        let Some((shared, args)) = self.args(caps, arrived) else { return Ok(()) };
        self.plans.clear();
        let launch = Launch::new("mmv", "mmv", caps.multiprocessors, 32 * WARPS).shared(shared);
        queue.launch_now(&launch, &[Arg::new(&args)])
    }
}

/// Shared memory for the longest x, and for the largest stage.
fn room<'a>(plans: impl Iterator<Item = &'a Plan>) -> (u32, u32) {
    plans.fold((0, 0), |(x, stage), plan| (x.max(plan.x_bytes), stage.max(plan.stage_bytes)))
}

/// The stages that rings have if all these items share them; none if there is no room for [`DEPTH`].
fn depth<'a>(caps: Caps, plans: impl Iterator<Item = &'a Plan>) -> Option<u32> {
    let (x, stage) = room(plans);
    let room = caps.shared_bytes.checked_sub(STATIC_BYTES + x)?;
    let depth = (room / WARPS).checked_div(stage)?.min(MAX_DEPTH);
    (depth >= DEPTH).then_some(depth)
}

/// All products, if there is a plan for each. The first computes the norm, and the others read it.
pub(super) fn run(queue: &mut Queue, input: &Input, groups: &[Group<'_>]) -> Option<Launched> {
    let plans: Option<Vec<_>> = groups.iter().map(|group| plan(queue.caps(), input, group)).collect();
    plans.map(|plans| launch(queue, input, plans))
}

fn plan(caps: Caps, input: &Input, group: &Group<'_>) -> Option<Plan> {
    let blocks = caps.multiprocessors;
    let parts = group.parts;
    let mut item = Item {
        x: input.x,
        k: input.k,
        parts: parts.len() as u32,
        pair: group.pair.into(),
        ..Item::default()
    };
    for (index, part) in parts.iter().enumerate() {
        let rows = part.weight.rows;
        item.format[index] = format(part.weight.dtype)?;
        item.part[index] = Part {
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
    let longest = item.part.iter().map(|part| part.row_bytes).max()?;
    let rows = parts.iter().map(|part| part.weight.rows).sum::<u32>().div_ceil(blocks);
    let x_bytes = input.k.div_ceil(512) * GROUP_BYTES;
    let chunk = parts.iter().map(|part| part.weight.dtype.bytes(256).unwrap_or(0)).max()? as u32;
    // As many rows for a warp as it may fetch at once, or a part of one.
    let (single, mixed) = (!group.pair && !group.mixed(), group.mixed());
    let lanes: &[u32] = match (group.pair, mixed) {
        (false, false) if rows < FEW_ROWS => &[32],
        (false, false) => &[8, 16, 32],
        _ => &[8, 16],
    };
    for &lanes in lanes {
        let mut fetched = (32 / lanes).checked_mul(longest)?;
        let mut segments = 1;
        if lanes == 32 && fetched > FETCH_BYTES {
            segments = input.k.div_ceil(64).div_ceil(SEGMENT);
            fetched = SEGMENT / 4 * chunk;
        }
        // Whole pieces around each weight's rows.
        let stage_bytes = if group.pair {
            2 * (fetched / 2 + 30).next_multiple_of(128)
        } else {
            (fetched + 30).next_multiple_of(128)
        };
        (item.lanes, item.segments, item.chunk) = (lanes.ilog2(), segments, chunk);
        let last = if single { lanes == 32 } else { lanes == 16 };
        let plan = Plan { item, x_bytes, stage_bytes };
        if (fetched <= FETCH_BYTES || last) && depth(caps, [&plan].into_iter()).is_some() {
            return Some(plan);
        }
    }
    None
}

fn format(dtype: DType) -> Option<u32> {
    use DType::*;
    [Q4_K, Q5_K, Q6_K, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0]
        .iter()
        .position(|&known| known == dtype)
        .map(|at| at as u32)
}

fn launch(queue: &mut Queue, input: &Input, mut plans: Vec<Plan>) -> Launched {
    if let (Some(norm), Some(first)) = (input.norm, plans.first_mut()) {
        first.item.x = norm.input;
        first.item.gamma = norm.gamma;
        first.item.normed = norm.output;
        first.item.epsilon = norm.epsilon;
    }
    let launched = plans.len();
    for plan in plans {
        if !queue.chain.takes(queue.caps(), &plan) {
            queue.launch_chain()?;
        }
        queue.chain.plans.push(plan);
        if !queue.chains() {
            queue.launch_chain()?;
        }
    }
    Ok(launched)
}
