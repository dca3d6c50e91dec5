//! Prefill GEMM on tensor cores. Activations are packed (`gemm_activations.cu`) and weights dequantized
//! (`dequantize.cu`) into f16 or bf16 panels in scratch memory, as many rows at a time as fit, and one GEMM
//! multiplies them (`gemm.cu`, `gemm_hopper.cu`).

mod activations;
mod dequantize;
mod partition;
mod tile;

use bytemuck::Zeroable;
use fulmen_core::{BackendError, GateActivation, GateUpCall, MulMatCall, Projection};

use self::partition::{
    Activations, GemmLaunch, Matmul, OperandKind, ScratchLayout, WeightSlice, partition, slices,
};
use self::tile::{HopperTile, MMA_SHARED, MMA_TILE, n_tiles};
use super::{Launched, at_row};
use crate::device::Caps;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

/// Up to this many rows the small-M GEMM is faster.
const MAX_SMALL_M: u32 = 16;

/// Elements of a row in a panel.
const PANEL: u32 = 64;

/// Bytes of a row in a panel.
const PANEL_ROW_BYTES: u32 = 128;

/// Most weights of a launch.
const MAX_OUTPUTS: usize = 4;

kernel_args! {
    file: "gemm.cuh";
    constants: [PANEL, PANEL_ROW_BYTES, MAX_OUTPUTS];

    struct GemmOutput {
        out: DevicePtr,
        bias: DevicePtr,
        residual: DevicePtr,
        n: u32,
        w_row: u32,
    }

    struct GemmArgs {
        x: DevicePtr,
        w: DevicePtr,
        row_scales: DevicePtr,
        outputs: [GemmOutput; MAX_OUTPUTS],
        m: u32,
        x_rows: u32,
        w_rows: u32,
        k_panels: u32,
        passes: u32,
        n_outputs: u32,
        vectorized: u32,
        gelu: u32,
    }
}

/// Launches the matmuls of a call if these kernels support it.
pub(crate) fn launch(queue: &mut Queue, call: &MulMatCall) -> Option<Launched> {
    let input = Activations { x: call.input, m: call.m, k: call.k };
    if !supports(queue.caps(), &input) {
        return None;
    }
    let matmul = |part: &Projection| Matmul::new(part.weight, call.k, part.output, part.bias, call.residual);
    let matmuls: Option<Vec<Matmul>> =
        call.parts.iter().filter(|part| part.weight.rows > 0).map(matmul).collect();
    let matmuls = matmuls?;
    let layout = ScratchLayout::new(&input, &matmuls)?;
    Some(run(queue, &input, &layout, &partition(&matmuls, layout.w_rows), None))
}

/// Launches gate and up, fused with their activation, if these kernels support it.
pub(crate) fn launch_gate_up(queue: &mut Queue, call: &GateUpCall) -> Option<Launched> {
    let input = Activations { x: call.input, m: call.m, k: call.k };
    if !supports(queue.caps(), &input) || call.gate.rows == 0 || call.gate.rows != call.up.rows {
        return None;
    }
    let matmul = |weight| Matmul::new(weight, call.k, call.output, None, None);
    let matmuls = [matmul(call.gate)?, matmul(call.up)?];
    let [gate, up] = &matmuls;
    if gate.kind != up.kind {
        return None;
    }
    let layout = ScratchLayout::new(&input, &matmuls)?;
    let launches: Vec<GemmLaunch<'_>> = slices(gate, layout.w_rows / 2)
        .map(|slice| GemmLaunch { kind: gate.kind, slices: vec![slice, WeightSlice { matmul: up, ..slice }] })
        .collect();
    Some(run(queue, &input, &layout, &launches, Some(call.activation)))
}

fn supports(caps: Caps, input: &Activations) -> bool {
    input.m > MAX_SMALL_M && input.k > 0 && caps.shared_bytes >= MMA_SHARED
}

