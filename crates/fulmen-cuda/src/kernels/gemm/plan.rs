//! What is multiplied together, and where it lies in scratch memory.

use fulmen_core::{DType, WeightArg};

// As in `panels.cuh` and `gemm.cuh`.
pub(super) const PANEL: u32 = 64;
pub(super) const PANEL_BYTES: u64 = 128;
pub(super) const MOST_PARTS: usize = 4;

/// Scratch memory of a call at most, and what of it activations may take.
pub(super) const MOST_BYTES: u64 = 256 << 20;
pub(super) const MOST_ACTIVATIONS: u64 = 128 << 20;

/// Tiles at the edge read rows behind the last; there are fewer than this.
pub(super) const TAIL_BYTES: u64 = 256 * PANEL_BYTES;

/// Where a weight is cut, it is at a multiple of this, and tiles are taken that end there, too.
pub(super) const CUT: u32 = 1280;

/// A multiple of every tile's rows.
pub(super) const ROWS_CUT: u64 = 256;

/// What weights become: those of one kind can be multiplied by one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
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
    pub(super) fn of(dtype: DType) -> Option<Kind> {
        match dtype {
            DType::F16 => Some(Kind::F16),
            DType::BF16 => Some(Kind::Bf16),
            DType::F32 => Some(Kind::F32),
            DType::U32 => None,
            _ => Some(Kind::Blocks),
        }
    }

    /// The kernel that prepares the activations.
    pub(super) fn activations(self) -> &'static str {
        match self {
            Kind::Blocks => "activations_bf16",
            Kind::F16 => "activations_f16",
            Kind::Bf16 | Kind::F32 => "activations_split",
        }
    }

    /// Parts of an activation, parts of a weight, and how many products of them are added.
    pub(super) fn parts(self) -> (u32, u32, u32) {
        match self {
            Kind::Blocks | Kind::F16 => (1, 1, 1),
            Kind::Bf16 => (2, 1, 2),
            Kind::F32 => (2, 2, 3),
        }
    }

    /// The type that is multiplied.
    pub(super) fn float(self) -> &'static str {
        if self == Kind::F16 { "f16" } else { "bf16" }
    }
}

/// One weight, its result, and what is added to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) weight: WeightArg,
    pub(super) kind: Kind,
    /// Bytes of a row of the weight.
    pub(super) row_bytes: u64,
    pub(super) out: u64,
    pub(super) bias: u64,
    pub(super) residual: u64,
}

impl Product {
    pub(super) fn new(
        weight: WeightArg,
        k: u32,
        out: u64,
        bias: Option<u64>,
        residual: Option<u64>,
    ) -> Option<Product> {
        let row_bytes = weight.dtype.bytes(k as usize).ok()? as u64;
        let (bias, residual) = (bias.unwrap_or(0), residual.unwrap_or(0));
        Some(Product { weight, kind: Kind::of(weight.dtype)?, row_bytes, out, bias, residual })
    }
}

/// Rows of a weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    pub(super) product: &'a Product,
    pub(super) first: u32,
    pub(super) rows: u32,
}

impl Piece<'_> {
    /// Rows that it takes in the panels.
    pub(super) fn padded(&self) -> u32 {
        self.rows.next_multiple_of(8)
    }
}

/// What one launch multiplies. For gate-up, the same rows of both weights.
#[derive(Clone, Debug)]
pub(super) struct Job<'a> {
    pub(super) kind: Kind,
    pub(super) pieces: Vec<Piece<'a>>,
}

impl Job<'_> {
    pub(super) fn w_rows(&self) -> u32 {
        self.pieces.iter().map(Piece::padded).sum()
    }

    /// Whether a weight goes on behind it.
    pub(super) fn is_cut(&self) -> bool {
        self.pieces.iter().any(|piece| piece.first + piece.rows < piece.product.weight.rows)
    }
}

/// The input `[m, k]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input {
    pub(super) x: u64,
    pub(super) m: u32,
    pub(super) k: u32,
}

/// How scratch memory is used: factors of rows, panels of activations, panels of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Panels of a row.
    pub(super) panels: u32,
    /// Rows of activations at a time.
    pub(super) rows: u32,
    /// Where the activations start.
    pub(super) x_at: u64,
    /// Where the weights start.
    pub(super) w_at: u64,
    /// Bytes that a row of weights takes.
    pub(super) w_row_bytes: u64,
    /// Rows of weights at a time at most, a multiple of [`CUT`].
    pub(super) w_rows: u32,
}

impl Layout {
    /// `None` where not even a few rows fit.
    pub(super) fn new(input: &Input, products: &[Product]) -> Option<Layout> {
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
    pub(super) fn bytes(&self, jobs: &[Job<'_>]) -> Option<usize> {
        let w_rows = jobs.iter().map(Job::w_rows).max()?;
        let w_bytes = self.w_row_bytes.checked_mul(w_rows.into())?;
        usize::try_from(self.w_at.checked_add(w_bytes)?.checked_add(TAIL_BYTES)?).ok()
    }
}

/// A weight by so many rows at a time.
pub(super) fn pieces(product: &Product, rows: u32) -> impl Iterator<Item = Piece<'_>> {
    let all = product.weight.rows;
    (0..all).step_by(rows as usize).map(move |first| Piece { product, first, rows: rows.min(all - first) })
}

/// Neighbours of one kind together, as far as there is room for them.
pub(super) fn jobs(products: &[Product], room: u32) -> Vec<Job<'_>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn product(dtype: DType, rows: u32, k: u32) -> Product {
        Product::new(WeightArg { ptr: 1 << 20, dtype, rows }, k, 1 << 30, None, None).unwrap()
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
