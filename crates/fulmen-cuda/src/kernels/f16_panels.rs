//! f16 activations packed as wgmma panels, the activation operand of the mixed-input GEMM
//! (`f16_panels.cuh`).

use fulmen_core::{ActivationForm, DType};

use super::f16_fragments::{K_CHUNK, K_ORDERS};
use super::pack_row::PanelTarget;
use crate::forward::FormKind;
use crate::layout::kernel_args;

/// Orders of the k-steps within a chunk, named after a format that needs them.
pub(super) const PANEL_Q4_K: u32 = 0;
pub(super) const PANEL_Q4_0: u32 = 1;
pub(super) const PANEL_Q6_K: u32 = 2;
pub(super) const PANEL_Q8_0: u32 = 3;

kernel_args! {
    file: "f16_panels.cuh";
    constants: [PANEL_Q4_K, PANEL_Q4_0, PANEL_Q6_K, PANEL_Q8_0];
}

/// The order that a weight format needs: `PANEL_ORDER` of the formats in `gemm_mixed_input_formats.cuh`.
pub(super) fn panel_order(dtype: DType) -> Option<u32> {
    match dtype {
        DType::Q4_K | DType::Q5_K => Some(PANEL_Q4_K),
        DType::Q6_K => Some(PANEL_Q6_K),
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => Some(PANEL_Q4_0),
        DType::Q8_0 => Some(PANEL_Q8_0),
        _ => None,
    }
}

/// All orders.
pub(super) const PANEL_ORDERS: [u32; 4] = [PANEL_Q4_K, PANEL_Q4_0, PANEL_Q6_K, PANEL_Q8_0];

/// Padded numbers of rows that there are kernels for.
pub(super) const ROWS: [u32; 5] = [32, 64, 128, 192, 256];

/// `m` rows, padded to what there are kernels for.
pub(super) fn padded_rows(m: u32) -> Option<u32> {
    ROWS.into_iter().find(|&rows| rows >= m)
}

/// Where panels lie behind the row scales of as many padded rows.
pub(super) fn after_row_scales(rows: u32) -> u64 {
    (u64::from(rows) * 4).next_multiple_of(1024)
}

/// One or two orders in which the same rows are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PanelOrders(u32);

impl PanelOrders {
    /// `None` without an order, or with more than kernels pack at once.
    pub(super) fn of(orders: impl Iterator<Item = u32>) -> Option<PanelOrders> {
        let set = orders.fold(0u32, |set, order| set | 1 << order);
        (1..=K_ORDERS as u32).contains(&set.count_ones()).then_some(PanelOrders(set))
    }

    /// All that a form may have.
    pub(super) fn all() -> impl Iterator<Item = PanelOrders> {
        (0..1 << PANEL_ORDERS.len())
            .filter_map(|set| PanelOrders::of((0..32).filter(move |at| set >> at & 1 == 1)))
    }

    fn iter(self) -> impl Iterator<Item = u32> {
        PANEL_ORDERS.into_iter().filter(move |order| self.0 >> order & 1 == 1)
    }

    /// Bytes of `rows` padded rows of `k` columns with their scales.
    pub(super) fn bytes(self, rows: u32, k: u32) -> u64 {
        after_row_scales(rows) + u64::from(self.0.count_ones()) * panel_bytes(rows, k)
    }

    /// Where the scales and the panels of `rows` padded rows of `k` columns lie, from an address on.
    pub(super) fn at(self, address: u64, rows: u32, k: u32) -> PanelTarget {
        let mut panels = [(0, 0); K_ORDERS];
        for (index, (to, order)) in panels.iter_mut().zip(self.iter()).enumerate() {
            *to = (address + after_row_scales(rows) + index as u64 * panel_bytes(rows, k), order);
        }
        PanelTarget { panels, row_scales: address, rows }
    }
}

/// The form in which attention and the mixed-input GEMM forward their output: row scales, then panels. Only
/// whole chunks, as no one writes the padding of a row.
pub(super) fn scaled_form(x: u64, m: u32, width: u32, orders: PanelOrders) -> Option<ActivationForm> {
    let rows = padded_rows(m).filter(|_| width > 0 && width.is_multiple_of(K_CHUNK))?;
    let bytes = usize::try_from(orders.bytes(rows, width)).ok()?;
    Some(FormKind::ScaledPanels(orders.0).of(x, [m, width], bytes, None))
}

/// Bytes of `rows` padded rows of `k` columns.
pub(super) fn panel_bytes(rows: u32, k: u32) -> u64 {
    u64::from(k.div_ceil(K_CHUNK)) * u64::from(K_CHUNK) * u64::from(rows) * 2
}
