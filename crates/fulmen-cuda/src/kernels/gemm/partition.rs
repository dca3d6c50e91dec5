//! How the matmuls of a call are split into GEMM launches, and where their operands are in scratch memory.

use fulmen_core::{DType, WeightArg};

use super::{MAX_OUTPUTS, PANEL, PANEL_ROW_BYTES};

/// Most scratch memory of a call, and what of it activations may take.
pub(super) const MAX_SCRATCH_BYTES: u64 = 256 << 20;
pub(super) const MAX_ACTIVATION_BYTES: u64 = 128 << 20;

/// Tiles at the edge read past the last row, by fewer bytes than this.
pub(super) const TAIL_BYTES: u64 = 256 * PANEL_ROW_BYTES as u64;

/// Weights are sliced at multiples of this, and with tiles whose width divides it.
pub(super) const SLICE_ROWS: u32 = 1280;

/// A multiple of the height of every tile.
pub(super) const CHUNK_ROWS: u64 = 256;

/// The element type of weights and activations in a GEMM. Weights of one kind can share a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperandKind {
    /// Block-quantized weights, dequantized to bf16; activations in bf16.
    Quantized,
    /// f16 weights; activations in f16 with a scale per row.
    F16,
    /// bf16 weights; activations split into two bf16.
    Bf16,
    /// f32 weights, split into two bf16, as the activations.
    F32,
}

/// bf16 parts of each activation and weight, and how many products of parts are accumulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Splits {
    pub(super) x: u32,
    pub(super) w: u32,
    pub(super) passes: u32,
}

impl OperandKind {
    pub(super) fn of(dtype: DType) -> Option<OperandKind> {
        match dtype {
            DType::F16 => Some(OperandKind::F16),
            DType::BF16 => Some(OperandKind::Bf16),
            DType::F32 => Some(OperandKind::F32),
            DType::U32 => None,
            _ => Some(OperandKind::Quantized),
        }
    }

    /// The kernel that packs the activations.
    pub(super) fn activations_entry(self) -> &'static str {
        match self {
            OperandKind::Quantized => "gemm_activations_bf16",
            OperandKind::F16 => "gemm_activations_f16",
            OperandKind::Bf16 | OperandKind::F32 => "gemm_activations_split",
        }
    }

    pub(super) fn splits(self) -> Splits {
        match self {
            OperandKind::Quantized | OperandKind::F16 => Splits { x: 1, w: 1, passes: 1 },
            OperandKind::Bf16 => Splits { x: 2, w: 1, passes: 2 },
            OperandKind::F32 => Splits { x: 2, w: 2, passes: 3 },
        }
    }

    /// The element type of the MMA.
    pub(super) fn element(self) -> &'static str {
        if self == OperandKind::F16 { "f16" } else { "bf16" }
    }
}

/// The matmul with one weight, and what is added to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matmul {
    pub(super) weight: WeightArg,
    pub(super) kind: OperandKind,
    /// Bytes of a row of the weight.
    pub(super) row_bytes: u64,
    pub(super) out: u64,
    pub(super) bias: u64,
    pub(super) residual: u64,
}

impl Matmul {
    pub(super) fn new(
        weight: WeightArg,
        k: u32,
        out: u64,
        bias: Option<u64>,
        residual: Option<u64>,
    ) -> Option<Matmul> {
        let row_bytes = weight.dtype.bytes(k as usize).ok()? as u64;
        let (bias, residual) = (bias.unwrap_or(0), residual.unwrap_or(0));
        Some(Matmul { weight, kind: OperandKind::of(weight.dtype)?, row_bytes, out, bias, residual })
    }
}

/// Rows of a weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct WeightSlice<'a> {
    pub(super) matmul: &'a Matmul,
    pub(super) first: u32,
    pub(super) rows: u32,
}

impl WeightSlice<'_> {
    /// Rows that it takes in the panels.
    pub(super) fn padded(&self) -> u32 {
        self.rows.next_multiple_of(8)
    }
}

/// What one launch multiplies. For gate-up, the same rows of both weights.
#[derive(Clone, Debug)]
pub(super) struct GemmLaunch<'a> {
    pub(super) kind: OperandKind,
    pub(super) slices: Vec<WeightSlice<'a>>,
}

impl GemmLaunch<'_> {
    pub(super) fn w_rows(&self) -> u32 {
        self.slices.iter().map(WeightSlice::padded).sum()
    }

    /// Whether rows of a weight are left for a later launch.
    pub(super) fn is_sliced(&self) -> bool {
        self.slices.iter().any(|slice| slice.first + slice.rows < slice.matmul.weight.rows)
    }
}

/// The input `[m, k]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activations {
    pub(super) x: u64,
    pub(super) m: u32,
    pub(super) k: u32,
}

/// Scratch memory: row scales, panels of activations, panels of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScratchLayout {
    /// Panels of a row.
    pub(super) k_panels: u32,
    /// Rows of activations at a time.
    pub(super) rows: u32,
    /// Offset of the activations.
    pub(super) x_at: u64,
    /// Offset of the weights.
    pub(super) w_at: u64,
    /// Bytes of a row of weights.
    pub(super) w_row_bytes: u64,
    /// Most rows of weights at a time, a multiple of [`SLICE_ROWS`].
    pub(super) w_rows: u32,
}

