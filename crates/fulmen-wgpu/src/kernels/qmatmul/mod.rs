//! Matrix products with block-quantized weights: `out[m, n] = epilogue(a[m, k] · W[n, k]ᵀ)`, A in f32.
//!
//! - **Formats.** Q4_0, Q4_1, Q8_0, Q4_K, Q5_K and Q6_K, as [`QuantWeight::dtype`].
//! - **Repacking.** W is uploaded as [`QuantWeight::repack`] gives it: the same information in as many bytes
//!   (each part of a row rounded up to 16), but each row as separate planes of codes and scales that can be
//!   loaded as whole vectors, and with 32 consecutive elements in a vector of codes. Blocks of 18, 34 or 210
//!   bytes would need two loads and a shift for each word; those of 144 and 176 bytes could be read as they
//!   are, but hold two groups with a scale each in a vector, which doubles the work that is not done once for
//!   32 elements.
//! - **Few rows of A.** [`Rows`] streams W once for up to eight rows. With [`Values::Int8`] a first launch
//!   turns A into int8 codes with a scale for every 32, and the products are `dot4I8Packed`: four to an
//!   instruction, against some 1e-5 of squared relative error. [`Values::Float`] multiplies A as it is.
//!   [`joint()`] does so for several weights in one launch, and [`norm_and_codes`] makes the codes with the norm before.
//!   The joint launch of gate and up makes the codes of what comes out of it, for the product that is next.
//! - **Many rows.** [`CodeTiles`] multiplies int8 codes of A by tiles of W that are decoded to codes on the way into
//!   workgroup memory. For values of A as they are, parts of W become f32 in scratch, and the kernels of
//!   [`matmul`](super::matmul) multiply them from there.
//! - **Plans** are those of [`matmul`](super::matmul), with W as `Role::B(0)`.

mod choose;
mod dequantize;
mod format;
mod joint;
mod plan;
mod quantize;
mod repack;
mod rows;
mod tiled;

pub use choose::{TILES, candidates, choose};
pub use joint::{JointRole, Next, Section, joint};
pub use plan::{Choice, QuantError, plan, plan_columns, plan_with, split_columns};
pub(super) use quantize::place_of_item;
pub use quantize::{codes_bytes, norm_and_codes, quantize_a};
pub use rows::{Rows, Team, Values};
pub use tiled::CodeTiles;

use fulmen_core::DType;

/// A weight of `n` rows of `k` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantWeight {
    /// The block format.
    pub dtype: DType,
    /// Rows: columns of the output.
    pub n: u32,
    /// Elements of a row: whole blocks.
    pub k: u32,
}

impl std::fmt::Display for QuantWeight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { dtype, n, k } = self;
        write!(f, "{dtype:?} n={n} k={k}")
    }
}

impl QuantWeight {
    /// Bytes of the weight as [`repack`](Self::repack) gives it.
    ///
    /// # Errors
    /// Where there are no kernels for the format, or `k` is not whole blocks, or a side is zero.
    pub fn packed_bytes(&self) -> Result<u64, QuantError> {
        Ok(u64::from(self.n) * format::Format::of(*self)?.row_bytes(self.k))
    }

    /// Bytes of a row as [`repack`](Self::repack) gives it, a multiple of 16.
    ///
    /// # Errors
    /// As [`packed_bytes`](Self::packed_bytes).
    pub fn packed_row_bytes(&self) -> Result<u64, QuantError> {
        Ok(format::Format::of(*self)?.row_bytes(self.k))
    }

    /// The text that reads a packed row over the array `w` (`fetch`, `decode` and `row_length`, by `params.k`), and the
    /// function that makes numbers of a word of codes.
    pub(super) fn reader(&self) -> Result<(String, &'static str), QuantError> {
        let format = format::Format::of(*self)?;
        Ok((format.text(), format.unpack()))
    }

    /// The GGML blocks of the whole weight in the layout that the kernels read.
    ///
    /// # Errors
    /// As [`packed_bytes`](Self::packed_bytes); and where `blocks` is not as long as the weight.
    pub fn repack(&self, blocks: &[u8]) -> Result<Vec<u8>, QuantError> {
        let mut out = vec![0; self.packed_bytes()? as usize];
        self.repack_into(blocks, &mut out)?;
        Ok(out)
    }

    /// As [`repack`](Self::repack), into memory that the caller brings, such as a mapped buffer.
    ///
    /// # Errors
    /// As [`repack`](Self::repack); and where `out` is not [`packed_bytes`](Self::packed_bytes) long.
    pub fn repack_into(&self, blocks: &[u8], out: &mut [u8]) -> Result<(), QuantError> {
        let format = format::Format::of(*self)?;
        let row = self.k as usize / self.dtype.block_len() * self.dtype.block_bytes();
        let want = (row * self.n as usize, self.packed_bytes()? as usize);
        if (blocks.len(), out.len()) != want {
            let (expected, got) =
                if blocks.len() == want.0 { (want.1, out.len()) } else { (want.0, blocks.len()) };
            return Err(QuantError::Length { weight: *self, expected, got });
        }
        let rows = out.chunks_exact_mut(format.row_bytes(self.k) as usize);
        for (blocks, out) in blocks.chunks_exact(row).zip(rows) {
            repack::row(format, blocks, out);
        }
        Ok(())
    }
}
