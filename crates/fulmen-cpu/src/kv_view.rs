//! Layout of a KV cache: element type, strides and bounds, checked once so that kernels need not.

use fulmen_core::{DType, DTypeError};

/// Elements and bytes of one `Q8_0` block: an `f16` scale, then 32 signed bytes.
pub(crate) const Q8_BLOCK: (usize, usize) = (32, 34);

/// Why a view, a store or an attention call is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// An element type that a KV cache cannot have.
    #[error("a KV cache is F32, F16 or Q8_0, not {0}")]
    Type(DType),
    /// A head size or a stride that is not a whole number of blocks.
    #[error("{dtype}: {what} of {value} elements is not a multiple of the block of {block}")]
    Block {
        /// The type.
        dtype: DType,
        /// Which size it is.
        what: &'static str,
        /// Its value.
        value: usize,
        /// Elements per block.
        block: usize,
    },
    /// A size that does not fit the address space.
    #[error("the size of the KV layout overflows")]
    Overflow,
    /// Strides that let rows share memory, in a view that is written.
    #[error("the strides of the KV layout let rows overlap")]
    Overlap,
    /// A buffer or a list that is too short.
    #[error("{what}: {need} {unit} needed, got {got}")]
    Length {
        /// Which one.
        what: &'static str,
        /// What is counted.
        unit: &'static str,
        /// How many are needed.
        need: usize,
        /// How many there are.
        got: usize,
    },
    /// Two sizes that should be equal, or rows narrower than what they hold.
    #[error("{what}: expected {expected}, got {got}")]
    Shape {
        /// What was compared.
        what: &'static str,
        /// The value that fits.
        expected: usize,
        /// The value given.
        got: usize,
    },
    /// A number of query heads that the key heads cannot share evenly.
    #[error("{n_heads} query heads are not a multiple of {n_kv_heads} key heads")]
    Heads {
        /// Query heads.
        n_heads: usize,
        /// Key heads.
        n_kv_heads: usize,
    },
    /// A position outside the cache.
    #[error("row {row}: position {position} is outside the capacity of {capacity}")]
    Position {
        /// The row.
        row: usize,
        /// Its position.
        position: u32,
        /// Positions in the cache.
        capacity: usize,
    },
    /// A sequence outside the cache.
    #[error("row {row}: sequence {sequence} is not one of {n_seqs}")]
    Sequence {
        /// The row.
        row: usize,
        /// Its sequence.
        sequence: u32,
        /// Sequences in the cache.
        n_seqs: usize,
    },
}

/// Where element `(seq, kv_head, pos, i)` of one side of a KV cache lies: at
/// `seq * seq_stride + kv_head * head_stride + pos * pos_stride + i`, in elements.
///
/// The `head_dim` elements of a row are contiguous. For `Q8_0`, `head_dim` and the strides are multiples of
/// 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLayout {
    /// The element type: `F32`, `F16` or `Q8_0`.
    pub dtype: DType,
    /// Elements from one sequence to the next.
    pub seq_stride: usize,
    /// Elements from one head to the next.
    pub head_stride: usize,
    /// Elements from one position to the next.
    pub pos_stride: usize,
    /// Key (and value) heads.
    pub n_kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Positions per sequence.
    pub capacity: usize,
    /// Sequences.
    pub n_seqs: usize,
}

impl KvLayout {
    /// A dense cache `[n_seqs][n_kv_heads][capacity][head_dim]`.
    pub fn head_major(
        dtype: DType,
        n_seqs: usize,
        n_kv_heads: usize,
        capacity: usize,
        head_dim: usize,
    ) -> Result<KvLayout, KvError> {
        let head_stride = capacity.checked_mul(head_dim).ok_or(KvError::Overflow)?;
        let seq_stride = head_stride.checked_mul(n_kv_heads).ok_or(KvError::Overflow)?;
        let pos_stride = head_dim;
        let layout =
            KvLayout { dtype, seq_stride, head_stride, pos_stride, n_kv_heads, head_dim, capacity, n_seqs };
        layout.bytes()?;
        Ok(layout)
    }

    /// Plain `f32` rows `[m, n_kv_heads * head_dim]`, one sequence, row `r` being position `r`.
    pub fn rows(m: usize, n_kv_heads: usize, head_dim: usize) -> Result<KvLayout, KvError> {
        let pos_stride = n_kv_heads.checked_mul(head_dim).ok_or(KvError::Overflow)?;
        let seq_stride = pos_stride.checked_mul(m).ok_or(KvError::Overflow)?;
        let (dtype, head_stride, capacity, n_seqs) = (DType::F32, head_dim, m, 1);
        let layout =
            KvLayout { dtype, seq_stride, head_stride, pos_stride, n_kv_heads, head_dim, capacity, n_seqs };
        layout.bytes()?;
        Ok(layout)
    }

