//! Products of one row with block-quantized weights.

use bytemuck::{Pod, Zeroable};
use fulmen_core::BackendError;

use super::small_m::{Group, Input, MAX_PARTS};
use super::{Launched, q8_activations};
use crate::device::Caps;
use crate::queue::{Launch, Queue};

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
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct Args {
    x: u64,
    codes: u64,
    codes_out: u64,
    gamma: u64,
    normed: u64,
    epsilon: f32,
    inverse_k: f32,
    k: u32,
    parts: u32,
    first_parts: u32,
    first_warps: u32,
    stage_bytes: u32,
    segments: u32,
    depth: u32,
    unused: u32,
    part: [Part; MAX_PARTS],
}

// As in `gemv.cu`.
const WARPS: u32 = 12;
const MAX_RESULTS: u32 = 256;
const SEGMENT: u32 = 64;

/// Stages of a warp's ring.
const DEPTH: u32 = 2;

/// Static shared memory, rounded up.
const STATIC_BYTES: u32 = 2048;

/// Bytes that a warp fetches at once, at most: more is not faster and takes room from the next kernel.
const FETCH_BYTES: u32 = 8448;

/// Multiprocessors have so few rows each that all lanes of a warp share one.
const FEW_ROWS: u32 = 32;

/// All launches, if there is a plan for each. The first computes the norm, and the others read it. A pair hands its result on as codes
/// as well, if it can.
pub(super) fn run(queue: &mut Queue, input: &Input, groups: &[Group<'_>]) -> Option<Launched> {
    let plans: Option<Vec<_>> = groups.iter().map(|group| plan(queue.caps(), input, group)).collect();
    plans.map(|plans| launch(queue, input, &plans))
}

#[derive(Debug)]
struct Plan {
    /// What the entry is called behind the name of the file.
    entry: String,
    /// Whether there is an entry that takes x as codes: for one weight.
    takes_codes: bool,
    blocks: u32,
    /// Whether its result may go on as codes.
    hands_on: bool,
    shared: u32,
    args: Args,
}

fn plan(caps: Caps, input: &Input, group: &Group<'_>) -> Option<Plan> {
    let (parts, mixed) = (group.parts, group.mixed());
    let mut args = Args {
        x: input.x,
        codes: 0,
        codes_out: 0,
        gamma: 0,
        normed: 0,
        epsilon: 0.0,
        inverse_k: 1.0 / input.k as f32,
        k: input.k,
        parts: parts.len() as u32,
        first_parts: group.first as u32,
        first_warps: WARPS,
        stage_bytes: 0,
        segments: 1,
        depth: 0,
        unused: 0,
        part: [Part::default(); MAX_PARTS],
    };
    for (to, part) in args.part.iter_mut().zip(parts) {
        *to = Part {
            weight: part.weight.ptr,
            out: part.out,
            bias: part.bias,
            residual: part.residual,
            rows: part.weight.rows,
            row_bytes: part.row_bytes(input.k)?,
            ..Part::default()
        };
    }
    let longest = args.part.iter().map(|part| part.row_bytes).max()?;
    let rows = parts.iter().map(|part| part.weight.rows).sum::<u32>().div_ceil(caps.multiprocessors);
    let x_bytes = u32::try_from(q8_activations::bytes(input.k)).ok()?;
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
    let task = if group.pair { 16 / lanes } else { 32 / lanes };
    let used = if group.pair { 1 } else { parts.len() };
    let deal = Deal::new(&args.part[..used], group.first.min(used), task, caps.multiprocessors);
    let rows = parts[0].weight.rows;
    let coded = if group.pair && q8_activations::fit(rows) { deal.for_codes(rows, task) } else { None };
    let hands_on = coded.is_some();
    let deal = coded.unwrap_or(deal);
    args.first_warps = deal.first_warps;
    for (index, part) in args.part.iter_mut().take(parts.len()).enumerate() {
        part.each = deal.each[index.min(used - 1)];
    }
    // No more stages than there is to fetch: the next kernel may find room beside this one.
    args.depth = DEPTH.min(deal.tasks * segments).max(1);
    let shared = x_bytes + WARPS * args.depth * stage;
    let many = if parts.len() > 1 && !group.pair { "many_" } else { "" };
    let entry = format!("{many}{}_l{lanes}", group.name());
    // A block without rows has time to store the norm.
    let full = (0..used).all(|part| deal.blocks * deal.each[part] <= args.part[part].rows);
    let idle = input.norm.is_some() && full && deal.blocks < caps.multiprocessors;
    let blocks = deal.blocks + u32::from(idle);
    Some(Plan { entry, takes_codes: parts.len() == 1, blocks, hands_on, shared, args })
}

/// How rows are dealt to blocks and warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deal {
    blocks: u32,
    /// Rows of each part that a block has; the last blocks may have fewer.
    each: [u32; MAX_PARTS],
    /// Warps that work on the parts of the first format.
    first_warps: u32,
    /// Tasks of a warp, at most.
    tasks: u32,
}

