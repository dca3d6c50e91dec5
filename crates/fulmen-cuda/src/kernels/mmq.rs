//! Products of 2 to 16 rows with block-quantised weights: x goes to 8 bits once, by `codes8.cu`, and integer tensor cores
//! multiply.

use bytemuck::{Pod, Zeroable};

use super::Launched;
use super::few_rows::{Group, Input, MAX_PARTS, Product};
use crate::device::Caps;
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct CodesParams {
    x: u64,
    gamma: u64,
    normed: u64,
    out: u64,
    epsilon: f32,
    k: u32,
    columns: u32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
struct Part {
    weight: u64,
    out: u64,
    bias: u64,
    residual: u64,
    rows: u32,
    row_bytes: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
struct Args {
    x: u64,
    columns: u32,
    blocks: u32,
    chunks: u32,
    parts: u32,
    first_parts: u32,
    first_clusters: u32,
    clusters: u32,
    ranks: u32,
    per_stage: u32,
    row_stride: u32,
    depth: u32,
    unused: u32,
    part: [Part; MAX_PARTS],
}

// As in `mmq.cu` and `codes8.cuh`.
const WARPS: u32 = 15;
const TILE: u32 = 8;
const SLOTS: u32 = 3;
const MAX_DEPTH: u32 = 8;
const CHUNK: u32 = 256;

/// Bytes of a chunk of x.
const fn codes_bytes(rows: u32) -> u32 {
    rows * (CHUNK + 16) + 2 * 16 * rows
}

/// Static shared memory, rounded up.
const STATIC_BYTES: u32 = 1024;

/// Stages of the ring at least, and bytes of one that are enough.
const LEAST_DEPTH: u32 = 3;
const STAGE_BYTES: u32 = 26 * 1024;

/// Tiles for each block up to which two blocks share them, so that the last ones keep all busy.
const FEW_TILES: u32 = 8;

/// Rows of x that a launch takes: those that there are kernels for.
const ROWS: [u32; 2] = [8, 16];

/// All launches for all rows, if there is a plan for each.
pub(super) fn run(queue: &mut Queue, input: &Input, groups: &[Group<'_>]) -> Option<Launched> {
    let caps = queue.caps();
    // Where 16 rows of x take too much memory, eight at a time.
    let wanted = if input.m <= 8 { &ROWS[..1] } else { &[16, 8][..] };
    let (rows, plans) = wanted.iter().find_map(|&rows| {
        let plans: Option<Vec<_>> = groups.iter().map(|group| plan(caps, input.k, group, rows)).collect();
        Some((rows, plans?))
    })?;
    Some(launch(queue, input, &plans, rows))
}

#[derive(Debug, PartialEq)]
struct Plan {
    entry: String,
    shared: u32,
    args: Args,
}

/// A launch for `rows` rows, with the addresses of the first.
fn plan(caps: Caps, k: u32, group: &Group<'_>, rows: u32) -> Option<Plan> {
    let tiles =
        |products: &[Product]| products.iter().map(|part| part.weight.rows.div_ceil(TILE)).sum::<u32>();
    let few = tiles(group.parts) < FEW_TILES * caps.multiprocessors && k > CHUNK;
    let ranks = if few { [2, 1] } else { [1, 2] };
    ranks.into_iter().find_map(|ranks| plan_with(caps, k, group, rows, ranks))
}

/// A launch of clusters of `ranks` blocks.
fn plan_with(caps: Caps, k: u32, group: &Group<'_>, rows: u32, ranks: u32) -> Option<Plan> {
    let halves = if group.pair { 2 } else { 1 };
    let chunks = k.div_ceil(CHUNK);
    let mut part = [Part::default(); MAX_PARTS];
    let mut longest = 0;
    for (to, product) in part.iter_mut().zip(group.parts) {
        let (weight, row_bytes) = (product.weight, product.row_bytes(k)?);
        longest = longest.max(weight.dtype.bytes(CHUNK as usize).ok()? as u32);
        *to = Part {
            weight: weight.ptr,
            out: product.out,
            bias: product.bias,
            residual: product.residual,
            rows: weight.rows,
            row_bytes,
        };
    }
    let tiles = |parts: &[Part]| parts.iter().map(|part| part.rows.div_ceil(TILE)).sum::<u32>();
    let all = tiles(&part[..if group.pair { 1 } else { group.parts.len() }]);
    let clusters = (caps.multiprocessors / ranks).min(all);
    // Both formats of a mixed launch need a cluster.
    let first_clusters = group.share(clusters, k)?;
    let most_tiles = if group.mixed() {
        let (first, rest) = (tiles(&part[..group.first]), tiles(&part[group.first..group.parts.len()]));
        first.div_ceil(first_clusters).max(rest.div_ceil(clusters - first_clusters))
    } else {
        all.div_ceil(clusters)
    };
    let mine = chunks.div_ceil(ranks);
    let sums = halves * rows * TILE * 4;
    let kept = SLOTS * WARPS * sums + if ranks > 1 { most_tiles * sums } else { 0 };
    let x_bytes = mine.checked_mul(codes_bytes(rows))?;
    let room = caps.shared_bytes.checked_sub(STATIC_BYTES + kept)?.checked_sub(x_bytes)?;
    let stride = |per_stage: u32| (per_stage * longest + 32).next_multiple_of(128) + 16;
    let stage = |per_stage: u32| halves * TILE * stride(per_stage);
    let mut per_stage = mine;
    while stage(per_stage) > STAGE_BYTES.min(room / LEAST_DEPTH) {
        if per_stage == 1 {
            return None;
        }
        per_stage = per_stage.div_ceil(2);
    }
    let depth = (room / stage(per_stage)).min(MAX_DEPTH);
    let args = Args {
        x: 0,
        columns: 0,
        blocks: k.div_ceil(32),
        chunks,
        parts: group.parts.len() as u32,
        first_parts: group.first as u32,
        first_clusters,
        clusters,
        ranks,
        per_stage,
        row_stride: stride(per_stage),
        depth,
        unused: 0,
        part,
    };
    let entry = format!("mmq_{}_rows{rows}", group.name());
    Some(Plan { entry, shared: x_bytes + depth * stage(per_stage) + kept, args })
}

fn launch(queue: &mut Queue, input: &Input, plans: &[Plan], rows: u32) -> Launched {
    let (m, k) = (input.m, input.k);
    let chunks = k.div_ceil(CHUNK);
    let codes = queue.scratch(chunks as usize * codes_bytes(rows) as usize)?;
    let mut launched = 0;
    for row in (0..m).step_by(rows as usize) {
        let columns = (m - row).min(rows);
        // The address of a row of `width` floats; 0 stays 0.
        let at =
            |ptr: u64, width: u32| if ptr == 0 { 0 } else { ptr + u64::from(row) * u64::from(width) * 4 };
        let norm = input.norm;
        let params = CodesParams {
            x: at(norm.map_or(input.x, |norm| norm.input), k),
            gamma: norm.map_or(0, |norm| norm.gamma),
            normed: at(norm.map_or(0, |norm| norm.output), k),
            out: codes,
            epsilon: norm.map_or(0.0, |norm| norm.epsilon),
            k,
            columns,
            unused: 0,
        };
        // A norm needs its whole row.
        let blocks = if norm.is_some() { 1 } else { k.div_ceil(1024) };
        let entry = format!("codes8_rows{rows}");
        queue.launch(&Launch::new("codes8", &entry, blocks, 256).rows(rows), &params)?;
        for plan in plans {
            let mut args = Args { x: codes, columns, ..plan.args };
            for part in &mut args.part {
                part.out = at(part.out, part.rows);
                part.residual = at(part.residual, part.rows);
            }
            let blocks = args.clusters * args.ranks;
            let mut launch = Launch::new("mmq", &plan.entry, blocks, 32 * (WARPS + 1)).shared(plan.shared);
            launch.cluster = args.ranks;
            queue.launch(&launch, &args)?;
        }
        launched += 1 + plans.len();
    }
    Ok(launched)
}

#[cfg(test)]
mod tests {
    use fulmen_core::{DType, WeightArg};

    use super::*;

    const H200: Caps = Caps { capability: 90, multiprocessors: 132, shared_bytes: 232_448 };

    fn product(dtype: DType, rows: u32) -> Product {
        Product { weight: WeightArg { ptr: 256, dtype, rows }, out: 512, bias: 0, residual: 0 }
    }

    fn planned(parts: &[Product], first: usize, pair: bool, k: u32, rows: u32) -> Option<Plan> {
        plan(H200, k, &Group { parts, first, pair }, rows)
    }

    #[test]
    fn layers_of_real_models_have_a_plan() {
        use DType::{Q4_K, Q6_K, Q8_0};
        for rows in ROWS {
            for k in [2048, 2560, 3072, 4096, 5120, 8192] {
                for dtype in [Q4_K, Q6_K, Q8_0] {
                    let parts = [product(dtype, 4 * k)];
                    let plan = planned(&parts, 1, false, k, rows).unwrap_or_else(|| panic!("{dtype} {k}"));
                    assert!(
                        plan.shared + STATIC_BYTES <= H200.shared_bytes && plan.args.depth >= LEAST_DEPTH
                    );
                    assert_eq!(plan.args.row_stride % 128, 16);
                    let pair = [product(dtype, 3 * k); 2];
                    assert!(planned(&pair, 2, true, k, rows).is_some(), "{dtype} {k} pair");
                }
                let mixed = [product(Q4_K, k), product(Q4_K, 1024), product(Q6_K, 1024)];
                let plan = planned(&mixed, 2, false, k, rows).unwrap();
                assert!(plan.args.first_clusters > 0 && plan.args.first_clusters < plan.args.clusters);
            }
        }
        for (k, n) in [(9728, 2560), (12288, 4096), (14336, 4096)] {
            for dtype in [Q4_K, Q6_K] {
                let plan = planned(&[product(dtype, n)], 1, false, k, 16).unwrap();
                assert_eq!((plan.args.ranks, plan.args.clusters), (2, 66));
                assert!(plan.args.depth >= 3, "{k} {dtype}: {plan:?}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_in_16_rows_fits_in_8() {
        let parts = [product(DType::Q4_K, 8192)];
        assert!(planned(&parts, 1, false, 28672, 16).is_none());
        assert!(planned(&parts, 1, false, 28672, 8).is_some());
    }

    #[test]
    fn one_row_of_one_block_is_enough() {
        let plan = planned(&[product(DType::Q8_0, 1)], 1, false, 32, 8).unwrap();
        assert_eq!((plan.args.clusters, plan.args.ranks, plan.args.chunks), (1, 1, 1));
    }
}
