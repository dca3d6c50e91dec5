//! Launches of the mixed-input GEMM: more than 16 rows of activations with block-quantized weights on wgmma
//! (`gemm_mixed_input.cu`, which explains the kernel).
//!
//! A call packs the activations as f16 panels, after its RMS norm if it has one, unless the previous kernel
//! has forwarded them so. It then launches one GEMM for the weights of each format, or for two formats that
//! have a kernel for both, and a reduction where blocks share tiles. The reduction of one result also
//! computes the norm that follows and packs the rows for the next call.

mod args;
mod reduce;

use fulmen_core::{ActivationForm, BackendError, DType};

use self::args::{
    CONSUMER_WARPS, GemmMixedInputArgs, GemmMixedInputPairArgs, PRODUCER_WARP_ROWS, REDUCE_ROWS,
    SHARED_BYTES, TILE_ROWS, WARP_ROWS,
};
use self::reduce::RowEnd;
use super::even_split::{EvenSplit, MAX_ITEMS};
use super::f16_fragments::K_CHUNK;
use super::f16_panels::{PanelOrders, ROWS, padded_rows, panel_order, scaled_form};
use super::gemm_weight::{GemmWeight, MAX_WEIGHTS};
use super::pack_f16_fragments::launch_panels;
use super::pack_row::PanelTarget;
use super::small_m::{FusedNorm, LaunchGroup, MatmulInput};
use super::{Launched, type_name};
use crate::device::Caps;
use crate::forward::Forwarding;
use crate::queue::{Launch, Queue};
use crate::tensor_map::TensorMap;

/// The most rows of activations.
pub(super) const MAX_ROWS: u32 = ROWS[ROWS.len() - 1];

/// The fewest padded rows of a launch of two GEMMs.
const PAIR_ROWS: u32 = 64;

/// Whether the device has these kernels.
pub(super) fn supported(caps: Caps) -> bool {
    caps.has_wgmma() && caps.shared_bytes >= SHARED_BYTES
}

