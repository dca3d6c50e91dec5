//! Layout and page table of a KV cache: element type, strides and bounds, checked once so that kernels need
//! not.

use fulmen_core::{DType, DTypeError, KV_PAGE, Scores};

/// Elements of a `Q8_0` block, which have one `f16` scale.
pub(crate) const Q8_BLOCK: usize = 32;

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
    /// A page outside the pool.
    #[error("row {row}: page {page} is not one of {n_pages}")]
    Page {
        /// The row.
        row: usize,
        /// The page that the table names.
        page: u32,
        /// Pages in the pool.
        n_pages: usize,
    },
}

/// Where element `(page, kv_head, pos, i)` of one side of a KV cache lies: at
/// `page * page_stride + kv_head * head_stride + pos * pos_stride + i`, in elements, where `pos` counts from
/// the start of the page.
///
/// The `head_dim` elements of a row are contiguous. A head of a `Q8_0` page has the signed bytes of all its
/// rows first, then their `f16` scales, one for each 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLayout {
    /// The element type: `F32`, `F16` or `Q8_0`.
    pub dtype: DType,
    /// Elements from one page to the next.
    pub page_stride: usize,
    /// Elements from one head to the next.
    pub head_stride: usize,
    /// Elements from one position to the next.
    pub pos_stride: usize,
    /// Key (and value) heads.
    pub n_kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Positions of a page.
    pub page_len: usize,
    /// Pages.
    pub n_pages: usize,
}

impl KvLayout {
    /// The pages of a cache, `[n_pages][n_kv_heads][KV_PAGE][head_dim]`.
    pub fn pages(
        dtype: DType,
        n_pages: usize,
        n_kv_heads: usize,
        head_dim: usize,
    ) -> Result<KvLayout, KvError> {
        let page_len = KV_PAGE as usize;
        let head_stride = page_len.checked_mul(head_dim).ok_or(KvError::Overflow)?;
        let page_stride = head_stride.checked_mul(n_kv_heads).ok_or(KvError::Overflow)?;
        let pos_stride = head_dim;
        let layout =
            KvLayout { dtype, page_stride, head_stride, pos_stride, n_kv_heads, head_dim, page_len, n_pages };
        layout.bytes()?;
        Ok(layout)
    }

    /// Plain `f32` rows `[m, n_kv_heads * head_dim]` as one page, row `r` being position `r`.
    pub fn rows(m: usize, n_kv_heads: usize, head_dim: usize) -> Result<KvLayout, KvError> {
        let pos_stride = n_kv_heads.checked_mul(head_dim).ok_or(KvError::Overflow)?;
        let page_stride = pos_stride.checked_mul(m).ok_or(KvError::Overflow)?;
        let (dtype, head_stride, page_len, n_pages) = (DType::F32, head_dim, m, 1);
        let layout =
            KvLayout { dtype, page_stride, head_stride, pos_stride, n_kv_heads, head_dim, page_len, n_pages };
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
            ("head_stride", self.head_stride),
            ("page_stride", self.page_stride),
        ];
        for (what, value) in sizes {
            if !value.is_multiple_of(block) {
                return Err(KvError::Block { dtype, what, value, block });
            }
        }
        // The scales follow the values of a whole head.
        if dtype == DType::Q8_0 && self.pos_stride != self.head_dim {
            let (expected, got) = (self.head_dim, self.pos_stride);
            return Err(KvError::Shape { what: "pos_stride", expected, got });
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
            (self.pos_stride, self.page_len),
            (self.head_stride, self.n_kv_heads),
            (self.page_stride, self.n_pages),
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

    /// Bytes of a row, without the scales of `Q8_0`.
    pub(crate) const fn row_bytes(&self) -> usize {
        self.head_dim * self.value_bytes()
    }

    /// Bytes from one position to the next, without the scales of `Q8_0`.
    pub(crate) const fn pos_bytes(&self) -> usize {
        self.pos_stride * self.value_bytes()
    }

    const fn value_bytes(&self) -> usize {
        match self.dtype {
            DType::F32 => 4,
            DType::F16 => 2,
            _ => 1,
        }
    }

    /// Bytes of the scales of a row of `Q8_0`; 0 for other types.
    pub(crate) const fn scale_bytes(&self) -> usize {
        match self.dtype {
            DType::Q8_0 => 2 * (self.head_dim / Q8_BLOCK),
            _ => 0,
        }
    }

    /// The byte at which a head of a page starts.
    const fn head_offset(&self, page: usize, head: usize) -> usize {
        let elements = page * self.page_stride + head * self.head_stride;
        elements / self.dtype.block_len() * self.dtype.block_bytes()
    }

    /// The byte at which the row of a position of a page starts.
    pub(crate) const fn offset(&self, page: usize, head: usize, pos: usize) -> usize {
        self.head_offset(page, head) + pos * self.pos_bytes()
    }

    /// The byte at which the scales of a row of `Q8_0` start.
    pub(crate) const fn scales_offset(&self, page: usize, head: usize, pos: usize) -> usize {
        self.offset(page, head, self.page_len) + pos * self.scale_bytes()
    }

    fn check_buffer(&self, what: &'static str, got: usize) -> Result<(), KvError> {
        let need = self.bytes()?;
        if got < need { Err(KvError::Length { what, unit: "bytes", need, got }) } else { Ok(()) }
    }
}

/// The pages of each sequence, `[n_seqs][seq_pages]`.
#[derive(Clone, Copy, Debug)]
pub struct PageTable<'a> {
    pages: &'a [u32],
    n_seqs: usize,
    seq_pages: usize,
}

