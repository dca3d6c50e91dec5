//! The GGML block formats: layouts, exact decoding, and encoding by search.
//!
//! | type | bits per element | elements of a block and layout | NMSE |
//! |------|------------------|-------------------|------|
//! | F32  | 32     | 1: the value, little endian | 0 |
//! | F16  | 16     | 1: the value, little endian | 4.3e-8 |
//! | BF16 | 16     | 1: the upper half of an F32 | 2.8e-6 |
//! | Q4_0 | 4.5    | 32: f16 scale, 4-bit quants from -8 | 6.5e-3 |
//! | Q4_1 | 5      | 32: f16 scale and minimum, 4-bit quants | 4.8e-3 |
//! | Q5_0 | 5.5    | 32: f16 scale, fifth bits, 4-bit quants from -16 | 1.6e-3 |
//! | Q5_1 | 6      | 32: f16 scale and minimum, fifth bits, 4-bit quants | 1.14e-3 |
//! | Q8_0 | 8.5    | 32: f16 scale, 8-bit quants | 2.9e-5 |
//! | Q2_K | 2.625  | 256: 4-bit scales and minima per 16, 2-bit quants, f16 units | 6.7e-2 |
//! | Q3_K | 3.4375 | 256: third bits, 2-bit quants from -4, 6-bit scales per 16, f16 unit | 2.06e-2 |
//! | Q4_K | 4.5    | 256: f16 units, 6-bit scales and minima per 32, 4-bit quants | 4.9e-3 |
//! | Q5_K | 5.5    | 256: f16 units, 6-bit scales and minima per 32, fifth bits, 4-bit quants | 1.21e-3 |
//! | Q6_K | 6.5625 | 256: 4-bit quants from -32, upper 2 bits, 8-bit scales per 16, f16 unit | 2.9e-4 |
//! | Q8_K | 9.125  | 256: f32 scale, 8-bit quants, their sums per 16 | 4.8e-5 |
//! | MXFP4 | 4.25  | 32: 8-bit exponent, 4-bit indices of a table (E2M1) | 1.24e-2 |
//! | IQ4_NL | 4.5  | 32: f16 scale, 4-bit indices of a table | 5.6e-3 |
//! | IQ4_XS | 4.25 | 256: f16 unit, 6-bit scales per 32, 4-bit indices of a table | 5.6e-3 |
//! | IQ2_XXS | 2.0625 | 256: f16 unit, 4-bit scales per 32, 8-bit indices of 8 elements, signs | read only |
//! | IQ2_XS | 2.3125 | 256: f16 unit, 4-bit scales per 16, 9-bit indices of 8 elements, signs | read only |
//! | IQ2_S | 2.5625 | 256: f16 unit, 4-bit scales per 16, 10-bit indices of 8 elements, signs | read only |
//! | IQ3_XXS | 3.0625 | 256: f16 unit, 4-bit scales per 32, 8-bit indices of 4 elements, signs | read only |
//! | IQ3_S | 3.4375 | 256: f16 unit, 4-bit scales per 32, 9-bit indices of 4 elements, signs | read only |
//!
//! NMSE is the normalized mean-square error of [`quantize`] on Gaussian values. The 2- to 6-bit encoders
//! search for the scales with the least squared error, with equal weight for all elements. Scales that just
//! span the range of the values are among the candidates; compared with those alone, the search reduces the
//! squared error on Gaussian values by 11 % (Q4_0) to 37 % (Q2_K). The 8-bit encoders use the spanning scale.
//! [`quantize_weighted`] searches with weights, from an importance matrix.
//!
//! Decoding is exact: bit for bit what the `gguf` Python package computes.

mod blocks32;
mod codebook;
mod finite;
mod fit;
mod grid;
mod grids;
mod kmin;
mod ksym;
mod plain;
mod planes;

pub use blocks32::{BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0};
pub use codebook::{BlockIQ4_NL, BlockIQ4_XS, BlockMXFP4, IQ4_VALUES, MXFP4_VALUES};
pub use finite::first_not_finite;
pub use grid::{BlockIQ2_S, BlockIQ2_XS, BlockIQ2_XXS, BlockIQ3_S, BlockIQ3_XXS};
pub use grid::{IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_XXS_GRID};
pub use kmin::{BlockQ2_K, BlockQ4_K, BlockQ5_K};
pub use ksym::{BlockQ3_K, BlockQ6_K, BlockQ8_K};

