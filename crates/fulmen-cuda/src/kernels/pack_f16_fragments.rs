//! Packs f32 activations as f16 MMA fragments or wgmma panels, after an optional RMS norm
//! (`pack_f16_fragments.cu`).

use fulmen_core::BackendError;

use super::at_row;
use super::f16_fragments::{F16Fragments, K_CHUNK, K_ORDERS};
use super::pack_row::{PackRowArgs, PanelTarget};
use super::small_m::MatmulInput;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "pack_f16_fragments.cu";

    struct PackF16FragmentsArgs {
        x: DevicePtr,
        row: PackRowArgs,
        k: u32,
        m: u32,
    }
}

/// Threads of the block that packs a row: 16 columns each, within limits.
fn threads(k: u32) -> u32 {
    let padded = k.next_multiple_of(K_CHUNK);
    (padded / 16).next_multiple_of(32).clamp(256, 1024).min(padded / 4)
}

/// Packs `m` rows of the input, from `first_row` on, padded to `rows`, in the K orders that are wanted.
pub(super) fn launch(
    queue: &mut Queue,
    input: &MatmulInput,
    (first_row, m, rows): (u32, u32, u32),
    to: &F16Fragments,
    orders: impl Iterator<Item = usize>,
) -> Result<(), BackendError> {
    let mut packed = [0; K_ORDERS];
    for order in orders {
        packed[order] = to.fragments[order];
    }
    let mut args = args(input, first_row, m);
    (args.row.packed, args.row.row_scales) = (packed, to.row_scales);
    let entry = format!("pack_f16_fragments_rows{rows}");
    queue.launch(&Launch::new("pack_f16_fragments", &entry, 1, threads(input.k)).rows(rows), &args)?;
    Ok(())
}

/// Packs the input as panels (`f16_panels.cuh`).
pub(super) fn launch_panels(
    queue: &mut Queue,
    input: &MatmulInput,
    to: &PanelTarget,
) -> Result<(), BackendError> {
    let mut args = args(input, 0, input.m);
    args.row = args.row.panels(to);
    let launch = Launch::new("pack_f16_fragments", "pack_f16_panels", 1, threads(input.k)).rows(input.m);
    queue.launch(&launch, &args)?;
    Ok(())
}

/// What both layouts share.
fn args(input: &MatmulInput, first_row: u32, m: u32) -> PackF16FragmentsArgs {
    let (k, norm) = (input.k, input.norm);
    let mut row = PackRowArgs::new(norm);
    row.normed = at_row(row.normed, first_row, k);
    PackF16FragmentsArgs { x: at_row(norm.map_or(input.x, |norm| norm.input), first_row, k), row, k, m }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_whole_warps() {
        for (k, expected) in [(32, 64), (256, 64), (1024, 256), (2560, 256), (9728, 608), (28672, 1024)] {
            assert_eq!(threads(k), expected, "{k}");
        }
    }
}