fn run(
    queue: &mut Queue,
    input: &Activations,
    layout: &ScratchLayout,
    launches: &[GemmLaunch<'_>],
    gate_up: Option<GateActivation>,
) -> Launched {
    let Some(bytes) = layout.bytes(launches) else { return Ok(0) };
    let scratch = queue.scratch(bytes)?;
    let mut launched = 0;
    for row in (0..input.m).step_by(layout.rows as usize) {
        let rows = RowChunk { row, m: layout.rows.min(input.m - row) };
        let mut packed = None;
        for launch in launches {
            if packed != Some(launch.kind.activations_entry()) {
                activations::pack(queue, input, layout, scratch, rows, launch.kind)?;
                packed = Some(launch.kind.activations_entry());
                launched += 1;
            }
            dequantize::dequantize(queue, input.k, layout, scratch, launch, gate_up.is_some())?;
            multiply(queue, layout, scratch, rows, launch, gate_up)?;
            launched += launch.slices.len() + 1;
        }
    }
    Ok(launched)
}

/// Rows of the activations that are in scratch memory at a time: `m` from `row` on.
#[derive(Clone, Copy, Debug)]
struct RowChunk {
    row: u32,
    m: u32,
}

/// The GEMM of packed operands.
fn multiply(
    queue: &mut Queue,
    layout: &ScratchLayout,
    scratch: u64,
    rows: RowChunk,
    launch: &GemmLaunch<'_>,
    gate_up: Option<GateActivation>,
) -> Result<(), BackendError> {
    let mut args = GemmArgs {
        x: scratch + layout.x_at,
        w: scratch + layout.w_at,
        row_scales: if launch.kind == OperandKind::F16 { scratch } else { 0 },
        outputs: [GemmOutput::zeroed(); MAX_OUTPUTS],
        m: rows.m,
        x_rows: rows.m.next_multiple_of(8),
        w_rows: launch.w_rows(),
        k_panels: layout.k_panels,
        passes: launch.kind.splits().passes,
        n_outputs: if gate_up.is_some() { 1 } else { launch.slices.len() as u32 },
        vectorized: 1,
        gelu: u32::from(gate_up == Some(GateActivation::GeluTanh)),
    };
    let mut w_row = 0u32;
    let with_output = if gate_up.is_some() { &launch.slices[..1] } else { &launch.slices[..] };
    for (output, slice) in args.outputs.iter_mut().zip(with_output) {
        let (matmul, n) = (slice.matmul, slice.matmul.weight.rows);
        *output = GemmOutput {
            out: at_row(matmul.out, rows.row, n),
            bias: matmul.bias,
            residual: at_row(matmul.residual, rows.row, n),
            n,
            // Of the weight's row 0: for a later slice that is negative, modulo 2^32.
            w_row: w_row.wrapping_sub(slice.first),
        };
        w_row += slice.padded();
        if !n.is_multiple_of(2) || !output.out.is_multiple_of(8) || !output.residual.is_multiple_of(8) {
            args.vectorized = 0;
        }
    }
    let name = format!("gemm_{}{}", if gate_up.is_some() { "gate_up_" } else { "" }, launch.kind.element());
    match HopperTile::fastest(queue.caps(), rows.m, args.w_rows, launch.is_sliced()) {
        None => {
            let blocks = queue.blocks(&name, n_tiles(rows.m, MMA_TILE, args.w_rows, MMA_TILE))?;
            queue.launch(&Launch::new("gemm", &name, blocks, 256).shared(MMA_SHARED), &args)?;
        }
        Some(tile) => {
            let entry = format!("{name}_{}_{}", tile.block_m, tile.block_n);
            let persistent = u64::from(queue.caps().multiprocessors);
            let blocks = queue.blocks(&entry, tile.count(rows.m, args.w_rows).min(persistent))?;
            let launch = Launch::new("gemm_hopper", &entry, blocks, 384).shared(tile.shared());
            queue.launch(&launch, &args)?;
        }
    }
    Ok(())
}
