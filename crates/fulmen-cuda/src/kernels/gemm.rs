//! Products of many rows on tensor cores. Activations and weights become panels of 16-bit floats in scratch memory (see
//! `panels.cuh`), as many rows at a time as there is room for, and one launch multiplies them (see `gemm.cuh`).

use bytemuck::{Pod, Zeroable};
use fulmen_core::{BackendError, DType, GateUpCall, MatPart, MulMatCall, WeightArg};

use super::{Launched, type_name, wide};
use crate::device::Caps;
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ActivationsParams {
    x: u64,
    out: u64,
    factors: u64,
    k: u32,
    panels: u32,
    rows: u32,
    wide: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct DequantiseParams {
    w: u64,
    out: u64,
    n: u32,
    k: u32,
    panels: u32,
    rows: u32,
    first: u32,
    step: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Part {
    out: u64,
    bias: u64,
    residual: u64,
    n: u32,
    first: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct GemmParams {
    x: u64,
    w: u64,
    factors: u64,
    parts: [Part; MOST_PARTS],
    m: u32,
    x_rows: u32,
    w_rows: u32,
    panels: u32,
    passes: u32,
    n_parts: u32,
    wide: u32,
    unused: u32,
}

// As in `panels.cuh` and `gemm.cuh`.
const PANEL: u32 = 64;
const PANEL_BYTES: u64 = 128;
const MOST_PARTS: usize = 4;

/// Up to so many rows others are faster.
const FEW_ROWS: u32 = 16;

/// Scratch memory of a call at most, and what of it activations may take.
const MOST_BYTES: u64 = 256 << 20;
const MOST_ACTIVATIONS: u64 = 128 << 20;

/// Tiles at the edge read rows behind the last; there are fewer than this.
const TAIL_BYTES: u64 = 256 * PANEL_BYTES;

/// A multiple of every tile's columns: where a weight is cut, no tile is.
const CUT: u32 = 1280;

/// A multiple of every tile's rows.
const ROWS_CUT: u64 = 256;

/// What weights become: those of one kind can be multiplied by one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// bf16, from a format of blocks, with activations in bf16.
    Blocks,
    /// f16, with activations in f16 and a factor for each row of them.
    F16,
    /// bf16, with activations in two parts.
    Bf16,
    /// Two parts in bf16, as the activations.
    F32,
}

impl Kind {
    fn of(dtype: DType) -> Option<Kind> {
        match dtype {
            DType::F16 => Some(Kind::F16),
            DType::BF16 => Some(Kind::Bf16),
            DType::F32 => Some(Kind::F32),
            DType::U32 => None,
            _ => Some(Kind::Blocks),
        }
    }

    /// The kernel that prepares the activations.
    fn activations(self) -> &'static str {
        match self {
            Kind::Blocks => "activations_bf16",
            Kind::F16 => "activations_f16",
            Kind::Bf16 | Kind::F32 => "activations_split",
        }
    }

    /// Parts of an activation, parts of a weight, and how many products of them are added.
    fn parts(self) -> (u32, u32, u32) {
        match self {
            Kind::Blocks | Kind::F16 => (1, 1, 1),
            Kind::Bf16 => (2, 1, 2),
            Kind::F32 => (2, 2, 3),
        }
    }

    /// The type that is multiplied.
    fn float(self) -> &'static str {
        if self == Kind::F16 { "f16" } else { "bf16" }
    }
}

/// One weight, its result, and what is added to it.
#[derive(Clone, Copy, Debug)]
struct Product {
    weight: WeightArg,
    kind: Kind,
    /// Bytes of a row of the weight.
    row_bytes: u64,
    out: u64,
    bias: u64,
    residual: u64,
}

impl Product {
    fn new(weight: WeightArg, k: u32, out: u64, bias: Option<u64>, residual: Option<u64>) -> Option<Product> {
        let row_bytes = weight.dtype.bytes(k as usize).ok()? as u64;
        let (bias, residual) = (bias.unwrap_or(0), residual.unwrap_or(0));
        Some(Product { weight, kind: Kind::of(weight.dtype)?, row_bytes, out, bias, residual })
    }
}

/// Rows of a weight.
#[derive(Clone, Copy, Debug)]
struct Piece<'a> {
    product: &'a Product,
    first: u32,
    rows: u32,
}

