//! Packs activations into the panels of the GEMM (`gemm_activations.cu`).

use fulmen_core::BackendError;

use super::RowChunk;
use super::partition::{Activations, OperandKind, ScratchLayout};
use crate::kernels::{at_row, wide};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "gemm_activations.cu";

    struct GemmActivationsArgs {
        x: DevicePtr,
        out: DevicePtr,
        row_scales: DevicePtr,
        k: u32,
        k_panels: u32,
        rows: u32,
        aligned: u32,
    }
}

pub(super) fn pack(
    queue: &mut Queue,
    input: &Activations,
    layout: &ScratchLayout,
    scratch: u64,
    rows: RowChunk,
    kind: OperandKind,
) -> Result<(), BackendError> {
    let x = at_row(input.x, rows.row, input.k);
    let args = GemmActivationsArgs {
        x,
        out: scratch + layout.x_at,
        row_scales: scratch,
        k: input.k,
        k_panels: layout.k_panels,
        rows: rows.m.next_multiple_of(8),
        aligned: if input.k.is_multiple_of(4) { wide(&[x]) } else { 0 },
    };
    let entry = kind.activations_entry();
    let blocks = queue.blocks(entry, rows.m.into())?;
    Ok(queue.launch(&Launch::new("gemm_activations", entry, blocks, 256), &args)?)
}
