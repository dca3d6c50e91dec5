//! Launches of the small-M GEMM by expert id (`expert_small_m.cu`), for decode batches: a launch that sorts
//! the pairs by expert and packs x, then one GEMM over tiles of pairs of one expert. The number of launches
//! does not depend on the routing.

use fulmen_core::{DType, ExpertDownCall, ExpertGateUpCall, GatedActivation as Activation, WeightArg};

use super::expert_sort::{ExpertSortArgs, ExpertTile, SORT_THREADS, max_tiles};
use super::experts::GatedActivation;
use super::f16_fragments::{K_CHUNK, K_CONTIGUOUS, K_INTERLEAVED};
use super::pack_row::PackRowArgs;
use super::{Launched, expert_generic, type_name, wide};
use crate::device::Caps;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

const WARPS: u32 = 8;
const THREADS: u32 = 32 * WARPS;
/// Rows of W of a warp.
const WARP_ROWS: u32 = 16;
/// Of a packed row of x.
const ROW_CHUNK_BYTES: u32 = 2 * K_CHUNK;
const ROW_PADDING: u32 = 32;

kernel_args! {
    file: "expert_small_m.cu";
    constants: [WARPS, THREADS, WARP_ROWS, ROW_CHUNK_BYTES, ROW_PADDING];

    struct ExpertPrepareArgs {
        sort: ExpertSortArgs,
        x: DevicePtr,
        row: PackRowArgs,
        k: u32,
        unused: u32,
    }

    struct ExpertSmallMArgs {
        x: DevicePtr,
        row_scales: DevicePtr,
        w: [DevicePtr; 2],
        bias: [DevicePtr; 2],
        order: DevicePtr,
        tiles: DevicePtr,
        weights: DevicePtr,
        out: DevicePtr,
        activation: GatedActivation,
        n: u32,
        k: u32,
        row_bytes: u32,
        k_chunks: u32,
        x_rows: u32,
        pairs_per_row_of_x: u32,
    }
}

/// Pairs of a tile: what there are kernels for.
const TILE_PAIRS: [u32; 2] = [8, 16];

/// The most pairs for each expert, on average, where this is faster than the GEMM for large groups.
const MAX_PAIRS_PER_EXPERT: u32 = 8;

/// What lies in static shared memory, rounded up.
const STATIC_BYTES: u32 = 512;

/// How the kernel reads weights of a type.
struct Format {
    /// Bytes of a row in a K chunk.
    chunk_bytes: u32,
    /// Whether a chunk is whole 16-byte vectors.
    aligned: bool,
    k_order: usize,
}

impl Format {
    fn of(dtype: DType) -> Option<Format> {
        let (aligned, k_order) = match dtype {
            DType::Q4_K | DType::Q5_K => (true, K_CONTIGUOUS),
            DType::Q6_K | DType::Q8_0 => (false, K_INTERLEAVED),
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => (false, K_CONTIGUOUS),
            DType::MXFP4 | DType::IQ4_NL | DType::IQ4_XS => (false, K_CONTIGUOUS),
            _ => return None,
        };
        let chunk_bytes = u32::try_from(dtype.bytes(K_CHUNK as usize).ok()?).ok()?;
        Some(Format { chunk_bytes, aligned, k_order })
    }

    /// Bytes of the rings of a block: 16-byte vectors that cover each row's chunk.
    fn ring_bytes(&self, caps: Caps) -> u32 {
        let vectors = if self.aligned { self.chunk_bytes / 16 } else { (self.chunk_bytes + 29) / 16 };
        let stage = WARP_ROWS * vectors * 16;
        WARPS * stage * if stage <= 3072 && caps.capability >= 90 { 4 } else { 3 }
    }
}

/// What a call says of its pairs.
struct CallPairs {
    m: u32,
    top: u32,
    n_experts: u32,
    k: u32,
    x: u64,
    x_by_pair: bool,
    ids: u64,
    batch_invariant: bool,
}

/// The pairs of a call, the rows of x that they multiply, and how they are divided.
struct Pairs {
    x: u64,
    x_rows: u32,
    pairs_per_row_of_x: u32,
    ids: u64,
    pairs: u32,
    top: u32,
    n_experts: u32,
    k: u32,
    /// Of a row of the weights.
    row_bytes: u32,
    tile_pairs: u32,
    shared: u32,
    k_order: usize,
}

impl Pairs {
    /// `None` if the kernel does not take weights of this type, or so many pairs.
    fn new(caps: Caps, weights: &[WeightArg], call: CallPairs) -> Option<Pairs> {
        let CallPairs { m, top, n_experts, k, x, x_by_pair, ids, batch_invariant } = call;
        let dtype = weights.first()?.dtype;
        let format = Format::of(dtype)?;
        let pairs = m.checked_mul(top)?;
        let taken = weights.iter().all(|weight| weight.dtype == dtype && weight.ptr.is_multiple_of(16))
            && k.is_multiple_of(4)
            && wide(&[x]) == 1
            && (batch_invariant || pairs <= n_experts.saturating_mul(MAX_PAIRS_PER_EXPERT));
        // Tiles are as wide as most experts need.
        let wanted = if pairs <= 2 * n_experts { 8 } else { 16 };
        let shared = |tile: u32| {
            format.ring_bytes(caps) + tile * (k.div_ceil(K_CHUNK) * ROW_CHUNK_BYTES + ROW_PADDING)
        };
        let fits = |tile: &&u32| **tile <= wanted && shared(**tile) + STATIC_BYTES <= caps.shared_bytes;
        let &tile_pairs = TILE_PAIRS.iter().rev().find(fits).filter(|_| taken)?;
        let (x_rows, pairs_per_row_of_x) = if x_by_pair { (pairs, 1) } else { (m, top) };
        let (shared, k_order) = (shared(tile_pairs), format.k_order);
        let row_bytes = u32::try_from(dtype.bytes(k as usize).ok()?).ok()?;
        Some(Pairs {
            x,
            x_rows,
            pairs_per_row_of_x,
            ids,
            pairs,
            top,
            n_experts,
            k,
            row_bytes,
            tile_pairs,
            shared,
            k_order,
        })
    }

