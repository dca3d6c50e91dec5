//! Launches of the mixed-input GEMM: more than 16 rows of activations with block-quantized weights on wgmma
//! (`gemm_mixed_input.cu`, which explains the kernel).
//!
//! A call packs the activations as f16 panels, after its RMS norm if it has one, and then launches one GEMM
//! for the weights of each format, and a reduction where blocks share tiles.

mod args;

use fulmen_core::{BackendError, DType};

use self::args::{
    CONSUMER_WARPS, GemmMixedInputArgs, MixedInputWeight, PRODUCER_WARP_ROWS, REDUCE_TILES, SHARED_BYTES,
    TILE_ROWS, WARP_ROWS,
};
use super::even_split::{EvenSplit, MAX_ITEMS};
use super::f16_fragments::{K_CHUNK, K_ORDERS};
use super::f16_panels::{panel_bytes, panel_order};
use super::pack_f16_fragments::{PanelTarget, launch_panels};
use super::small_m::{LaunchGroup, MAX_WEIGHTS, Matmul, MatmulInput};
use super::{Launched, type_name};
use crate::device::Caps;
use crate::queue::{Launch, Queue};
use crate::tensor_map::TensorMap;

/// Padded numbers of rows that there are kernels for.
const ROWS: [u32; 5] = [32, 64, 128, 192, 256];

/// The most rows of activations.
pub(super) const MAX_ROWS: u32 = ROWS[ROWS.len() - 1];

/// Whether the device has these kernels.
pub(super) fn supported(caps: Caps) -> bool {
    caps.has_wgmma() && caps.shared_bytes >= SHARED_BYTES
}

/// Launches all groups, if these kernels take them.
pub(super) fn run(queue: &mut Queue, input: &MatmulInput, groups: &[LaunchGroup<'_>]) -> Option<Launched> {
    let rows = ROWS.into_iter().find(|&padded| padded >= input.m)?;
    let sms = queue.caps().multiprocessors;
    let gemms: Option<Vec<Gemm>> =
        groups.iter().flat_map(by_format).map(|group| Gemm::new(input.k, &group, sms)).collect();
    let gemms = gemms?;
    let scratch = Scratch::new(input.k, rows, &gemms)?;
    Some(launch(queue, input, &gemms, &scratch))
}

/// A group with two formats as two groups.
fn by_format<'a>(group: &LaunchGroup<'a>) -> Vec<LaunchGroup<'a>> {
    let (first, second) = group.matmuls.split_at(group.first_format);
    [first, second]
        .into_iter()
        .filter(|matmuls| !matmuls.is_empty())
        .map(|matmuls| LaunchGroup { matmuls, first_format: matmuls.len(), gate_up: group.gate_up })
        .collect()
}

/// One GEMM, but for what depends on the number of rows of x.
#[derive(Debug)]
struct Gemm {
    format: DType,
    order: u32,
    weights: [MixedInputWeight; MAX_WEIGHTS],
    n_weights: u32,
    gate_up: bool,
    tiles: u32,
    k_chunks: u32,
    blocks: u32,
}

impl Gemm {
    /// `None` if these kernels do not take the weights.
    fn new(k: u32, group: &LaunchGroup<'_>, sms: u32) -> Option<Gemm> {
        let format = group.matmuls.first()?.weight.dtype;
        let mut weights = [MixedInputWeight::default(); MAX_WEIGHTS];
        let (mut tiles, tile_rows) = (0, if group.gate_up { TILE_ROWS / 2 } else { TILE_ROWS });
        for (index, (to, matmul)) in weights.iter_mut().zip(group.matmuls).enumerate() {
            if uses_tma(format) && !matmul.weight.ptr.is_multiple_of(16) {
                return None;
            }
            *to = weight(matmul, k, tiles)?;
            if !group.gate_up || index == 0 {
                tiles += matmul.weight.rows.div_ceil(tile_rows);
            }
        }
        let k_chunks = k.div_ceil(K_CHUNK);
        let items = u64::from(tiles) * u64::from(k_chunks);
        let blocks = u32::try_from(items.min(sms.into())).ok()?;
        let n_weights = if group.gate_up { 1 } else { group.matmuls.len() as u32 };
        let (order, gate_up) = (panel_order(format)?, group.gate_up);
        (items < MAX_ITEMS).then_some(Gemm {
            format,
            order,
            weights,
            n_weights,
            gate_up,
            tiles,
            k_chunks,
            blocks,
        })
    }

    fn items(&self) -> EvenSplit {
        EvenSplit::new(self.tiles * self.k_chunks, self.blocks)
    }

    /// Whether some tile is computed by several blocks.
    fn shares_tiles(&self) -> bool {
        let items = self.items();
        items.extra > 0 || !items.each.is_multiple_of(self.k_chunks)
    }

    /// Bytes of the partials of `rows` padded rows: two tiles per block.
    fn partial_bytes(&self, rows: u32) -> u64 {
        u64::from(self.blocks) * 2 * u64::from(CONSUMER_WARPS * WARP_ROWS) * u64::from(rows) * 4
    }