use crate::{DType, DTypeError};
use bytemuck::Pod;
use half::f16;

/// A block of `N` elements as laid out in memory.
///
/// Every implementor is a plain struct of alignment 1 whose size is [`DType::block_bytes`], so bytes from
/// anywhere in a file can be viewed as blocks with [`bytemuck::cast_slice`].
///
/// ```
/// use fulmen_core::quant::{BlockQ8_0, Decode};
/// let mut bytes = [1u8; 34];
/// bytes[..2].copy_from_slice(&[0x00, 0x38]); // 0.5 in half precision
/// let blocks: &[BlockQ8_0] = bytemuck::cast_slice(&bytes);
/// let mut out = [0.0; 32];
/// blocks[0].decode(&mut out);
/// assert_eq!(out, [0.5; 32]);
/// ```
pub trait Decode<const N: usize>: Pod {
    /// The type whose blocks these are.
    const DTYPE: DType;

    /// Writes the elements' values.
    fn decode(&self, out: &mut [f32; N]);
}

/// A block that can be written.
pub trait Block<const N: usize>: Decode<N> {
    /// Quantizes finite values.
    ///
    /// Values that are not finite give a valid block of unspecified content; [`quantize`] rejects them.
    fn encode(values: &[f32; N]) -> Self;

    /// As [`encode`](Block::encode), with a weight for the squared error of each value. The weighted error is
    /// never greater than that of [`encode`](Block::encode), whose block equal weights give. Types for which
    /// [`uses_importance`] is false ignore the weights.
    ///
    /// Weights that are negative or not finite give a valid block of unspecified content.
    fn encode_weighted(values: &[f32; N], weights: &[f32; N]) -> Self {
        let _ = weights;
        Self::encode(values)
    }
}

/// Decodes `out.len()` elements from `bytes`.
///
/// The result is bit for bit that of the `gguf` Python package, scales that are infinite or NaN included
/// (the payload of a NaN is not specified). Rows of one tensor can be decoded independently, in any order.
///
/// ```
/// use fulmen_core::{DType, quant};
/// let mut out = [0.0; 2];
/// quant::dequantize(DType::BF16, &[0x80, 0x3f, 0x00, 0xc0], &mut out).unwrap();
/// assert_eq!(out, [1.0, -2.0]);
/// ```
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), DTypeError> {
    check(CALL_DEQUANTIZE, dtype, out.len(), bytes.len())?;
    match dtype {
        DType::F32 => plain::decode_f32(bytes, out),
        DType::F16 => plain::decode_f16(bytes, out),
        DType::BF16 => plain::decode_bf16(bytes, out),
        DType::U32 => return Err(DTypeError::Unsupported { call: CALL_DEQUANTIZE, dtype }),
        DType::Q4_0 => decode_blocks::<BlockQ4_0, 32>(bytes, out),
        DType::Q4_1 => decode_blocks::<BlockQ4_1, 32>(bytes, out),
        DType::Q5_0 => decode_blocks::<BlockQ5_0, 32>(bytes, out),
        DType::Q5_1 => decode_blocks::<BlockQ5_1, 32>(bytes, out),
        DType::Q8_0 => decode_blocks::<BlockQ8_0, 32>(bytes, out),
        DType::Q2_K => decode_blocks::<BlockQ2_K, 256>(bytes, out),
        DType::Q3_K => decode_blocks::<BlockQ3_K, 256>(bytes, out),
        DType::Q4_K => decode_blocks::<BlockQ4_K, 256>(bytes, out),
        DType::Q5_K => decode_blocks::<BlockQ5_K, 256>(bytes, out),
        DType::Q6_K => decode_blocks::<BlockQ6_K, 256>(bytes, out),
        DType::Q8_K => decode_blocks::<BlockQ8_K, 256>(bytes, out),
        DType::MXFP4 => decode_blocks::<BlockMXFP4, 32>(bytes, out),
        DType::IQ4_NL => decode_blocks::<BlockIQ4_NL, 32>(bytes, out),
        DType::IQ4_XS => decode_blocks::<BlockIQ4_XS, 256>(bytes, out),
        DType::IQ2_XXS => decode_blocks::<BlockIQ2_XXS, 256>(bytes, out),
        DType::IQ2_XS => decode_blocks::<BlockIQ2_XS, 256>(bytes, out),
        DType::IQ2_S => decode_blocks::<BlockIQ2_S, 256>(bytes, out),
        DType::IQ3_XXS => decode_blocks::<BlockIQ3_XXS, 256>(bytes, out),
        DType::IQ3_S => decode_blocks::<BlockIQ3_S, 256>(bytes, out),
    }
    Ok(())
}

