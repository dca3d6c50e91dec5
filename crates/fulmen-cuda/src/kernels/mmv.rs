//! Products of few rows with block-quantised weights, with an RMS norm before them if there is one.

use bytemuck::{Pod, Zeroable};
use fulmen_core::{BackendError, DType, GateUpCall, MatPart, MulMatCall, RmsNormCall, WeightArg};

use super::{Launched, type_name};
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
    columns: u32,
    parts: u32,
    first_parts: u32,
    first_warps: u32,
    stage_bytes: u32,
    unused: u32,
    part: [Part; MAX_PARTS],
}

// As in `mmv.cu`.
const WARPS: u32 = 12;
const DEPTH: u32 = 2;
const MAX_PARTS: usize = 3;
const GROUP_BYTES: u32 = 768;
/// Static shared memory, rounded up.
const STATIC_BYTES: u32 = 1024;

/// Rows of activations that one launch takes, and how many launches a call may need before it is not worth it.
const COLUMNS: u32 = 4;
const MOST_ROWS: u32 = 16;

/// Bytes that a warp fetches at once, at most: more is not faster and takes room from the next kernel.
const FETCH_BYTES: u32 = 8448;

/// Multiprocessors have so few rows each that all lanes of a warp share one.
const FEW_ROWS: u32 = 32;

/// The compute capability that has bulk copies.
const CAPABILITY: u32 = 90;

/// A norm that is computed on the way.
#[derive(Clone, Copy, Debug)]
struct Norm {
    input: u64,
    gamma: u64,
    output: u64,
    epsilon: f32,
}

/// One weight, its result, and what is added to it.
#[derive(Clone, Copy, Debug)]
struct Product {
    weight: WeightArg,
    out: u64,
    bias: u64,
    residual: u64,
}

/// The input of some products, with `m` rows of `k`.
#[derive(Clone, Copy, Debug)]
struct Input {
    x: u64,
    norm: Option<Norm>,
    m: u32,
    k: u32,
}

impl Input {
    fn new(x: u64, m: u32, k: u32, norm: Option<&RmsNormCall>) -> Input {
        let norm = norm.map(|norm| Norm {
            input: norm.input,
            gamma: norm.gamma,
            output: norm.output,
            epsilon: norm.epsilon,
        });
        Input { x, norm, m, k }
    }
}

/// The products of a call, if these kernels take it.
pub(crate) fn launch(queue: &mut Queue, call: &MulMatCall, norm: Option<&RmsNormCall>) -> Option<Launched> {
    let product = |part: &MatPart| Product {
        weight: part.weight,
        out: part.output,
        bias: part.bias.unwrap_or(0),
        residual: call.residual.unwrap_or(0),
    };
    let parts: Vec<Product> = call.parts.iter().map(product).collect();
    let input = Input::new(call.input, call.m, call.k, norm);
    if !takes(queue, &input, &parts) {
        return None;
    }
    // Weights of one format in one launch, and the usual pair of formats as well.
    let mut launches = Vec::new();
    let mut left = parts.as_slice();
    while let Some(first) = left.first() {
        let same = left.iter().take_while(|part| part.weight.dtype == first.weight.dtype).count();
        let (most, rest) = (left.len().min(MAX_PARTS), same..left.len().min(MAX_PARTS));
        let mixed = first.weight.dtype == DType::Q4_K
            && same < most
            && left[rest].iter().all(|part| part.weight.dtype == DType::Q6_K);
        let count = if mixed { most } else { same.min(MAX_PARTS) };
        launches.push((&left[..count], if mixed { same } else { count }));
        left = &left[count..];
    }
    let plans: Option<Vec<_>> =
        launches.iter().map(|&(parts, first)| plan(queue, &input, parts, first, false)).collect();
    plans.map(|plans| run(queue, &input, &plans))
}

/// Both products of a gate-up call and what is made of them, if these kernels take it.
pub(crate) fn launch_gate_up(
    queue: &mut Queue,
    call: &GateUpCall,
    norm: Option<&RmsNormCall>,
) -> Option<Launched> {
    let product = |weight| Product { weight, out: call.output, bias: 0, residual: 0 };
    let parts = [product(call.gate), product(call.up)];
    let input = Input::new(call.input, call.m, call.k, norm);
    if call.gate.dtype != call.up.dtype || !takes(queue, &input, &parts) {
        return None;
    }
    let plan = plan(queue, &input, &parts, 2, true)?;
    Some(run(queue, &input, &[plan]))
}

fn takes(queue: &Queue, input: &Input, parts: &[Product]) -> bool {
    let block = |dtype| {
        use DType::*;
        matches!(dtype, Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q4_K | Q5_K | Q6_K)
    };
    // A norm in place would be written while others still read it.
    let apart = input.norm.is_none_or(|norm| norm.input != norm.output);
    queue.caps().capability >= CAPABILITY
        && (1..=MOST_ROWS).contains(&input.m)
        && input.k > 0
        && input.x.is_multiple_of(16)
        && input
            .norm
            .is_none_or(|norm| [norm.input, norm.gamma, norm.output].iter().all(|p| p.is_multiple_of(16)))
        && apart
        && !parts.is_empty()
        && parts.iter().all(|part| part.weight.rows > 0 && block(part.weight.dtype))
}