impl Deal {
    /// Of the parts, the `first` ones have the first format. A warp takes `task` rows at a time. There is a block for each multiprocessor,
    /// also where fewer have the same longest work: the last one has none then, and has time to store a norm.
    fn new(parts: &[Part], first: usize, task: u32, blocks: u32) -> Deal {
        let (mut each, mut tasks, mut bytes) = ([0; MAX_PARTS], [0; 2], [0; 2]);
        for (index, part) in parts.iter().enumerate() {
            each[index] = part.rows.div_ceil(blocks);
            let format = usize::from(index >= first);
            tasks[format] += each[index].div_ceil(task);
            bytes[format] = u64::from(part.row_bytes);
        }
        let most = |tasks: u32, warps: u32| tasks.div_ceil(warps.max(1));
        let longest = |warps: u32| {
            let [one, two] = [(tasks[0], warps, bytes[0]), (tasks[1], WARPS - warps, bytes[1])]
                .map(|(tasks, warps, bytes)| u64::from(most(tasks, warps)) * bytes);
            one.max(two)
        };
        let choices = if tasks[1] > 0 { 1..=WARPS - 1 } else { WARPS..=WARPS };
        let first_warps = choices.min_by_key(|&warps| longest(warps)).unwrap_or(WARPS);
        let tasks = most(tasks[0], first_warps).max(most(tasks[1], WARPS - first_warps));
        Deal { blocks, each, first_warps, tasks }
    }

    /// With whole blocks of 32 rows, of which codes are made, if that takes no more than a quarter longer. There are no more blocks than
    /// shorten the longest work of a warp: down, which needs the memory of a whole multiprocessor, begins on those that are left.
    fn for_codes(&self, rows: u32, task: u32) -> Option<Deal> {
        let tasks = |each: u32| each.div_ceil(task).div_ceil(WARPS);
        let least = rows.div_ceil(self.blocks).next_multiple_of(32);
        let each =
            (least..=MAX_RESULTS).step_by(32).take_while(|&each| tasks(each) == tasks(least)).last()?;
        let (blocks, tasks) = (rows.div_ceil(each), tasks(each));
        let deal = Deal { blocks, each: [each, 0, 0], first_warps: WARPS, tasks };
        (tasks <= self.tasks + self.tasks / 4).then_some(deal)
    }
}

fn launch(queue: &mut Queue, input: &Input, plans: &[Plan]) -> Result<usize, BackendError> {
    let codes = input.norm.is_none().then(|| queue.forwarded(q8_activations::of(input.x, input.k))).flatten();
    for (index, plan) in plans.iter().enumerate() {
        let mut args = plan.args;
        if let (Some(norm), 0) = (input.norm, index) {
            args.x = norm.input;
            args.gamma = norm.gamma;
            args.normed = norm.output;
            args.epsilon = norm.epsilon;
        }
        let coded = codes.filter(|_| plan.takes_codes);
        args.codes = coded.unwrap_or(0);
        let result = (args.part[0].out, args.part[0].rows);
        if plan.hands_on {
            args.codes_out = q8_activations::room(queue, result.1).unwrap_or(0);
        }
        let entry = format!("gemv_{}{}", if coded.is_some() { "coded_" } else { "" }, plan.entry);
        let launch = Launch::new("gemv", &entry, plan.blocks, 32 * WARPS).shared(plan.shared);
        queue.launch(&launch, &args)?;
        if args.codes_out != 0 {
            queue.set_forwarded(q8_activations::of(result.0, result.1), args.codes_out);
        }
    }
    Ok(plans.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(rows: &[(u32, u32)]) -> Vec<Part> {
        rows.iter().map(|&(rows, row_bytes)| Part { rows, row_bytes, ..Part::default() }).collect()
    }

    #[test]
    fn all_rows_are_dealt() {
        // Parts, how many have the first format, rows of a task; rows of each part for a block, and tasks of a warp.
        type Row = (&'static [(u32, u32)], usize, u32, [u32; 3], u32);
        let table: &[Row] = &[
            // Qwen3-4B: Q K V in one format and in two, gate and up, output, LM head.
            (&[(4096, 1440), (1024, 1440), (1024, 1440)], 3, 4, [32, 8, 8], 1),
            (&[(4096, 1440), (1024, 1440), (1024, 2100)], 2, 4, [32, 8, 8], 1),
            (&[(9728, 1440)], 1, 2, [74, 0, 0], 4),
            (&[(2560, 2304)], 1, 1, [20, 0, 0], 2),
            (&[(151_936, 2100)], 1, 4, [1152, 0, 0], 24),
            // Fewer rows than warps.
            (&[(5, 100)], 1, 1, [1, 0, 0], 1),
        ];
        for &(rows, first, task, each, tasks) in table {
            let deal = Deal::new(&parts(rows), first, task, 132);
            assert_eq!((deal.each, deal.tasks), (each, tasks), "{rows:?}");
            assert!(rows.iter().zip(each).all(|(part, each)| each * deal.blocks >= part.0), "{rows:?}");
        }
    }

    #[test]
    fn codes_are_made_where_whole_blocks_of_32_rows_are_not_much_longer() {
        // Rows; blocks, rows of a block and tasks of a warp.
        let table = [
            (9728, Some((102, 96, 4))),
            (12_288, Some((128, 96, 4))),
            (8192, Some((128, 64, 3))),
            (14_336, Some((112, 128, 6))),
            (2048, None),
            (4864, None),
        ];
        for (rows, expected) in table {
            let deal = Deal::new(&parts(&[(rows, 1440)]), 1, 2, 132).for_codes(rows, 2);
            assert_eq!(deal.map(|deal| (deal.blocks, deal.each[0], deal.tasks)), expected, "{rows}");
        }
    }

    #[test]
    fn warps_are_dealt_so_that_none_has_two_tasks_where_one_would_do() {
        let deal = Deal::new(&parts(&[(4096, 1440), (1024, 1440), (1024, 2100)]), 2, 4, 132);
        assert_eq!(deal.first_warps, 10);
    }
}
