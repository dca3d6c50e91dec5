//! A row of activations converted to f16 by one block (`pack_row.cuh`): what the kernels that pack
//! activations are told about it.

use super::f16_fragments::K_ORDERS;
use super::small_m::FusedNorm;
use crate::layout::{DevicePtr, kernel_args};

kernel_args! {
    file: "pack_row.cuh";

    #[derive(Debug, Default)]
    pub(super) struct PackRowArgs {
        pub(super) gamma: DevicePtr,
        pub(super) normed: DevicePtr,
        pub(super) packed: [DevicePtr; K_ORDERS],
        pub(super) row_scales: DevicePtr,
        pub(super) epsilon: f32,
        pub(super) panel_rows: u32,
        pub(super) panel_orders: [u32; K_ORDERS],
    }
}

impl PackRowArgs {
    /// A row after its norm, if it has one, packed nowhere yet.
    pub(super) fn new(norm: Option<FusedNorm>) -> PackRowArgs {
        let Some(norm) = norm else { return PackRowArgs::default() };
        PackRowArgs {
            gamma: norm.gamma,
            normed: norm.output,
            epsilon: norm.epsilon,
            ..PackRowArgs::default()
        }
    }

    /// The same, packed as panels.
    pub(super) fn panels(self, to: &PanelTarget) -> PackRowArgs {
        PackRowArgs {
            packed: to.panels.map(|panel| panel.0),
            row_scales: to.row_scales,
            panel_rows: to.rows,
            panel_orders: to.panels.map(|panel| panel.1),
            ..self
        }
    }
}

/// Where rows are packed as panels: `rows` padded rows in up to two orders, given as address and order, and a
/// scale for each row.
#[derive(Clone, Copy, Debug)]
pub(super) struct PanelTarget {
    pub(super) panels: [(u64, u32); K_ORDERS],
    pub(super) row_scales: u64,
    pub(super) rows: u32,
}

impl PanelTarget {
    /// The panels in an order; null if there are none.
    pub(super) fn of(&self, order: u32) -> u64 {
        self.panels.iter().find(|panel| panel.0 > 0 && panel.1 == order).map_or(0, |panel| panel.0)
    }
}