/// A launch for up to [`COLUMNS`] rows; the addresses are those of the first.
struct Plan {
    entry: String,
    shared: u32,
    args: Args,
}

/// `first` of the parts have the first format.
fn plan(queue: &Queue, input: &Input, parts: &[Product], first: usize, pair: bool) -> Option<Plan> {
    let blocks = queue.caps().multiprocessors;
    let row_bytes = |part: &Product| {
        part.weight.dtype.bytes(input.k as usize).ok().and_then(|bytes| u32::try_from(bytes).ok())
    };
    let mut args = Args {
        x: input.x,
        gamma: 0,
        normed: 0,
        epsilon: 0.0,
        k: input.k,
        columns: 0,
        parts: parts.len() as u32,
        first_parts: first as u32,
        first_warps: WARPS,
        stage_bytes: 0,
        unused: 0,
        part: [Part::default(); MAX_PARTS],
    };
    let mut bytes = [0u64; 2];
    for (at, part) in parts.iter().enumerate() {
        let rows = part.weight.rows;
        args.part[at] = Part {
            weight: part.weight.ptr,
            out: part.out,
            bias: part.bias,
            residual: part.residual,
            rows,
            row_bytes: row_bytes(part)?,
            each: rows / blocks,
            extra: rows % blocks,
        };
        bytes[usize::from(at >= first)] += u64::from(rows) * u64::from(args.part[at].row_bytes);
    }
    let mixed = first < parts.len();
    if mixed {
        let share = (u64::from(WARPS) * bytes[0] + (bytes[0] + bytes[1]) / 2) / (bytes[0] + bytes[1]);
        args.first_warps = (share as u32).clamp(1, WARPS - 1);
    }
    let longest = args.part.iter().map(|part| part.row_bytes).max()?;
    let rows = parts.iter().map(|part| part.weight.rows).sum::<u32>().div_ceil(blocks);
    let columns = if input.m == 1 { 1 } else { COLUMNS };
    let x_bytes = columns * input.k.div_ceil(512) * GROUP_BYTES;
    let room = queue.caps().shared_bytes.checked_sub(STATIC_BYTES + x_bytes)?;
    // As many rows for a warp as it may fetch at once.
    let all: &[u32] = if pair || mixed { &[8, 16] } else { &[8, 16, 32] };
    let lanes: &[u32] = if rows < FEW_ROWS && !pair && !mixed { &[32] } else { all };
    let (lanes, stage) = lanes.iter().find_map(|&lanes| {
        let fetched = (32 / lanes).checked_mul(longest)?;
        // Whole pieces around each weight's rows.
        let stage = if pair {
            2 * (fetched / 2 + 30).next_multiple_of(128)
        } else {
            (fetched + 30).next_multiple_of(128)
        };
        let last = Some(&lanes) == all.last();
        let fits = WARPS * DEPTH * stage <= room && (fetched <= FETCH_BYTES || last);
        fits.then_some((lanes, stage))
    })?;
    args.stage_bytes = stage;
    let name = match (pair, mixed) {
        (true, _) => format!("pair_{}", type_name(parts[0].weight.dtype)),
        (_, true) => "q4_k_q6_k".to_owned(),
        _ => type_name(parts[0].weight.dtype).to_owned(),
    };
    let entry = format!("mmv_{name}_m{columns}_l{lanes}");
    Some(Plan { entry, shared: x_bytes + WARPS * DEPTH * stage, args })
}

/// All launches for all rows. The first computes the norm, and the others read it.
fn run(queue: &mut Queue, input: &Input, plans: &[Plan]) -> Result<usize, BackendError> {
    let blocks = queue.caps().multiprocessors;
    let mut launched = 0;
    for row in (0..input.m).step_by(COLUMNS as usize) {
        let columns = (input.m - row).min(COLUMNS);
        // The address of a row of `width` floats; 0 stays 0.
        let at =
            |ptr: u64, width: u32| if ptr == 0 { 0 } else { ptr + u64::from(row) * u64::from(width) * 4 };
        for (index, plan) in plans.iter().enumerate() {
            let mut args = plan.args;
            args.columns = columns;
            args.x = at(input.x, input.k);
            if let (Some(norm), 0) = (input.norm, index) {
                args.x = at(norm.input, input.k);
                args.gamma = norm.gamma;
                args.normed = at(norm.output, input.k);
                args.epsilon = norm.epsilon;
            }
            for part in &mut args.part {
                part.out = at(part.out, part.rows);
                part.residual = at(part.residual, part.rows);
            }
            let launch = Launch::new("mmv", &plan.entry, blocks, 32 * WARPS).shared(plan.shared);
            queue.launch(&launch, &args)?;
            launched += 1;
        }
    }
    Ok(launched)
}
