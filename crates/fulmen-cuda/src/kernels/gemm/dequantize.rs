//! Dequantizes weights into the panels of the GEMM (`dequantize.cu`).

use fulmen_core::BackendError;

use super::PANEL;
use super::partition::{GemmLaunch, ScratchLayout};
use crate::kernels::type_name;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "dequantize.cu";

    struct DequantizeArgs {
        w: DevicePtr,
        out: DevicePtr,
        n: u32,
        k: u32,
        k_panels: u32,
        rows: u32,
        first: u32,
        step: u32,
    }
}

/// Stacks the weights of a launch; for gate-up they alternate in groups of 8 rows.
pub(super) fn dequantize(
    queue: &mut Queue,
    k: u32,
    layout: &ScratchLayout,
    scratch: u64,
    launch: &GemmLaunch<'_>,
    gate_up: bool,
) -> Result<(), BackendError> {
    let mut first = 0;
    for slice in &launch.slices {
        let weight = slice.matmul.weight;
        let args = DequantizeArgs {
            w: weight.ptr + u64::from(slice.first) * slice.matmul.row_bytes,
            out: scratch + layout.w_at,
            n: slice.rows,
            k,
            k_panels: layout.k_panels,
            rows: launch.w_rows(),
            first,
            step: if gate_up { 16 } else { 8 },
        };
        first += if gate_up { 8 } else { slice.padded() };
        let entry = format!("dequantize_{}", type_name(weight.dtype));
        let blocks = queue.blocks(&entry, (u64::from(layout.k_panels) * u64::from(PANEL)).div_ceil(256))?;
        let rows = queue.rows(&entry, u64::from(slice.rows).div_ceil(32))?;
        queue.launch(&Launch::new("dequantize", &entry, blocks, 256).rows(rows), &args)?;
    }
    Ok(())
}