impl Piece<'_> {
    /// Rows that it takes in the panels.
    fn padded(&self) -> u32 {
        self.rows.next_multiple_of(8)
    }
}

/// What one launch multiplies. For gate-up, the same rows of both weights.
#[derive(Clone, Debug)]
struct Job<'a> {
    kind: Kind,
    pieces: Vec<Piece<'a>>,
}

impl Job<'_> {
    fn w_rows(&self) -> u32 {
        self.pieces.iter().map(Piece::padded).sum()
    }
}

/// The input `[m, k]`.
#[derive(Clone, Copy, Debug)]
struct Input {
    x: u64,
    m: u32,
    k: u32,
}

/// How scratch memory is used: factors of rows, panels of activations, panels of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// Panels of a row.
    panels: u32,
    /// Rows of activations at a time.
    rows: u32,
    /// Where the activations start.
    x_at: u64,
    /// Where the weights start.
    w_at: u64,
    /// Bytes that a row of weights takes.
    w_row_bytes: u64,
    /// Rows of weights at a time at most, a multiple of [`CUT`].
    w_rows: u32,
}

impl Layout {
    /// `None` where not even a few rows fit.
    fn new(input: &Input, products: &[Product]) -> Option<Layout> {
        let panels = input.k.div_ceil(PANEL);
        let row_bytes = u64::from(panels) * PANEL_BYTES;
        let x_parts = products.iter().map(|product| product.kind.parts().0).max()?;
        let w_parts = products.iter().map(|product| product.kind.parts().1).max()?;
        let (x_row_bytes, w_row_bytes) = (row_bytes * u64::from(x_parts), row_bytes * u64::from(w_parts));
        let fit = MOST_ACTIVATIONS / x_row_bytes;
        let all = u64::from(input.m).next_multiple_of(8);
        let rows = if all <= fit { input.m } else { u32::try_from(fit / ROWS_CUT * ROWS_CUT).ok()? };
        let x_at = (u64::from(rows) * 4).next_multiple_of(1024);
        let x_bytes = x_row_bytes.checked_mul(u64::from(rows).next_multiple_of(8))?;
        let w_at = x_at.checked_add(x_bytes)?;
        let room = MOST_BYTES.checked_sub(w_at.checked_add(TAIL_BYTES)?)?;
        let w_rows = u32::try_from(room / w_row_bytes).ok()? / CUT * CUT;
        (rows > 0 && w_rows > 0).then_some(Layout { panels, rows, x_at, w_at, w_row_bytes, w_rows })
    }

    /// Bytes for these jobs.
    fn bytes(&self, jobs: &[Job<'_>]) -> Option<usize> {
        let w_rows = jobs.iter().map(Job::w_rows).max()?;
        let w_bytes = self.w_row_bytes.checked_mul(w_rows.into())?;
        usize::try_from(self.w_at.checked_add(w_bytes)?.checked_add(TAIL_BYTES)?).ok()
    }
}

/// The products of a call, if these kernels take it.
pub(crate) fn launch(queue: &mut Queue, call: &MulMatCall) -> Option<Launched> {
    let input = Input { x: call.input, m: call.m, k: call.k };
    if !takes(queue.caps(), &input) {
        return None;
    }
    let product = |part: &MatPart| Product::new(part.weight, call.k, part.output, part.bias, call.residual);
    let products: Option<Vec<Product>> =
        call.parts.iter().filter(|part| part.weight.rows > 0).map(product).collect();
    let products = products?;
    let layout = Layout::new(&input, &products)?;
    Some(run(queue, &input, &layout, &jobs(&products, layout.w_rows), false))
}

/// Both products of a gate-up call and what is made of them, if these kernels take it.
pub(crate) fn launch_gate_up(queue: &mut Queue, call: &GateUpCall) -> Option<Launched> {
    let input = Input { x: call.input, m: call.m, k: call.k };
    if !takes(queue.caps(), &input) || call.gate.rows == 0 || call.gate.rows != call.up.rows {
        return None;
    }
    let product = |weight| Product::new(weight, call.k, call.output, None, None);
    let products = [product(call.gate)?, product(call.up)?];
    let [gate, up] = &products;
    if gate.kind != up.kind {
        return None;
    }
    let layout = Layout::new(&input, &products)?;
    let jobs: Vec<Job<'_>> = pieces(gate, layout.w_rows / 2)
        .map(|piece| Job { kind: gate.kind, pieces: vec![piece, Piece { product: up, ..piece }] })
        .collect();
    Some(run(queue, &input, &layout, &jobs, true))
}

fn takes(caps: Caps, input: &Input) -> bool {
    input.m > FEW_ROWS && input.k > 0 && caps.shared_bytes >= PLAIN_SHARED
}

/// A weight by so many rows at a time.
fn pieces(product: &Product, rows: u32) -> impl Iterator<Item = Piece<'_>> {
    let all = product.weight.rows;
    (0..all).step_by(rows as usize).map(move |first| Piece { product, first, rows: rows.min(all - first) })
}