/// Decodes `elements` elements from `bytes` into a new vector; see [`dequantize`].
pub fn dequantize_to_vec(dtype: DType, bytes: &[u8], elements: usize) -> Result<Vec<f32>, DTypeError> {
    // Checked before the allocation, so that a wrong count cannot allocate more memory than the data needs.
    check(CALL_DEQUANTIZE, dtype, elements, bytes.len())?;
    let mut out = zeros(CALL_DEQUANTIZE, dtype, elements)?;
    dequantize(dtype, bytes, &mut out)?;
    Ok(out)
}

/// Encodes `values` into `out`, which must have the length that [`DType::bytes`] gives. The type must be one
/// that [can be encoded](DType::can_encode).
///
/// Every value must be finite. A finite value beyond what the type can express is stored as the nearest
/// value that it can: the result has no infinities. Works on the calling thread; rows are independent.
///
/// ```
/// use fulmen_core::{DType, DTypeError, quant};
/// let bytes = quant::quantize_to_vec(DType::Q8_0, &[1.0; 32]).unwrap();
/// let back = quant::dequantize_to_vec(DType::Q8_0, &bytes, 32).unwrap();
/// assert!(back.iter().all(|v| (v - 1.0).abs() < 1e-3));
/// let bad = quant::quantize_to_vec(DType::Q8_0, &[f32::NAN; 32]);
/// assert!(matches!(bad, Err(DTypeError::NotFinite { index: 0, .. })));
/// ```
pub fn quantize(dtype: DType, values: &[f32], out: &mut [u8]) -> Result<(), DTypeError> {
    if !dtype.can_encode() {
        return Err(DTypeError::Unsupported { call: CALL_QUANTIZE, dtype });
    }
    check(CALL_QUANTIZE, dtype, values.len(), out.len())?;
    check_finite(dtype, values)?;
    match dtype {
        DType::F32 => plain::encode_f32(values, out),
        DType::F16 => plain::encode_f16(values, out),
        DType::BF16 => plain::encode_bf16(values, out),
        DType::U32 => return Err(DTypeError::Unsupported { call: CALL_QUANTIZE, dtype }),
        DType::Q4_0 => encode_blocks::<BlockQ4_0, 32>(values, out),
        DType::Q4_1 => encode_blocks::<BlockQ4_1, 32>(values, out),
        DType::Q5_0 => encode_blocks::<BlockQ5_0, 32>(values, out),
        DType::Q5_1 => encode_blocks::<BlockQ5_1, 32>(values, out),
        DType::Q8_0 => encode_blocks::<BlockQ8_0, 32>(values, out),
        DType::Q2_K => encode_blocks::<BlockQ2_K, 256>(values, out),
        DType::Q3_K => encode_blocks::<BlockQ3_K, 256>(values, out),
        DType::Q4_K => encode_blocks::<BlockQ4_K, 256>(values, out),
        DType::Q5_K => encode_blocks::<BlockQ5_K, 256>(values, out),
        DType::Q6_K => encode_blocks::<BlockQ6_K, 256>(values, out),
        DType::Q8_K => encode_blocks::<BlockQ8_K, 256>(values, out),
        DType::MXFP4 => encode_blocks::<BlockMXFP4, 32>(values, out),
        DType::IQ4_NL => encode_blocks::<BlockIQ4_NL, 32>(values, out),
        DType::IQ4_XS => encode_blocks::<BlockIQ4_XS, 256>(values, out),
        DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S | DType::IQ3_XXS | DType::IQ3_S => {
            return Err(DTypeError::Unsupported { call: CALL_QUANTIZE, dtype });
        }
    }
    Ok(())
}

/// Encodes `values` into a new vector; see [`quantize`].
pub fn quantize_to_vec(dtype: DType, values: &[f32]) -> Result<Vec<u8>, DTypeError> {
    if !dtype.can_encode() {
        return Err(DTypeError::Unsupported { call: CALL_QUANTIZE, dtype });
    }
    let mut out = zeros(CALL_QUANTIZE, dtype, dtype.bytes(values.len())?)?;
    quantize(dtype, values, &mut out)?;
    Ok(out)
}