    /// Bytes from the first element to the end of the last row; an error if the layout is invalid.
    pub fn bytes(&self) -> Result<usize, KvError> {
        if !matches!(self.dtype, DType::F32 | DType::F16 | DType::Q8_0) {
            return Err(KvError::Type(self.dtype));
        }
        let (dtype, block) = (self.dtype, self.dtype.block_len());
        let sizes = [
            ("head_dim", self.head_dim),
            ("pos_stride", self.pos_stride),
            ("head_stride", self.head_stride),
            ("seq_stride", self.seq_stride),
        ];
        for (what, value) in sizes {
            if !value.is_multiple_of(block) {
                return Err(KvError::Block { dtype, what, value, block });
            }
        }
        if self.dims().iter().any(|d| d.1 == 0) {
            return Ok(0);
        }
        let mut elements = self.head_dim;
        for (stride, count) in self.dims() {
            let reach = stride.checked_mul(count - 1).ok_or(KvError::Overflow)?;
            elements = elements.checked_add(reach).ok_or(KvError::Overflow)?;
        }
        dtype.bytes(elements).map_err(|error| match error {
            DTypeError::PartialBlock { elements, block, .. } => {
                KvError::Block { dtype, what: "layout", value: elements, block }
            }
            _ => KvError::Overflow,
        })
    }

    /// Stride and count of the three outer dimensions.
    fn dims(&self) -> [(usize, usize); 3] {
        [
            (self.pos_stride, self.capacity),
            (self.head_stride, self.n_kv_heads),
            (self.seq_stride, self.n_seqs),
        ]
    }

    /// Whether no two rows overlap. Strides that are not a nesting of dimensions count as overlapping.
    fn rows_are_disjoint(&self) -> bool {
        let mut dims = self.dims();
        dims.sort_unstable();
        let mut extent = self.head_dim;
        dims.iter().filter(|(_, count)| *count > 1).all(|&(stride, count)| {
            let fits = stride >= extent;
            extent = extent.saturating_add(stride.saturating_mul(count - 1));
            fits
        })
    }

    /// Bytes that `elements` whole blocks take.
    const fn span(&self, elements: usize) -> usize {
        elements / self.dtype.block_len() * self.dtype.block_bytes()
    }

    /// Bytes of one row.
    pub(crate) const fn row_bytes(&self) -> usize {
        self.span(self.head_dim)
    }

    /// Bytes from one position to the next.
    pub(crate) const fn pos_bytes(&self) -> usize {
        self.span(self.pos_stride)
    }

    /// The byte at which the row of a sequence, head and position starts.
    pub(crate) const fn offset(&self, seq: usize, head: usize, pos: usize) -> usize {
        self.span(seq * self.seq_stride + head * self.head_stride + pos * self.pos_stride)
    }

    /// An error if the position or sequence of a row is outside the cache; returns the number of rows.
    pub(crate) fn check_rows(&self, positions: &[u32], sequences: Option<&[u32]>) -> Result<usize, KvError> {
        let m = positions.len();
        if let Some(sequences) = sequences
            && sequences.len() != m
        {
            return Err(KvError::Shape { what: "sequences", expected: m, got: sequences.len() });
        }
        for (row, &position) in positions.iter().enumerate() {
            let sequence = sequences.map_or(0, |s| s[row]);
            if position as usize >= self.capacity {
                return Err(KvError::Position { row, position, capacity: self.capacity });
            }
            if sequence as usize >= self.n_seqs {
                return Err(KvError::Sequence { row, sequence, n_seqs: self.n_seqs });
            }
        }
        Ok(m)
    }

    fn check_buffer(&self, what: &'static str, got: usize) -> Result<(), KvError> {
        let need = self.bytes()?;
        if got < need { Err(KvError::Length { what, unit: "bytes", need, got }) } else { Ok(()) }
    }
}

/// One side of a KV cache, to be read. Its buffer is long enough for its layout.
#[derive(Clone, Copy, Debug)]
pub struct KvView<'a> {
    layout: KvLayout,
    bytes: &'a [u8],
}

