//! Matmul with block-quantized weights: `out[m, n] = epilogue(a[m, k] · W[n, k]ᵀ)`, A in f32.
//!
//! - **Formats.** Q4_0, Q4_1, Q8_0, Q4_K, Q5_K, Q6_K and MXFP4, as [`QuantWeight::dtype`].
//! - **Repacking.** W is uploaded as [`QuantWeight::repack`] gives it: the same information in as many bytes
//!   (each plane of a row rounded up to 16), but each row as separate planes of quants and scales that can be
//!   loaded as whole vectors, with 32 consecutive elements in a vector of quants. Blocks of 18, 34 or 210
//!   bytes would need two loads and a shift for each word; those of 144 and 176 bytes could be read as they
//!   are, but hold two groups with a scale each in a vector, which doubles the work that is not done once for
//!   32 elements.
//! - **GEMV and small-M GEMM.** [`QuantGemv`] streams W once for up to eight rows. With [`Activations::Q8`] a
//!   first launch quantizes A to q8 (int8 with a scale for every 32), and four products are one
//!   `dot4I8Packed`, for some 1e-5 of squared relative error. [`Activations::F32`] multiplies A as it is.
//!   [`fused_gemv()`] does so for several weights in one launch, and [`rms_norm_q8`] quantizes together with
//!   the norm before. The fused launch of gate and up also quantizes its output for the next matmul.
//! - **GEMM.** [`Int8Tile`] multiplies q8 activations by tiles of W as int8 in workgroup memory;
//!   [`CoopTile`](super::matmul::CoopTile) multiplies f16 on cooperative matrices. For f32 activations, rows
//!   of W are dequantized to scratch, and the kernels of [`matmul`](super::matmul) multiply them from there.
//! - **Launches** are those of [`matmul`](super::matmul), with W as `MatmulBuffer::B(0)`.

mod choose;
mod dequantize;
mod format;
mod fused_gemv;
mod gemm_int8;
mod gemv;
mod launches;
mod quantize_q8;
mod repack;

pub use choose::{TILES, candidates, choose, choose_batch_invariant};
pub use fused_gemv::{FusedBuffer, FusedOutput, OutputForm, fused_gemv};
pub use gemm_int8::Int8Tile;
pub use gemv::{Activations, LaneSum, QuantGemv};
pub use launches::{QuantError, QuantMatmulConfig, column_launches, launches, launches_with, split_columns};
pub(super) use quantize_q8::q8_block_place;
pub use quantize_q8::{q8_bytes, quantize_q8, rms_norm_q8};

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

    /// The text that reads a packed row over the array `w` (`fetch`, `decode` and `row_length`, by
    /// `params.k`), and the function that makes numbers of a word of quants.
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

    /// As [`repack`](Self::repack), into the caller's memory, such as a mapped buffer.
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