/// Whether [`quantize_weighted`] uses the importance for this type: the types below 8 bits whose scales are
/// searched for.
pub const fn uses_importance(dtype: DType) -> bool {
    match dtype {
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::IQ4_NL | DType::IQ4_XS => true,
        DType::Q2_K | DType::Q3_K | DType::Q4_K | DType::Q5_K | DType::Q6_K => true,
        DType::F32 | DType::F16 | DType::BF16 | DType::U32 => false,
        DType::Q8_0 | DType::Q8_K | DType::MXFP4 => false,
        DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S | DType::IQ3_XXS | DType::IQ3_S => false,
    }
}

/// As [`quantize`], with the importance of each value: the mean square of the activations that multiply it.
///
/// The squared error of a value `x` is weighted by its importance times `sqrt(s² + x²)`, `s²` the mean square
/// of the values of its block. Every importance must be finite and at least 0. Where [`uses_importance`] is
/// false the result is that of [`quantize`].
///
/// ```
/// use fulmen_core::{DType, quant};
/// let values: Vec<f32> = (0..32).map(|i| (i as f32).sin()).collect();
/// let mut importance = [0.01; 32];
/// importance[7] = 100.0;
/// let (mut plain, mut weighted) = ([0; 18], [0; 18]);
/// quant::quantize(DType::Q4_0, &values, &mut plain).unwrap();
/// quant::quantize_weighted(DType::Q4_0, &values, &importance, &mut weighted).unwrap();
/// let error = |bytes: &[u8]| {
///     (quant::dequantize_to_vec(DType::Q4_0, bytes, 32).unwrap()[7] - values[7]).abs()
/// };
/// assert!(error(&weighted) < error(&plain));
/// ```
pub fn quantize_weighted(
    dtype: DType,
    values: &[f32],
    importance: &[f32],
    out: &mut [u8],
) -> Result<(), DTypeError> {
    if importance.len() != values.len() {
        let (elements, size) = (values.len(), size_of::<f32>());
        let (expected, got) = (elements.saturating_mul(size), size_of_val(importance));
        return Err(DTypeError::Length { call: CALL_IMPORTANCE, dtype: DType::F32, elements, expected, got });
    }
    if let Some(index) = importance.iter().position(|x| !(x.is_finite() && *x >= 0.0)) {
        return Err(DTypeError::Importance { dtype, index });
    }
    if !uses_importance(dtype) {
        return quantize(dtype, values, out);
    }
    check(CALL_QUANTIZE, dtype, values.len(), out.len())?;
    check_finite(dtype, values)?;
    match dtype {
        DType::Q4_0 => encode_blocks_weighted::<BlockQ4_0, 32>(values, importance, out),
        DType::Q4_1 => encode_blocks_weighted::<BlockQ4_1, 32>(values, importance, out),
        DType::Q5_0 => encode_blocks_weighted::<BlockQ5_0, 32>(values, importance, out),
        DType::Q5_1 => encode_blocks_weighted::<BlockQ5_1, 32>(values, importance, out),
        DType::Q2_K => encode_blocks_weighted::<BlockQ2_K, 256>(values, importance, out),
        DType::Q3_K => encode_blocks_weighted::<BlockQ3_K, 256>(values, importance, out),
        DType::Q4_K => encode_blocks_weighted::<BlockQ4_K, 256>(values, importance, out),
        DType::Q5_K => encode_blocks_weighted::<BlockQ5_K, 256>(values, importance, out),
        DType::Q6_K => encode_blocks_weighted::<BlockQ6_K, 256>(values, importance, out),
        DType::IQ4_NL => encode_blocks_weighted::<BlockIQ4_NL, 32>(values, importance, out),
        DType::IQ4_XS => encode_blocks_weighted::<BlockIQ4_XS, 256>(values, importance, out),
        _ => return Err(DTypeError::Unsupported { call: CALL_QUANTIZE, dtype }),
    }
    Ok(())
}

/// A vector for the result of `call`: a tensor may be larger than the memory.
fn zeros<T: Clone + Default>(call: &'static str, dtype: DType, len: usize) -> Result<Vec<T>, DTypeError> {
    let mut out = Vec::new();
    let bytes = len.saturating_mul(size_of::<T>());
    out.try_reserve_exact(len).map_err(|_| DTypeError::Memory { call, dtype, bytes })?;
    out.resize(len, T::default());
    Ok(out)
}

