//! Packs f32 activations as f16 MMA fragments or wgmma panels, after an optional RMS norm
//! (`pack_f16_fragments.cu`).

use fulmen_core::BackendError;

use super::at_row;
use super::f16_fragments::{F16Fragments, K_CHUNK, K_ORDERS};
use super::small_m::MatmulInput;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "pack_f16_fragments.cu";

    struct PackF16FragmentsArgs {
        x: DevicePtr,
        gamma: DevicePtr,
        normed: DevicePtr,
        packed: [DevicePtr; K_ORDERS],
        row_scales: DevicePtr,
        epsilon: f32,
        k: u32,
        m: u32,
        panel_rows: u32,
        panel_orders: [u32; K_ORDERS],
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
    let args = PackF16FragmentsArgs { packed, row_scales: to.row_scales, ..args(input, first_row, m) };
    let entry = format!("pack_f16_fragments_rows{rows}");
    queue.launch(&Launch::new("pack_f16_fragments", &entry, 1, threads(input.k)).rows(rows), &args)?;
    Ok(())
}

/// Where [`launch_panels`] packs to: panels of `rows` padded rows in up to two orders, given as address and
/// order, and a scale for each row.
#[derive(Clone, Copy, Debug)]
pub(super) struct PanelTarget {
    pub(super) panels: [(u64, u32); K_ORDERS],
    pub(super) row_scales: u64,
    pub(super) rows: u32,
}

/// Packs the input as panels (`f16_panels.cuh`).
pub(super) fn launch_panels(
    queue: &mut Queue,
    input: &MatmulInput,
    to: &PanelTarget,
) -> Result<(), BackendError> {
    let args = PackF16FragmentsArgs {
        packed: to.panels.map(|(address, _)| address),
        panel_orders: to.panels.map(|(_, order)| order),
        panel_rows: to.rows,
        row_scales: to.row_scales,
        ..args(input, 0, input.m)
    };
    let launch = Launch::new("pack_f16_fragments", "pack_f16_panels", 1, threads(input.k)).rows(input.m);
    queue.launch(&launch, &args)?;
    Ok(())
}

/// What both layouts share.
fn args(input: &MatmulInput, first_row: u32, m: u32) -> PackF16FragmentsArgs {
    let (k, norm) = (input.k, input.norm);
    PackF16FragmentsArgs {
        x: at_row(norm.map_or(input.x, |norm| norm.input), first_row, k),
        gamma: norm.map_or(0, |norm| norm.gamma),
        normed: at_row(norm.map_or(0, |norm| norm.output), first_row, k),
        packed: [0; K_ORDERS],
        row_scales: 0,
        epsilon: norm.map_or(0.0, |norm| norm.epsilon),
        k,
        m,
        panel_rows: 0,
        panel_orders: [0; K_ORDERS],
    }
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