impl<'a> KvView<'a> {
    /// Checks the layout and the length of the buffer.
    pub fn new(layout: KvLayout, bytes: &'a [u8]) -> Result<KvView<'a>, KvError> {
        layout.check_buffer("KV buffer", bytes.len())?;
        Ok(KvView { layout, bytes })
    }

    /// The layout.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The buffer.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// One side of a KV cache, to be written. Its buffer is long enough for its layout and its rows do not
/// overlap.
#[derive(Debug)]
pub struct KvViewMut<'a> {
    layout: KvLayout,
    bytes: &'a mut [u8],
}

impl<'a> KvViewMut<'a> {
    /// Checks the layout, that its rows do not overlap, and the length of the buffer.
    pub fn new(layout: KvLayout, bytes: &'a mut [u8]) -> Result<KvViewMut<'a>, KvError> {
        layout.check_buffer("KV buffer", bytes.len())?;
        if !layout.rows_are_disjoint() {
            return Err(KvError::Overlap);
        }
        Ok(KvViewMut { layout, bytes })
    }

    /// The layout.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The buffer.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

/// An error if `m` rows of `width` elements, `stride` apart, do not fit in `len` elements.
pub(crate) fn check_strided(
    what: &'static str,
    m: usize,
    width: usize,
    stride: usize,
    len: usize,
) -> Result<(), KvError> {
    if m == 0 {
        return Ok(());
    }
    if stride < width && m > 1 {
        return Err(KvError::Shape { what, expected: width, got: stride });
    }
    let reach = (m - 1).checked_mul(stride).and_then(|n| n.checked_add(width));
    let need = reach.ok_or(KvError::Overflow)?;
    if len < need { Err(KvError::Length { what, unit: "elements", need, got: len }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_strides() {
        let dense = KvLayout::head_major(DType::Q8_0, 2, 3, 5, 64).unwrap();
        assert_eq!(dense.bytes(), Ok(2 * 3 * 5 * 68));
        assert_eq!((dense.row_bytes(), dense.pos_bytes(), dense.offset(1, 2, 4)), (68, 68, 29 * 68));
        let rows = KvLayout::rows(7, 2, 3).unwrap();
        assert_eq!((rows.bytes(), rows.offset(0, 1, 6)), (Ok(7 * 6 * 4), (6 * 6 + 3) * 4));
        let gaps = KvLayout { pos_stride: 10, ..rows };
        assert_eq!(gaps.bytes(), Ok((6 * 10 + 3 + 3) * 4));
        assert_eq!(KvLayout::head_major(DType::F16, 1, 1, 0, 8).unwrap().bytes(), Ok(0));
    }

    #[test]
    fn illegal_layouts_are_refused() {
        let good = KvLayout::head_major(DType::Q8_0, 1, 2, 4, 32).unwrap();
        assert_eq!(KvLayout::head_major(DType::Q4_K, 1, 1, 1, 256), Err(KvError::Type(DType::Q4_K)));
        assert_eq!(KvLayout::head_major(DType::F16, 2, 1, usize::MAX, 2), Err(KvError::Overflow));
        let huge = KvLayout { n_seqs: 3, seq_stride: usize::MAX & !31, ..good };
        assert_eq!(huge.bytes(), Err(KvError::Overflow));
        let (dtype, what) = (DType::Q8_0, "pos_stride");
        let odd = KvLayout { pos_stride: 33, ..good };
        assert_eq!(odd.bytes(), Err(KvError::Block { dtype, what, value: 33, block: 32 }));
        let short = KvView::new(good, &[0; 271]).unwrap_err();
        assert_eq!(short, KvError::Length { what: "KV buffer", unit: "bytes", need: 272, got: 271 });
    }

    #[test]
    fn written_rows_may_not_overlap() {
        let good = KvLayout::head_major(DType::F32, 2, 2, 4, 8).unwrap();
        let cases = [
            (good, true),
            (KvLayout { pos_stride: 16, head_stride: 8, ..good }, true),
            (KvLayout { pos_stride: 7, ..good }, false),
            (KvLayout { head_stride: 24, ..good }, false),
            (KvLayout { seq_stride: 0, ..good }, false),
            (KvLayout { seq_stride: 0, n_seqs: 1, ..good }, true),
        ];
        for (layout, disjoint) in cases {
            let mut bytes = vec![0; 1024];
            assert_eq!(KvViewMut::new(layout, &mut bytes).is_ok(), disjoint, "{layout:?}");
            assert!(KvView::new(layout, &bytes).is_ok());
        }
    }
}
