//! Products of many rows on tensor cores. Activations and weights become panels of 16-bit floats in scratch memory (see
//! `panels.cuh`), as many rows at a time as there is room for, and one launch multiplies them (see `gemm.cuh`).

mod plan;
mod tile;

use bytemuck::{Pod, Zeroable};
use fulmen_core::{BackendError, GateUpCall, MulMatCall, Projection};

use plan::{CUT, Input, Job, Kind, Layout, MOST_PARTS, PANEL, Piece, Product, jobs, pieces};
use tile::{PLAIN_SHARED, PLAIN_SIDE, tile, tiles};

use super::{Launched, at_row, type_name, wide};
use crate::device::Caps;
use crate::queue::{Launch, Queue};

/// Up to so many rows others are faster.
const FEW_ROWS: u32 = 16;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ActivationsParams {
    x: u64,
    out: u64,
    factors: u64,
    k: u32,
    panels: u32,
    rows: u32,
    wide: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct DequantizeParams {
    w: u64,
    out: u64,
    n: u32,
    k: u32,
    panels: u32,
    rows: u32,
    first: u32,
    step: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Part {
    out: u64,
    bias: u64,
    residual: u64,
    n: u32,
    first: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct GemmParams {
    x: u64,
    w: u64,
    factors: u64,
    parts: [Part; MOST_PARTS],
    m: u32,
    x_rows: u32,
    w_rows: u32,
    panels: u32,
    passes: u32,
    n_parts: u32,
    wide: u32,
    unused: u32,
}

/// The products of a call, if these kernels take it.
pub(crate) fn launch(queue: &mut Queue, call: &MulMatCall) -> Option<Launched> {
    let input = Input { x: call.input, m: call.m, k: call.k };
    if !takes(queue.caps(), &input) {
        return None;
    }
    let product =
        |part: &Projection| Product::new(part.weight, call.k, part.output, part.bias, call.residual);
    let products: Option<Vec<Product>> =
        call.parts.iter().filter(|part| part.weight.rows > 0).map(product).collect();
    let products = products?;
    let layout = Layout::new(&input, &products)?;
    Some(run(queue, &input, &layout, &jobs(&products, layout.w_rows), false))
}

/// Both products of a gate-up call and what is made of them, if these kernels take it.
pub(crate) fn launch_gate_up(queue: &mut Queue, call: &GateUpCall) -> Option<Launched> {
    let input = Input { x: call.input, m: call.m, k: call.k };
    if !takes(queue.caps(), &input) || call.gate.rows == 0 || call.gate.rows != call.up.rows {
        return None;
    }
    let product = |weight| Product::new(weight, call.k, call.output, None, None);
    let products = [product(call.gate)?, product(call.up)?];
    let [gate, up] = &products;
    if gate.kind != up.kind {
        return None;
    }
    let layout = Layout::new(&input, &products)?;
    let jobs: Vec<Job<'_>> = pieces(gate, layout.w_rows / 2)
        .map(|piece| Job { kind: gate.kind, pieces: vec![piece, Piece { product: up, ..piece }] })
        .collect();
    Some(run(queue, &input, &layout, &jobs, true))
}

fn takes(caps: Caps, input: &Input) -> bool {
    input.m > FEW_ROWS && input.k > 0 && caps.shared_bytes >= PLAIN_SHARED
}

fn run(queue: &mut Queue, input: &Input, layout: &Layout, jobs: &[Job<'_>], pair: bool) -> Launched {
    let Some(bytes) = layout.bytes(jobs) else { return Ok(0) };
    let scratch = queue.scratch(bytes)?;
    let mut launched = 0;
    for row in (0..input.m).step_by(layout.rows as usize) {
        let m = layout.rows.min(input.m - row);
        let mut prepared = None;
        for job in jobs {
            if prepared != Some(job.kind.activations()) {
                prepare(queue, input, layout, scratch, (row, m), job.kind)?;
                prepared = Some(job.kind.activations());
                launched += 1;
            }
            dequantize(queue, input.k, layout, scratch, job, pair)?;
            multiply(queue, layout, scratch, (row, m), job, pair)?;
            launched += job.pieces.len() + 1;
        }
    }
    Ok(launched)
}

/// `m` rows of activations from `row` on.
fn prepare(
    queue: &mut Queue,
    input: &Input,
    layout: &Layout,
    scratch: u64,
    (row, m): (u32, u32),
    kind: Kind,
) -> Result<(), BackendError> {
    let x = at_row(input.x, row, input.k);
    let params = ActivationsParams {
        x,
        out: scratch + layout.x_at,
        factors: scratch,
        k: input.k,
        panels: layout.panels,
        rows: m.next_multiple_of(8),
        wide: if input.k.is_multiple_of(4) { wide(&[x]) } else { 0 },
    };
    let blocks = queue.blocks(kind.activations(), m.into())?;
    Ok(queue.launch(&Launch::new("activations", kind.activations(), blocks, 256), &params)?)
}

/// The weights of a job, one below the other; for gate-up they take turns.
fn dequantize(
    queue: &mut Queue,
    k: u32,
    layout: &Layout,
    scratch: u64,
    job: &Job<'_>,
    pair: bool,
) -> Result<(), BackendError> {
    let mut first = 0;
    for piece in &job.pieces {
        let weight = piece.product.weight;
        let params = DequantizeParams {
            w: weight.ptr + u64::from(piece.first) * piece.product.row_bytes,
            out: scratch + layout.w_at,
            n: piece.rows,
            k,
            panels: layout.panels,
            rows: job.w_rows(),
            first,
            step: if pair { 16 } else { 8 },
        };
        first += if pair { 8 } else { piece.padded() };
        let entry = format!("dequantize_{}", type_name(weight.dtype));
        let blocks = queue.blocks(&entry, (u64::from(layout.panels) * u64::from(PANEL)).div_ceil(256))?;
        let rows = queue.rows(&entry, u64::from(piece.rows).div_ceil(32))?;
        queue.launch(&Launch::new("dequantize", &entry, blocks, 256).rows(rows), &params)?;
    }
    Ok(())
}

/// The product of what was prepared.
fn multiply(
    queue: &mut Queue,
    layout: &Layout,
    scratch: u64,
    (row, m): (u32, u32),
    job: &Job<'_>,
    pair: bool,
) -> Result<(), BackendError> {
    let mut params = GemmParams {
        x: scratch + layout.x_at,
        w: scratch + layout.w_at,
        factors: if job.kind == Kind::F16 { scratch } else { 0 },
        parts: [Part::zeroed(); MOST_PARTS],
        m,
        x_rows: m.next_multiple_of(8),
        w_rows: job.w_rows(),
        panels: layout.panels,
        passes: job.kind.parts().2,
        n_parts: if pair { 1 } else { job.pieces.len() as u32 },
        wide: 1,
        unused: 0,
    };
    let mut first = 0u32;
    let outputs = if pair { &job.pieces[..1] } else { &job.pieces[..] };
    for (part, piece) in params.parts.iter_mut().zip(outputs) {
        let (product, n) = (piece.product, piece.product.weight.rows);
        *part = Part {
            out: at_row(product.out, row, n),
            bias: product.bias,
            residual: at_row(product.residual, row, n),
            n,
            // Where the weight's row 0 would be: for a later piece that is before the panels, modulo 2^32.
            first: first.wrapping_sub(piece.first),
        };
        first += piece.padded();
        if !n.is_multiple_of(2) || !part.out.is_multiple_of(8) || !part.residual.is_multiple_of(8) {
            params.wide = 0;
        }
    }
    let name = format!("gemm_{}{}", if pair { "pair_" } else { "" }, job.kind.float());
    match tile(queue.caps(), m, params.w_rows, job.is_cut().then_some(CUT)) {
        None => {
            let blocks = queue.blocks(&name, tiles(m, PLAIN_SIDE, params.w_rows, PLAIN_SIDE))?;
            queue.launch(&Launch::new("gemm", &name, blocks, 256).shared(PLAIN_SHARED), &params)?;
        }
        Some(tile) => {
            let entry = format!("{name}_{}_{}", tile.rows, tile.columns);
            let most = u64::from(queue.caps().multiprocessors);
            let blocks = queue.blocks(&entry, tile.count(m, params.w_rows).min(most))?;
            let launch = Launch::new("gemm_hopper", &entry, blocks, 384).shared(tile.shared());
            queue.launch(&launch, &params)?;
        }
    }
    Ok(())
}