/// Neighbours of one kind together, as far as there is room for them.
fn jobs(products: &[Product], room: u32) -> Vec<Job<'_>> {
    let mut jobs: Vec<Job<'_>> = Vec::new();
    for product in products {
        for piece in pieces(product, room) {
            match jobs.last_mut() {
                Some(job)
                    if job.kind == product.kind
                        && job.pieces.len() < MOST_PARTS
                        && job.w_rows() + piece.padded() <= room =>
                {
                    job.pieces.push(piece);
                }
                _ => jobs.push(Job { kind: product.kind, pieces: vec![piece] }),
            }
        }
    }
    jobs
}

fn run(queue: &mut Queue, input: &Input, layout: &Layout, jobs: &[Job<'_>], pair: bool) -> Launched {
    let Some(bytes) = layout.bytes(jobs) else { return Ok(0) };
    let scratch = queue.scratch(bytes)?;
    let mut launched = 0;
    for row in (0..input.m).step_by(layout.rows as usize) {
        let m = layout.rows.min(input.m - row);
        let mut prepared = None;
        for job in jobs {
            if prepared != Some(job.kind.activations()) {
                prepare(queue, input, layout, scratch, (row, m), job.kind)?;
                prepared = Some(job.kind.activations());
                launched += 1;
            }
            dequantise(queue, input.k, layout, scratch, job, pair)?;
            multiply(queue, layout, scratch, (row, m), job, pair)?;
            launched += job.pieces.len() + 1;
        }
    }
    Ok(launched)
}

/// `m` rows of activations from `row` on.
fn prepare(
    queue: &mut Queue,
    input: &Input,
    layout: &Layout,
    scratch: u64,
    (row, m): (u32, u32),
    kind: Kind,
) -> Result<(), BackendError> {
    let x = at_row(input.x, row, input.k);
    let params = ActivationsParams {
        x,
        out: scratch + layout.x_at,
        factors: scratch,
        k: input.k,
        panels: layout.panels,
        rows: m.next_multiple_of(8),
        wide: if input.k.is_multiple_of(4) { wide(&[x]) } else { 0 },
    };
    let blocks = queue.blocks(kind.activations(), m.into())?;
    Ok(queue.launch(&Launch::new("activations", kind.activations(), blocks, 256), &params)?)
}

/// The weights of a job, one below the other; for gate-up they take turns.
fn dequantise(
    queue: &mut Queue,
    k: u32,
    layout: &Layout,
    scratch: u64,
    job: &Job<'_>,
    pair: bool,
) -> Result<(), BackendError> {
    let mut first = 0;
    for piece in &job.pieces {
        let weight = piece.product.weight;
        let params = DequantiseParams {
            w: weight.ptr + u64::from(piece.first) * piece.product.row_bytes,
            out: scratch + layout.w_at,
            n: piece.rows,
            k,
            panels: layout.panels,
            rows: job.w_rows(),
            first,
            step: if pair { 16 } else { 8 },
        };
        first += if pair { 8 } else { piece.padded() };
        let entry = format!("dequantise_{}", type_name(weight.dtype));
        let blocks = queue.blocks(&entry, (u64::from(layout.panels) * u64::from(PANEL)).div_ceil(256))?;
        let rows = queue.rows(&entry, u64::from(piece.rows).div_ceil(32))?;
        queue.launch(&Launch::new("dequantise", &entry, blocks, 256).rows(rows), &params)?;
    }
    Ok(())
}

/// The product of what was prepared.
fn multiply(
    queue: &mut Queue,
    layout: &Layout,
    scratch: u64,
    (row, m): (u32, u32),
    job: &Job<'_>,
    pair: bool,
) -> Result<(), BackendError> {
    let mut params = GemmParams {
        x: scratch + layout.x_at,
        w: scratch + layout.w_at,
        factors: if job.kind == Kind::F16 { scratch } else { 0 },
        parts: [Part::zeroed(); MOST_PARTS],
        m,
        x_rows: m.next_multiple_of(8),
        w_rows: job.w_rows(),
        panels: layout.panels,
        passes: job.kind.parts().2,
        n_parts: if pair { 1 } else { job.pieces.len() as u32 },
        wide: 1,
        unused: 0,
    };
    let mut first = 0u32;
    let outputs = if pair { &job.pieces[..1] } else { &job.pieces[..] };
    for (part, piece) in params.parts.iter_mut().zip(outputs) {
        let (product, n) = (piece.product, piece.product.weight.rows);
        *part = Part {
            out: at_row(product.out, row, n),
            bias: product.bias,
            residual: at_row(product.residual, row, n),
            n,
            // Where the weight's row 0 would be: for a later piece that is before the panels, modulo 2^32.
            first: first.wrapping_sub(piece.first),
        };
        first += piece.padded();
        if !n.is_multiple_of(2) || !part.out.is_multiple_of(8) || !part.residual.is_multiple_of(8) {
            params.wide = 0;
        }
    }
    let name = format!("gemm_{}{}", if pair { "pair_" } else { "" }, job.kind.float());
    match tile(queue.caps(), m, params.w_rows) {
        None => {
            let blocks = queue.blocks(&name, tiles(m, PLAIN_SIDE, params.w_rows, PLAIN_SIDE))?;
            queue.launch(&Launch::new("gemm", &name, blocks, 256).shared(PLAIN_SHARED), &params)?;
        }
        Some(columns) => {
            let entry = format!("{name}_{columns}");
            let clusters = tiles(m, HOPPER_ROWS, params.w_rows, columns).min(clusters(queue.caps()));
            let blocks = queue.blocks(&entry, 2 * clusters)?;
            let launch = Launch::new("gemm_hopper", &entry, blocks, 288).shared(hopper_shared(columns));
            queue.launch(&launch, &params)?;
        }
    }
    Ok(())
}

/// The address of a row of `width` floats; 0 stays 0.
fn at_row(ptr: u64, row: u32, width: u32) -> u64 {
    if ptr == 0 { 0 } else { ptr + u64::from(row) * u64::from(width) * 4 }
}

// As in `gemm.cu`.
const PLAIN_SIDE: u32 = 128;
const PLAIN_SHARED: u32 = 3 * 2 * 128 * 128;

// As in `gemm_hopper.cu`.
const HOPPER_ROWS: u32 = 256;

/// Stages that fill the shared memory, and room to start them at a multiple of 1024.
fn hopper_shared(columns: u32) -> u32 {
    let stage = (128 + columns) * 128;
    (220 * 1024 / stage).min(6) * stage + 1024
}

/// The capability whose matrix instructions the kernels of `gemm_hopper` use.
const HOPPER: u32 = 90;

/// Columns of the tiles of `gemm_hopper`, and microseconds of such a tile on an H200, with rows of 2560.
const HOPPER_TILES: [(u32, u64); 3] = [(128, 38), (160, 40), (256, 50)];

/// The same for `gemm`: where tiles have a multiprocessor each, and where two share one.
const PLAIN_ALONE: u64 = 36;
const PLAIN_SHARING: u64 = 59;

fn tiles(m: u32, rows: u32, n: u32, columns: u32) -> u64 {
    u64::from(m.div_ceil(rows)) * u64::from(n.div_ceil(columns))
}

/// Pairs of blocks that run at once.
fn clusters(caps: Caps) -> u64 {
    u64::from(caps.multiprocessors / 2).max(1)
}

/// The columns of the tiles of `gemm_hopper` that make the output soonest; `None` where `gemm` does.
fn tile(caps: Caps, m: u32, w_rows: u32) -> Option<u32> {
    if caps.capability != HOPPER || m <= PLAIN_SIDE {
        return None;
    }
    let plain = tiles(m, PLAIN_SIDE, w_rows, PLAIN_SIDE);
    let (full, rest) = (plain / (4 * clusters(caps)), plain % (4 * clusters(caps)));
    let last = match rest {
        0 => 0,
        rest if rest <= clusters(caps) => PLAIN_ALONE,
        _ => PLAIN_SHARING,
    };
    let mut best = (full * PLAIN_SHARING + last, None);
    for (columns, time) in HOPPER_TILES {
        let time = time * tiles(m, HOPPER_ROWS, w_rows, columns).div_ceil(clusters(caps));
        if time < best.0 && hopper_shared(columns) < caps.shared_bytes {
            best = (time, Some(columns));
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Caps = Caps { capability: 90, multiprocessors: 132, shared_bytes: 232_448 };

    fn product(dtype: DType, rows: u32, k: u32) -> Product {
        Product::new(WeightArg { ptr: 1 << 20, dtype, rows }, k, 1 << 30, None, None).unwrap()
    }

    #[test]
    fn the_tiles_that_were_measured_as_fastest_are_taken() {
        let cases = [
            (2048, 6144, Some(256)),
            (2048, 2560, Some(160)),
            (2048, 19456, Some(256)),
            (2048, 1024, Some(128)),
            (1024, 2560, Some(160)),
            (1024, 19456, Some(256)),
            (512, 6144, Some(256)),
            (512, 2560, Some(128)),
            (512, 19456, Some(256)),
            (128, 6144, None),
            (33, 19456, None),
        ];
        for (m, n, expected) in cases {
            assert_eq!(tile(H200, m, n), expected, "{m} {n}");
            assert_eq!(tile(Caps { capability: 89, ..H200 }, m, n), None);
            assert_eq!(tile(Caps { capability: 100, ..H200 }, m, n), None);
        }
        assert!(HOPPER_TILES.iter().all(|(columns, _)| CUT.is_multiple_of(*columns)));
    }

    #[test]
    fn weights_of_one_kind_go_together() {
        use DType::{F16, Q4_K, Q6_K};
        let products = [(Q4_K, 4096), (Q4_K, 1024), (Q6_K, 1023), (F16, 8), (Q4_K, 7)];
        let products = products.map(|(dtype, rows)| product(dtype, rows, 2560));
        let jobs = jobs(&products, 1 << 20);
        let shape: Vec<_> = jobs.iter().map(|job| (job.kind, job.pieces.len(), job.w_rows())).collect();
        assert_eq!(shape, [(Kind::Blocks, 3, 6144), (Kind::F16, 1, 8), (Kind::Blocks, 1, 8)]);
        let many = vec![product(Q4_K, 8, 256); 9];
        let parts: Vec<_> = super::jobs(&many, 1 << 20).iter().map(|job| job.pieces.len()).collect();
        assert_eq!(parts, [4, 4, 1]);
    }

    #[test]
    fn scratch_memory_has_a_limit_and_every_row_its_turn() {
        for (m, n, k) in [(17u32, 151_936, 2560u32), (100_000, 151_936, 4096), (2048, 9728, 2560), (17, 1, 3)]
        {
            for dtype in [DType::Q4_K, DType::F16, DType::BF16, DType::F32] {
                let k = if dtype == DType::Q4_K { k.next_multiple_of(256) } else { k };
                let products = [product(dtype, n, k), product(dtype, 5, k)];
                let layout = Layout::new(&Input { x: 1 << 20, m, k }, &products).unwrap();
                assert!(layout.x_at.is_multiple_of(1024) && layout.w_at.is_multiple_of(1024));
                assert!(layout.rows == m || layout.rows.is_multiple_of(256));
                let jobs = jobs(&products, layout.w_rows);
                assert!(layout.bytes(&jobs).unwrap() as u64 <= MOST_BYTES, "{m} {n} {k} {dtype}");
                let mut next = 0;
                for piece in jobs.iter().flat_map(|job| &job.pieces).filter(|p| p.product.weight.rows == n) {
                    assert_eq!(piece.first, next);
                    next += piece.rows;
                    assert!(next == n || piece.rows.is_multiple_of(CUT));
                }
                assert_eq!(next, n);
            }
        }
        let endless = 1 << 24;
        let products = [product(DType::F32, 10, endless)];
        assert_eq!(Layout::new(&Input { x: 1 << 20, m: 17, k: endless }, &products), None);
    }
}