    fn max_tiles(&self) -> usize {
        max_tiles(self.pairs as usize, self.n_experts, self.tile_pairs)
    }

    /// Where the parts of the scratch memory begin, and its bytes: the sorted pairs at 0, the tiles, the
    /// scales of rows, packed x.
    fn scratch(&self) -> [usize; 4] {
        let tiles = (self.pairs as usize * 4).next_multiple_of(256);
        let scales = tiles + (self.max_tiles() * size_of::<ExpertTile>()).next_multiple_of(256);
        let x = scales + (self.x_rows as usize * 4).next_multiple_of(256);
        [tiles, scales, x, x + self.x_rows as usize * (self.k.div_ceil(K_CHUNK) * ROW_CHUNK_BYTES) as usize]
    }

    /// Sorts the pairs, packs x, and multiplies. `args` has what the call says.
    fn launch(&self, queue: &mut Queue, scratch: u64, dtype: DType, args: ExpertSmallMArgs) -> Launched {
        let [tiles, scales, x, _] = self.scratch();
        let at = |offset: usize| scratch + offset as u64;
        let max_tiles = queue.rows("expert_small_m", self.max_tiles() as u64)?;
        let mut row =
            PackRowArgs { row_scales: at(scales), panel_rows: self.x_rows, ..PackRowArgs::new(None) };
        row.packed[self.k_order] = at(x);
        let sort = ExpertSortArgs {
            ids: self.ids,
            order: scratch,
            tiles: at(tiles),
            fault: queue.fault(),
            pairs: self.pairs,
            top_k: self.top,
            n_experts: self.n_experts,
            max_tiles,
            tile_pairs: self.tile_pairs,
            unused: 0,
        };
        let prepare = ExpertPrepareArgs { sort, x: self.x, row, k: self.k, unused: 0 };
        let blocks = queue.blocks("expert_prepare", u64::from(self.x_rows) + 1)?;
        queue.launch(&Launch::new("expert_small_m", "expert_prepare", blocks, SORT_THREADS), &prepare)?;
        let args = ExpertSmallMArgs {
            x: at(x),
            row_scales: at(scales),
            order: scratch,
            tiles: at(tiles),
            k: self.k,
            row_bytes: self.row_bytes,
            k_chunks: self.k.div_ceil(K_CHUNK),
            x_rows: self.x_rows,
            pairs_per_row_of_x: self.pairs_per_row_of_x,
            ..args
        };
        let rows = if args.w[1] == 0 { WARPS * WARP_ROWS } else { WARPS / 2 * WARP_ROWS };
        let entry = format!("expert_small_m_{}_{}", type_name(dtype), self.tile_pairs);
        let blocks = queue.blocks(&entry, args.n.div_ceil(rows).into())?;
        let launch =
            Launch::new("expert_small_m", &entry, blocks, THREADS).rows(max_tiles).shared(self.shared);
        queue.launch(&launch, &args)?;
        Ok(2)
    }
}

/// Launches a gate-up, if the kernel takes it.
pub(super) fn launch_gate_up(queue: &mut Queue, call: &ExpertGateUpCall) -> Option<Launched> {
    let &ExpertGateUpCall { m, top, n_experts, k, input: x, ids, batch_invariant, .. } = call;
    let of_call = CallPairs { m, top, n_experts, k, x, x_by_pair: false, ids, batch_invariant };
    let pairs = Pairs::new(queue.caps(), &[call.gate, call.up], of_call)?;
    let launched = queue.scratch(pairs.scratch()[3]).map_err(Into::into).and_then(|scratch| {
        let args = ExpertSmallMArgs {
            w: [call.gate.ptr, call.up.ptr],
            bias: [call.gate_bias, call.up_bias].map(|bias| bias.unwrap_or(0)),
            out: call.output,
            activation: call.activation.into(),
            n: call.n(),
            ..bytemuck::Zeroable::zeroed()
        };
        pairs.launch(queue, scratch, call.gate.dtype, args)
    });
    Some(launched)
}

/// Launches a down projection and the sum of the results of a row's experts, if the kernel takes it.
pub(super) fn launch_down(queue: &mut Queue, call: &ExpertDownCall) -> Option<Launched> {
    let &ExpertDownCall { m, top, n_experts, k, input: x, ids, batch_invariant, .. } = call;
    let of_call = CallPairs { m, top, n_experts, k, x, x_by_pair: true, ids, batch_invariant };
    let pairs = Pairs::new(queue.caps(), &[call.down], of_call)?;
    let results = (pairs.pairs as usize * call.n() as usize * 4).next_multiple_of(256);
    let launched = queue.scratch(results + pairs.scratch()[3]).map_err(Into::into).and_then(|scratch| {
        let args = ExpertSmallMArgs {
            w: [call.down.ptr, 0],
            bias: [call.bias.unwrap_or(0), 0],
            weights: call.weights,
            out: scratch,
            activation: Activation::SwiGlu.into(),
            n: call.n(),
            ..bytemuck::Zeroable::zeroed()
        };
        let launched = pairs.launch(queue, scratch + results as u64, call.down.dtype, args)?;
        Ok(launched + expert_generic::launch_sum(queue, call, scratch)?)
    });
    Some(launched)
}