const CALL_DEQUANTIZE: &str = "dequantize";
const CALL_QUANTIZE: &str = "quantize";
const CALL_IMPORTANCE: &str = "quantize: the importance";

/// An error for values that cannot be quantized.
fn check_finite(dtype: DType, values: &[f32]) -> Result<(), DTypeError> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(DTypeError::NotFinite { call: CALL_QUANTIZE, dtype, index }),
        None => Ok(()),
    }
}

/// An error for types without values and for inconsistent lengths.
fn check(call: &'static str, dtype: DType, elements: usize, got: usize) -> Result<(), DTypeError> {
    if dtype == DType::U32 {
        return Err(DTypeError::Unsupported { call, dtype });
    }
    let expected = dtype.bytes(elements)?;
    if got != expected {
        return Err(DTypeError::Length { call, dtype, elements, expected, got });
    }
    Ok(())
}

/// The casts below require that a block struct has the layout of its type's block and alignment 1.
const fn layout_holds<B: Decode<N>, const N: usize>() -> bool {
    size_of::<B>() == B::DTYPE.block_bytes() && align_of::<B>() == 1 && N == B::DTYPE.block_len()
}

/// Lengths must have been checked.
fn decode_blocks<B: Decode<N>, const N: usize>(bytes: &[u8], out: &mut [f32]) {
    const { assert!(layout_holds::<B, N>()) };
    let blocks: &[B] = bytemuck::cast_slice(bytes);
    for (block, out) in blocks.iter().zip(out.as_chunks_mut::<N>().0) {
        block.decode(out);
    }
}

/// Lengths must have been checked.
fn encode_blocks<B: Block<N>, const N: usize>(values: &[f32], out: &mut [u8]) {
    const { assert!(layout_holds::<B, N>()) };
    let blocks: &mut [B] = bytemuck::cast_slice_mut(out);
    for (block, values) in blocks.iter_mut().zip(values.as_chunks::<N>().0) {
        *block = B::encode(values);
    }
}

/// Lengths must have been checked.
fn encode_blocks_weighted<B: Block<N>, const N: usize>(values: &[f32], importance: &[f32], out: &mut [u8]) {
    const { assert!(layout_holds::<B, N>()) };
    let blocks: &mut [B] = bytemuck::cast_slice_mut(out);
    let groups = values.as_chunks::<N>().0.iter().zip(importance.as_chunks::<N>().0);
    for (block, (values, importance)) in blocks.iter_mut().zip(groups) {
        *block = B::encode_weighted(values, &weights_of(values, importance));
    }
}

/// The weights of the squared errors of a block, the largest of which is 1; none but 0 where no value is of
/// any importance.
fn weights_of<const N: usize>(values: &[f32; N], importance: &[f32; N]) -> [f32; N] {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let mean_square = values.iter().map(|x| square(*x)).sum::<f64>() / N as f64;
    let weight = |i: usize| f64::from(importance[i]) * (mean_square + square(values[i])).sqrt();
    let weights: [f64; N] = std::array::from_fn(weight);
    let largest = weights.iter().copied().fold(0.0, f64::max);
    weights.map(|weight| if largest > 0.0 { (weight / largest) as f32 } else { 0.0 })
}

/// The block that `search` finds with these weights, or that of [`Block::encode`] if its weighted error is
/// less: the search is a descent from a few starts, and clips where it does not matter.
fn encode_weighted<B: Block<N>, const N: usize>(
    values: &[f32; N],
    weights: &[f32; N],
    search: impl Fn(fit::Given) -> B,
) -> B {
    // What is not important still has a say, which keeps sums from vanishing and its scale near its values.
    const LEAST: f32 = 1e-6;
    let plain = B::encode(values);
    let largest = weights.iter().copied().fold(0.0, f32::max);
    if !(largest > 0.0 && largest.is_finite()) {
        return plain;
    }
    let relative = weights.map(|weight| (weight / largest).max(LEAST));
    let searched = search(fit::Given(&relative));
    let error = |block: &B| {
        let mut stored = [0.0; N];
        block.decode(&mut stored);
        let errors = values.iter().zip(stored).map(|(x, y)| (f64::from(*x) - f64::from(y)).powi(2));
        errors.zip(weights).map(|(error, weight)| error * f64::from(*weight)).sum::<f64>()
    };
    if error(&searched) < error(&plain) { searched } else { plain }
}

/// An f16 field of a block as f32.
#[inline(always)]
fn f16_field(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}