    fn tensor_maps(&self, queue: &Queue) -> Result<[TensorMap; MAX_WEIGHTS], BackendError> {
        let mut maps = [TensorMap::default(); MAX_WEIGHTS];
        if !uses_tma(self.format) {
            return Ok(maps);
        }
        let count = if self.gate_up { 2 } else { self.n_weights as usize };
        let rows = if self.gate_up { WARP_ROWS / 2 } else { WARP_ROWS };
        let width = self.format.bytes(K_CHUNK as usize).map_or(0, |bytes| bytes as u32);
        for (map, weight) in maps.iter_mut().zip(&self.weights).take(count) {
            *map = queue.tensor_map(weight.data, (weight.row_bytes, weight.rows), (width, rows))?;
        }
        Ok(maps)
    }

    fn launch(&self, queue: &mut Queue, input: &MatmulInput, scratch: &Scratch, base: u64) -> Launched {
        let args = GemmMixedInputArgs {
            tensor_maps: self.tensor_maps(queue)?,
            x: base + scratch.panels_of(self.order),
            row_scales: base,
            partials: base + scratch.partials,
            items: self.items(),
            m: input.m,
            k_blocks: input.k.div_ceil(32),
            k_chunks: self.k_chunks,
            n_weights: self.n_weights,
            gate_up: self.gate_up.into(),
            n_tiles_x: scratch.rows / 8,
            weights: self.weights,
            unused: [0; 14],
        };
        let entry = format!("gemm_mixed_input_{}_{}", type_name(self.format), scratch.rows);
        let launch =
            Launch::new("gemm_mixed_input", &entry, self.blocks, threads(scratch.rows)).shared(SHARED_BYTES);
        queue.launch(&launch, &args)?;
        if !self.shares_tiles() {
            return Ok(1);
        }
        let reduce =
            Launch::new("gemm_mixed_input", "gemm_mixed_input_reduce", self.tiles, 32 * CONSUMER_WARPS);
        queue.launch(&reduce.rows(args.n_tiles_x / REDUCE_TILES), &args)?;
        Ok(2)
    }
}

/// Threads of a block for `rows` padded rows.
fn threads(rows: u32) -> u32 {
    32 * CONSUMER_WARPS + if rows <= PRODUCER_WARP_ROWS { 32 } else { 128 }
}

/// Whether weights are loaded as TMA tiles: `ALIGNED` of the formats.
fn uses_tma(format: DType) -> bool {
    matches!(format, DType::Q4_K | DType::Q5_K)
}

fn weight(matmul: &Matmul, k: u32, first_tile: u32) -> Option<MixedInputWeight> {
    Some(MixedInputWeight {
        data: matmul.weight.ptr,
        out: matmul.out,
        bias: matmul.bias,
        residual: matmul.residual,
        rows: matmul.weight.rows,
        row_bytes: matmul.row_bytes(k)?,
        first_tile,
        unused: 0,
    })
}

/// Scratch memory: row scales, panels in each order, partials.
#[derive(Debug, PartialEq)]
struct Scratch {
    /// Padded rows of a launch.
    rows: u32,
    /// The offsets of the panels, and their orders.
    panels: [(u64, u32); K_ORDERS],
    partials: u64,
    bytes: u64,
}

impl Scratch {
    /// `None` if the formats need more than two orders.
    fn new(k: u32, rows: u32, gemms: &[Gemm]) -> Option<Scratch> {
        let mut orders: Vec<u32> = gemms.iter().map(|gemm| gemm.order).collect();
        orders.sort_unstable();
        orders.dedup();
        if orders.is_empty() || orders.len() > K_ORDERS {
            return None;
        }
        let first = (u64::from(rows) * 4).next_multiple_of(1024);
        let mut panels = [(0, 0); K_ORDERS];
        for (index, (to, order)) in panels.iter_mut().zip(&orders).enumerate() {
            *to = (first + index as u64 * panel_bytes(rows, k), *order);
        }
        let partials = first + orders.len() as u64 * panel_bytes(rows, k);
        let bytes = partials + gemms.iter().map(|gemm| gemm.partial_bytes(rows)).max()?;
        Some(Scratch { rows, panels, partials, bytes })
    }

    fn panels_of(&self, order: u32) -> u64 {
        self.panels.iter().find(|panel| panel.0 > 0 && panel.1 == order).map_or(0, |panel| panel.0)
    }

    /// Where activations are packed to, with the scratch memory at `base`.
    fn target(&self, base: u64) -> PanelTarget {
        let panels = self.panels.map(|(at, order)| if at == 0 { (0, 0) } else { (base + at, order) });
        PanelTarget { panels, row_scales: base, rows: self.rows }
    }
}

fn launch(queue: &mut Queue, input: &MatmulInput, gemms: &[Gemm], scratch: &Scratch) -> Launched {
    let bytes = usize::try_from(scratch.bytes).unwrap_or(usize::MAX);
    let base = queue.scratch(bytes)?;
    launch_panels(queue, input, &scratch.target(base))?;
    let mut launched = 1;
    for gemm in gemms {
        launched += gemm.launch(queue, input, scratch, base)?;
    }
    Ok(launched)
}