/// The pages that a row uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RowPages {
    /// That of its position, which is written.
    Own,
    /// Those of the positions that it sees by these scores, which are read.
    Seen(Scores<()>),
}

impl PageTable<'static> {
    /// One sequence of one page.
    pub const ONE: PageTable<'static> = PageTable { pages: &[0], n_seqs: 1, seq_pages: 1 };
}

impl<'a> PageTable<'a> {
    /// A table of `n_seqs` rows.
    pub fn new(pages: &'a [u32], n_seqs: usize, seq_pages: usize) -> Result<PageTable<'a>, KvError> {
        let (need, got) = (n_seqs.checked_mul(seq_pages).ok_or(KvError::Overflow)?, pages.len());
        if got < need {
            return Err(KvError::Length { what: "page table", unit: "entries", need, got });
        }
        Ok(PageTable { pages, n_seqs, seq_pages })
    }

    /// A page of a sequence.
    pub(crate) fn page(&self, seq: usize, index: usize) -> usize {
        self.pages[seq * self.seq_pages + index] as usize
    }

    /// An error if the position, the sequence or a page of a row is outside the cache; returns the number of
    /// rows.
    pub(crate) fn check_rows(
        &self,
        layout: &KvLayout,
        positions: &[u32],
        sequences: Option<&[u32]>,
        used: RowPages,
    ) -> Result<usize, KvError> {
        let m = positions.len();
        if let Some(sequences) = sequences
            && sequences.len() != m
        {
            return Err(KvError::Shape { what: "sequences", expected: m, got: sequences.len() });
        }
        let capacity = self.seq_pages.saturating_mul(layout.page_len);
        // The pages that the rows before have used, of the same sequence.
        let mut checked = (usize::MAX, 0..0);
        for (row, &position) in positions.iter().enumerate() {
            let sequence = sequences.map_or(0, |s| s[row]);
            if position as usize >= capacity {
                return Err(KvError::Position { row, position, capacity });
            }
            if sequence as usize >= self.n_seqs {
                return Err(KvError::Sequence { row, sequence, n_seqs: self.n_seqs });
            }
            let (seq, last) = (sequence as usize, position as usize / layout.page_len);
            let first = match used {
                RowPages::Own => last,
                RowPages::Seen(scores) => scores.first_visible(position) as usize / layout.page_len,
            };
            if checked.0 == seq && checked.1.contains(&first) && checked.1.contains(&last) {
                continue;
            }
            for index in first..=last {
                let page = self.page(seq, index);
                if page >= layout.n_pages {
                    let (page, n_pages) = (page as u32, layout.n_pages);
                    return Err(KvError::Page { row, page, n_pages });
                }
            }
            checked = (seq, first..last + 1);
        }
        Ok(m)
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
        let pages = KvLayout::pages(DType::Q8_0, 2, 3, 64).unwrap();
        assert_eq!(pages.bytes(), Ok(2 * 3 * 128 * 68));
        assert_eq!((pages.row_bytes(), pages.pos_bytes(), pages.scale_bytes()), (64, 64, 4));
        assert_eq!(pages.offset(1, 2, 4), 5 * 128 * 68 + 4 * 64);
        assert_eq!(pages.scales_offset(1, 2, 4), 5 * 128 * 68 + 128 * 64 + 4 * 4);
        let half = KvLayout::pages(DType::F16, 2, 3, 80).unwrap();
        assert_eq!((half.offset(1, 2, 4), half.scale_bytes()), (2 * 80 * (5 * 128 + 4), 0));
        let rows = KvLayout::rows(7, 2, 3).unwrap();
        assert_eq!((rows.bytes(), rows.offset(0, 1, 6)), (Ok(7 * 6 * 4), (6 * 6 + 3) * 4));
        let gaps = KvLayout { pos_stride: 10, ..rows };
        assert_eq!(gaps.bytes(), Ok((6 * 10 + 3 + 3) * 4));
        assert_eq!(KvLayout::pages(DType::F16, 0, 1, 8).unwrap().bytes(), Ok(0));
    }

    #[test]
    fn illegal_layouts_are_refused() {
        let good = KvLayout::pages(DType::Q8_0, 1, 2, 32).unwrap();
        assert_eq!(KvLayout::pages(DType::Q4_K, 1, 1, 256), Err(KvError::Type(DType::Q4_K)));
        assert_eq!(KvLayout::pages(DType::F16, 2, 1, usize::MAX / 128 - 7), Err(KvError::Overflow));
        let huge = KvLayout { n_pages: 3, page_stride: usize::MAX & !31, ..good };
        assert_eq!(huge.bytes(), Err(KvError::Overflow));
        let (dtype, what) = (DType::Q8_0, "head_dim");
        let odd = KvLayout::pages(DType::Q8_0, 1, 1, 80);
        assert_eq!(odd, Err(KvError::Block { dtype, what, value: 80, block: 32 }));
        let gaps = KvLayout { pos_stride: 64, ..good };
        assert_eq!(gaps.bytes(), Err(KvError::Shape { what: "pos_stride", expected: 32, got: 64 }));
        let short = KvView::new(good, &[0; 271]).unwrap_err();
        let need = 2 * 128 * 34;
        assert_eq!(short, KvError::Length { what: "KV buffer", unit: "bytes", need, got: 271 });
        let table = PageTable::new(&[0; 5], 2, 3).unwrap_err();
        assert_eq!(table, KvError::Length { what: "page table", unit: "entries", need: 6, got: 5 });
    }

    #[test]
    fn rows_use_pages_of_the_pool() {
        let layout = KvLayout::pages(DType::F32, 4, 1, 8).unwrap();
        let pages = [2, 9, 3, u32::MAX];
        let table = PageTable::new(&pages, 2, 2).unwrap();
        let check =
            |position, sequence, used| table.check_rows(&layout, &[5, position], Some(&[1, sequence]), used);
        let all = Scores::from(1.0);
        assert_eq!(check(127, 0, RowPages::Seen(all)), Ok(2));
        let bad = |page| Err(KvError::Page { row: 1, page, n_pages: 4 });
        assert_eq!(check(128, 0, RowPages::Seen(all)), bad(9));
        assert_eq!(check(255, 1, RowPages::Own), bad(u32::MAX));
        let swapped = PageTable::new(&[9, 2], 1, 2).unwrap();
        assert_eq!(swapped.check_rows(&layout, &[200], None, RowPages::Own), Ok(1));
        let seen = swapped.check_rows(&layout, &[200], None, RowPages::Seen(all));
        assert_eq!(seen, Err(KvError::Page { row: 0, page: 9, n_pages: 4 }));
        let by = |scores| swapped.check_rows(&layout, &[200], None, RowPages::Seen(scores));
        let window = |window| by(Scores { window: Some(window), ..all });
        assert_eq!((window(73), window(u32::MAX)), (Ok(1), seen.clone()));
        assert_eq!(window(74), seen);
        let chunk = |chunk| by(Scores { chunk: Some(chunk), ..all });
        assert_eq!((chunk(64), chunk(128), chunk(120), chunk(300)), (Ok(1), Ok(1), seen.clone(), seen));
        let position = table.check_rows(&layout, &[256], None, RowPages::Own);
        assert_eq!(position, Err(KvError::Position { row: 0, position: 256, capacity: 256 }));
    }

    #[test]
    fn written_rows_may_not_overlap() {
        let good = KvLayout::pages(DType::F32, 2, 2, 8).unwrap();
        let cases = [
            (good, true),
            (KvLayout { pos_stride: 16, head_stride: 8, ..good }, true),
            (KvLayout { pos_stride: 7, ..good }, false),
            (KvLayout { head_stride: 24, ..good }, false),
            (KvLayout { page_stride: 0, ..good }, false),
            (KvLayout { page_stride: 0, n_pages: 1, ..good }, true),
        ];
        for (layout, disjoint) in cases {
            let mut bytes = vec![0; 1 << 15];
            assert_eq!(KvViewMut::new(layout, &mut bytes).is_ok(), disjoint, "{layout:?}");
            assert!(KvView::new(layout, &bytes).is_ok());
        }
    }
}