/// Launches all groups, if these kernels take them. `norm` is that of the result, for one that
/// [`ends_rows`].
pub(super) fn run(
    queue: &mut Queue,
    input: &MatmulInput,
    groups: &[LaunchGroup<'_>],
    norm: Option<FusedNorm>,
    forwarding: &Forwarding<'_>,
) -> Option<Launched> {
    let plan = Plan::new(input, groups, queue.caps().multiprocessors)?;
    let end = match forwarded_output(input.m, forwarding) {
        _ if !reduce::takes(&plan.gemms) => None,
        None if norm.is_none() => None,
        panels => Some(RowEnd { norm, panels }),
    };
    let forwarded = accepted_form(input, groups).and_then(|form| forwarding.input(&form));
    Some(plan.launch(queue, input, forwarded, end))
}

/// The form in which the activations can be forwarded, unless there is a norm to compute.
pub(super) fn accepted_form(input: &MatmulInput, groups: &[LaunchGroup<'_>]) -> Option<ActivationForm> {
    let orders: Option<Vec<u32>> =
        groups.iter().flat_map(by_format).map(|group| panel_order(group.format()?)).collect();
    scaled_form(input.x, input.m, input.k, PanelOrders::of(orders?.into_iter())?)
        .filter(|_| input.norm.is_none())
}

/// Whether the reduction finishes whole rows of the result, so that it can norm and forward them.
pub(super) fn ends_rows(caps: Caps, input: &MatmulInput, groups: &[LaunchGroup<'_>]) -> bool {
    Plan::new(input, groups, caps.multiprocessors).is_some_and(|plan| reduce::takes(&plan.gemms))
}

/// Whether a result at `output` that [`ends_rows`], or its norm's, can be written in this form.
pub(super) fn forwards(output: u64, m: u32, width: u32, activation: &ActivationForm) -> bool {
    PanelOrders::all().any(|orders| scaled_form(output, m, width, orders) == Some(*activation))
}

/// Where the result, or its norm's, is to be packed.
fn forwarded_output(m: u32, forwarding: &Forwarding<'_>) -> Option<PanelTarget> {
    let rows = padded_rows(m)?;
    PanelOrders::all().find_map(|orders| {
        let mut outputs = forwarding.outputs.iter();
        let output = outputs.find(|output| {
            let ActivationForm { ptr, rows, width, .. } = output.activation;
            scaled_form(ptr, rows, width, orders) == Some(output.activation)
        })?;
        Some(orders.at(output.ptr, rows, output.activation.width))
    })
}

/// A group with two formats as two groups.
fn by_format<'a>(group: &LaunchGroup<'a>) -> Vec<LaunchGroup<'a>> {
    let (first, second) = group.matmuls.split_at(group.first_format);
    [first, second]
        .into_iter()
        .filter(|matmuls| !matmuls.is_empty())
        .map(|matmuls| LaunchGroup { matmuls, first_format: matmuls.len(), ..*group })
        .collect()
}

/// One GEMM, but for what depends on the number of rows of x.
#[derive(Debug)]
struct Gemm {
    format: DType,
    order: u32,
    weights: [GemmWeight; MAX_WEIGHTS],
    n_weights: u32,
    gate_up: bool,
    gelu: u32,
    tiles: u32,
    k_chunks: u32,
    blocks: u32,
}

impl Gemm {
    /// `None` if these kernels do not take the weights.
    fn new(k: u32, group: &LaunchGroup<'_>, sms: u32) -> Option<Gemm> {
        let format = group.format()?;
        let mut weights = [GemmWeight::default(); MAX_WEIGHTS];
        let (mut tiles, tile_rows) = (0, if group.gate_up { TILE_ROWS / 2 } else { TILE_ROWS });
        for (index, (to, matmul)) in weights.iter_mut().zip(group.matmuls).enumerate() {
            if uses_tma(format) && !matmul.weight.ptr.is_multiple_of(16) {
                return None;
            }
            *to = GemmWeight::new(matmul, k, tiles)?;
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
            gelu: group.gelu(),
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

    /// Bytes of the weights, rows padded to whole tiles and chunks.
    fn bytes(&self) -> u64 {
        let chunk = self.format.bytes(K_CHUNK as usize).unwrap_or(0) as u64;
        u64::from(self.tiles * self.k_chunks) * u64::from(TILE_ROWS) * chunk
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

    /// `x` and `row_scales`: addresses of the panels and of their rows' scales.
    fn args(
        &self,
        queue: &Queue,
        input: &MatmulInput,
        rows: u32,
        [x, row_scales, partials]: [u64; 3],
    ) -> Result<GemmMixedInputArgs, BackendError> {
        Ok(GemmMixedInputArgs {
            tensor_maps: self.tensor_maps(queue)?,
            x,
            row_scales,
            partials,
            items: self.items(),
            m: input.m,
            k_blocks: input.k.div_ceil(32),
            k_chunks: self.k_chunks,
            n_weights: self.n_weights,
            gate_up: self.gate_up.into(),
            padded_rows: rows,
            weights: self.weights,
            gelu: self.gelu,
            first_block: 0,
            unused: [0; 12],
        })
    }

    fn launch(
        &self,
        queue: &mut Queue,
        input: &MatmulInput,
        rows: u32,
        addresses: [u64; 3],
        end: Option<RowEnd>,
    ) -> Launched {
        let args = self.args(queue, input, rows, addresses)?;
        let entry = format!("gemm_mixed_input_{}_{rows}", type_name(self.format));
        let launch = Launch::new("gemm_mixed_input", &entry, self.blocks, threads(rows)).shared(SHARED_BYTES);
        queue.launch(&launch, &args)?;
        if let Some(end) = end {
            end.launch(queue, &args)?;
            return Ok(2);
        }
        if !self.shares_tiles() {
            return Ok(1);
        }
        let threads = 32 * REDUCE_ROWS;
        let reduce = Launch::new("gemm_mixed_input_reduce", "gemm_mixed_input_reduce", self.tiles, threads);
        queue.launch(&reduce.rows(input.m.div_ceil(REDUCE_ROWS)), &args)?;
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

/// Whether a kernel has GEMMs of both formats for so many padded rows.
fn has_pair(first: DType, second: DType, rows: u32) -> bool {
    matches!(first, DType::Q4_K | DType::Q5_K) && second == DType::Q6_K && rows >= PAIR_ROWS
}

/// Divides the blocks of one launch between two GEMMs, by the bytes of their weights.
fn share_blocks(gemms: &mut [Gemm], sms: u32) {
    let work: Vec<u64> = gemms.iter().map(Gemm::bytes).collect();
    let [first, second] = gemms else { return };
    let sms = u64::from(sms).max(2);
    let of_first = (sms * work[0] / (work[0] + work[1]).max(1)).clamp(1, sms - 1);
    first.blocks = first.blocks.min(of_first as u32);
    second.blocks = second.blocks.min((sms - of_first) as u32);
}

/// The GEMMs of a call, and their scratch memory: panels of the activations, partials.
struct Plan {
    gemms: Vec<Gemm>,
    /// Whether the two GEMMs are one launch.
    paired: bool,
    /// Padded rows of a launch.
    rows: u32,
    orders: PanelOrders,
    /// The offset of the partials.
    partials: u64,
    bytes: u64,
}

impl Plan {
    /// `None` if these kernels do not take the call, or its formats need more than two orders.
    fn new(input: &MatmulInput, groups: &[LaunchGroup<'_>], sms: u32) -> Option<Plan> {
        let rows = padded_rows(input.m)?;
        let gemms: Option<Vec<Gemm>> =
            groups.iter().flat_map(by_format).map(|group| Gemm::new(input.k, &group, sms)).collect();
        let mut gemms = gemms?;
        let orders = PanelOrders::of(gemms.iter().map(|gemm| gemm.order))?;
        let paired =
            matches!(&gemms[..], [a, b] if !a.gate_up && !b.gate_up && has_pair(a.format, b.format, rows));
        if paired {
            share_blocks(&mut gemms, sms);
        }
        let partials = orders.bytes(rows, input.k);
        let bytes_of = gemms.iter().map(|gemm| gemm.partial_bytes(rows));
        let bytes = partials + if paired { bytes_of.sum() } else { bytes_of.max()? };
        Some(Plan { gemms, paired, rows, orders, partials, bytes })
    }

    /// `forwarded`: where the activations lie, if they were forwarded. `end`: what happens to the rows of the
    /// result.
    fn launch(
        &self,
        queue: &mut Queue,
        input: &MatmulInput,
        forwarded: Option<u64>,
        end: Option<RowEnd>,
    ) -> Launched {
        let base = queue.scratch(usize::try_from(self.bytes).unwrap_or(usize::MAX))?;
        let x = self.orders.at(forwarded.unwrap_or(base), self.rows, input.k);
        let mut launched = 0;
        if forwarded.is_none() {
            launch_panels(queue, input, &x)?;
            launched += 1;
        }
        let addresses = |gemm: &Gemm| [x.of(gemm.order), x.row_scales, base + self.partials];
        if let [first, second] = &self.gemms[..]
            && self.paired
        {
            return Ok(launched + self.launch_pair(queue, input, first, second, addresses)?);
        }
        for gemm in &self.gemms {
            launched += gemm.launch(queue, input, self.rows, addresses(gemm), end)?;
        }
        Ok(launched)
    }

    /// Both GEMMs in one launch, and the reduction of both.
    fn launch_pair(
        &self,
        queue: &mut Queue,
        input: &MatmulInput,
        first: &Gemm,
        second: &Gemm,
        addresses: impl Fn(&Gemm) -> [u64; 3],
    ) -> Launched {
        let rows = self.rows;
        let a = first.args(queue, input, rows, addresses(first))?;
        let mut b = second.args(queue, input, rows, addresses(second))?;
        b.partials += first.partial_bytes(rows);
        b.first_block = first.blocks;
        let args = GemmMixedInputPairArgs { gemms: [a, b], tiles: first.tiles, unused: [0; 15] };
        let [from, to] = [first, second].map(|gemm| type_name(gemm.format));
        let entry = format!("gemm_mixed_input_{from}_{to}_{rows}");
        let blocks = first.blocks + second.blocks;
        let launch = Launch::new("gemm_mixed_input", &entry, blocks, threads(rows)).shared(SHARED_BYTES);
        queue.launch(&launch, &args)?;
        if !first.shares_tiles() && !second.shares_tiles() {
            return Ok(1);
        }
        let entry = "gemm_mixed_input_reduce_pair";
        let tiles = first.tiles + second.tiles;
        let reduce = Launch::new("gemm_mixed_input_reduce", entry, tiles, 32 * REDUCE_ROWS);
        queue.launch(&reduce.rows(input.m.div_ceil(REDUCE_ROWS)), &args)?;
        Ok(2)
    }
}