impl ScratchLayout {
    /// `None` if not even a few rows fit.
    pub(super) fn new(input: &Activations, matmuls: &[Matmul]) -> Option<ScratchLayout> {
        let k_panels = input.k.div_ceil(PANEL);
        let row_bytes = u64::from(k_panels) * u64::from(PANEL_ROW_BYTES);
        let x_splits = matmuls.iter().map(|matmul| matmul.kind.splits().x).max()?;
        let w_splits = matmuls.iter().map(|matmul| matmul.kind.splits().w).max()?;
        let (x_row_bytes, w_row_bytes) = (row_bytes * u64::from(x_splits), row_bytes * u64::from(w_splits));
        let fit = MAX_ACTIVATION_BYTES / x_row_bytes;
        let all = u64::from(input.m).next_multiple_of(8);
        let rows = if all <= fit { input.m } else { u32::try_from(fit / CHUNK_ROWS * CHUNK_ROWS).ok()? };
        let x_at = (u64::from(rows) * 4).next_multiple_of(1024);
        let x_bytes = x_row_bytes.checked_mul(u64::from(rows).next_multiple_of(8))?;
        let w_at = x_at.checked_add(x_bytes)?;
        let room = MAX_SCRATCH_BYTES.checked_sub(w_at.checked_add(TAIL_BYTES)?)?;
        let w_rows = u32::try_from(room / w_row_bytes).ok()? / SLICE_ROWS * SLICE_ROWS;
        let layout = ScratchLayout { k_panels, rows, x_at, w_at, w_row_bytes, w_rows };
        (rows > 0 && w_rows > 0).then_some(layout)
    }

    /// Bytes that these launches need.
    pub(super) fn bytes(&self, launches: &[GemmLaunch<'_>]) -> Option<usize> {
        let w_rows = launches.iter().map(GemmLaunch::w_rows).max()?;
        let w_bytes = self.w_row_bytes.checked_mul(w_rows.into())?;
        usize::try_from(self.w_at.checked_add(w_bytes)?.checked_add(TAIL_BYTES)?).ok()
    }
}

/// A weight in slices of at most `rows` rows.
pub(super) fn slices(matmul: &Matmul, rows: u32) -> impl Iterator<Item = WeightSlice<'_>> {
    let all = matmul.weight.rows;
    (0..all).step_by(rows as usize).map(move |first| WeightSlice {
        matmul,
        first,
        rows: rows.min(all - first),
    })
}

/// The launches of a call: neighbors of one kind share one, as far as `w_rows` allows.
pub(super) fn partition(matmuls: &[Matmul], w_rows: u32) -> Vec<GemmLaunch<'_>> {
    let mut launches: Vec<GemmLaunch<'_>> = Vec::new();
    for matmul in matmuls {
        for slice in slices(matmul, w_rows) {
            match launches.last_mut() {
                Some(launch)
                    if launch.kind == matmul.kind
                        && launch.slices.len() < MAX_OUTPUTS
                        && launch.w_rows() + slice.padded() <= w_rows =>
                {
                    launch.slices.push(slice);
                }
                _ => launches.push(GemmLaunch { kind: matmul.kind, slices: vec![slice] }),
            }
        }
    }
    launches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matmul(dtype: DType, rows: u32, k: u32) -> Matmul {
        Matmul::new(WeightArg { ptr: 1 << 20, dtype, rows }, k, 1 << 30, None, None).unwrap()
    }

    #[test]
    fn weights_of_one_kind_share_a_launch() {
        use DType::{F16, Q4_K, Q6_K};
        let matmuls = [(Q4_K, 4096), (Q4_K, 1024), (Q6_K, 1023), (F16, 8), (Q4_K, 7)];
        let matmuls = matmuls.map(|(dtype, rows)| matmul(dtype, rows, 2560));
        let launches = partition(&matmuls, 1 << 20);
        let shape: Vec<_> =
            launches.iter().map(|launch| (launch.kind, launch.slices.len(), launch.w_rows())).collect();
        let expected =
            [(OperandKind::Quantized, 3, 6144), (OperandKind::F16, 1, 8), (OperandKind::Quantized, 1, 8)];
        assert_eq!(shape, expected);
        let many = vec![matmul(Q4_K, 8, 256); 9];
        let slices: Vec<_> = partition(&many, 1 << 20).iter().map(|launch| launch.slices.len()).collect();
        assert_eq!(slices, [4, 4, 1]);
    }

    #[test]
    fn scratch_memory_is_bounded_and_every_row_is_multiplied() {
        for (m, n, k) in [(17u32, 151_936, 2560u32), (100_000, 151_936, 4096), (2048, 9728, 2560), (17, 1, 3)]
        {
            for dtype in [DType::Q4_K, DType::F16, DType::BF16, DType::F32] {
                let k = if dtype == DType::Q4_K { k.next_multiple_of(256) } else { k };
                let matmuls = [matmul(dtype, n, k), matmul(dtype, 5, k)];
                let layout = ScratchLayout::new(&Activations { x: 1 << 20, m, k }, &matmuls).unwrap();
                assert!(layout.x_at.is_multiple_of(1024) && layout.w_at.is_multiple_of(1024));
                assert!(layout.rows == m || layout.rows.is_multiple_of(256));
                let launches = partition(&matmuls, layout.w_rows);
                assert!(layout.bytes(&launches).unwrap() as u64 <= MAX_SCRATCH_BYTES, "{m} {n} {k} {dtype}");
                let mut next = 0;
                let of_first = |slice: &&WeightSlice<'_>| slice.matmul.weight.rows == n;
                for slice in launches.iter().flat_map(|launch| &launch.slices).filter(of_first) {
                    assert_eq!(slice.first, next);
                    next += slice.rows;
                    assert!(next == n || slice.rows.is_multiple_of(SLICE_ROWS));
                }
                assert_eq!(next, n);
            }
        }
        let huge = 1 << 24;
        let matmuls = [matmul(DType::F32, 10, huge)];
        assert_eq!(ScratchLayout::new(&Activations { x: 1 << 20, m: 17, k: huge }, &matmuls), None);
    }
}
