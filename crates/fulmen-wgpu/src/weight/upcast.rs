//! Format upcasts: formats without kernels, converted to formats that have them.
//!
//! | stored | converted to | why |
//! |---|---|---|
//! | Q5_0 | Q8_0 | the same scale, quants less 16: exact |
//! | Q3_K | Q6_K | the same scale, scales and quants less 32 and 4: exact |
//! | IQ4_NL | Q8_0 | the same scale, quants from the table: exact |
//! | IQ3_S | Q6_K | the same scale, its factors as scales, signed entries of the grid as quants: exact |
//! | Q5_1, Q2_K, Q8_K, IQ4_XS | F32 | no other format holds their values; they take more memory |
//! | IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS | F32 | likewise |

use fulmen_core::quant::{self, BlockIQ3_S, BlockIQ4_NL, BlockQ6_K, BlockQ8_0};
use fulmen_core::{DType, DTypeError};
use half::f16;

/// The type that weights of `dtype` are stored as on the device.
pub(crate) fn stored_as(dtype: DType) -> DType {
    match dtype {
        DType::Q5_0 | DType::IQ4_NL => DType::Q8_0,
        DType::Q3_K | DType::IQ3_S => DType::Q6_K,
        DType::Q5_1 | DType::Q2_K | DType::Q8_K | DType::IQ4_XS => DType::F32,
        DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S | DType::IQ3_XXS => DType::F32,
        _ => dtype,
    }
}

/// The type and bytes that blocks of `dtype` are converted to; `None` where there are kernels for them.
pub(crate) fn upcast(dtype: DType, bytes: &[u8]) -> Result<Option<(DType, Vec<u8>)>, DTypeError> {
    let converted = match dtype {
        DType::Q5_0 => blocks(bytes, q5_0),
        DType::Q3_K => blocks(bytes, q3_k),
        DType::IQ4_NL => blocks(bytes, iq4_nl),
        DType::IQ3_S => blocks(bytes, iq3_s),
        _ if stored_as(dtype) == DType::F32 && dtype.is_quantized() => {
            let elements = bytes.len() / dtype.block_bytes() * dtype.block_len();
            let values = quant::dequantize_to_vec(dtype, bytes, elements)?;
            bytemuck::cast_slice(&values).to_vec()
        }
        _ => return Ok(None),
    };
    Ok(Some((stored_as(dtype), converted)))
}

fn blocks<const FROM: usize, const TO: usize>(
    bytes: &[u8],
    convert: fn(&[u8; FROM], &mut [u8; TO]),
) -> Vec<u8> {
    let blocks = bytes.as_chunks::<FROM>().0;
    let mut out = vec![0; blocks.len() * TO];
    for (from, to) in blocks.iter().zip(out.as_chunks_mut::<TO>().0) {
        convert(from, to);
    }
    out
}

/// Scale, a word of high bits, 16 bytes of low ones; to scale and 32 quants.
fn q5_0(from: &[u8; 22], to: &mut [u8; 34]) {
    to[..2].copy_from_slice(&from[..2]);
    let high = u32::from_le_bytes([from[2], from[3], from[4], from[5]]);
    for i in 0..32 {
        let low = if i < 16 { from[6 + i] & 15 } else { from[6 + i - 16] >> 4 };
        let quant = low | ((high >> i & 1) as u8) << 4;
        // As two's complement.
        to[2 + i] = quant.wrapping_sub(16);
    }
}

fn iq4_nl(from: &[u8; 18], to: &mut [u8; 34]) {
    let block: BlockIQ4_NL = bytemuck::cast(*from);
    *to = bytemuck::cast(BlockQ8_0 { d: block.d, qs: block.quants() });
}

fn iq3_s(from: &[u8; 110], to: &mut [u8; 210]) {
    let block: BlockIQ3_S = bytemuck::cast(*from);
    // A factor is for two groups of 16, and is at most 31.
    let scales: [i8; 16] = std::array::from_fn(|j| block.factor(j / 2) as i8);
    *to = bytemuck::cast(BlockQ6_K::new(f16::from_le_bytes(block.d), &scales, &block.quants()));
}

/// 32 bytes of high bits, 64 of low ones, 12 of scales, scale; to 128 bytes of low and 64 of high bits, 16
/// scales, scale.
fn q3_k(from: &[u8; 110], to: &mut [u8; 210]) {
    let (high, low, scales) = (&from[..32], &from[32..96], &from[96..108]);
    to[208..].copy_from_slice(&from[108..]);
    for (i, scale) in to[192..208].iter_mut().enumerate() {
        let four = if i < 8 { scales[i] & 15 } else { scales[i - 8] >> 4 };
        let two = scales[8 + i % 4] >> (2 * (i / 4)) & 3;
        *scale = (four | two << 4).wrapping_sub(32);
    }
    for i in 0..256 {
        let (half, quarter, l) = (i / 128, i / 32 % 4, i % 32);
        let low_bits = low[32 * half + l] >> (2 * quarter) & 3;
        let set = high[l] >> (4 * half + quarter) & 1;
        // Less 4 where the high bit is not set, plus the 32 that Q6_K subtracts.
        let quant = low_bits + 28 + 4 * set;
        let at = 64 * half + l + 32 * (quarter & 1);
        to[at] |= (quant & 15) << (4 * (quarter / 2));
        to[128 + 32 * half + l] |= (quant >> 4) << (2 * quarter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upcast_keeps_the_values() {
        let values: Vec<f32> = (0..1024).map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0).collect();
        use DType::{IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q5_0, Q5_1, Q8_K};
        for dtype in [Q5_0, Q5_1, Q2_K, Q3_K, Q8_K, IQ4_NL, IQ4_XS] {
            let bytes = quant::quantize_to_vec(dtype, &values).unwrap();
            let (other, converted) = upcast(dtype, &bytes).unwrap().unwrap();
            let expected = quant::dequantize_to_vec(dtype, &bytes, 1024).unwrap();
            assert_eq!(quant::dequantize_to_vec(other, &converted, 1024).unwrap(), expected, "{dtype}");
        }
        let mut random = fastrand::Rng::with_seed(2);
        use DType::{IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
        for dtype in [IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S] {
            let mut bytes: Vec<u8> = (0..dtype.bytes(1024).unwrap()).map(|_| random.u8(..)).collect();
            for (block, d) in bytes.chunks_mut(dtype.block_bytes()).zip([0.01, -3.0, 3e-7, -6e-5]) {
                block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
            }
            let (other, converted) = upcast(dtype, &bytes).unwrap().unwrap();
            assert_eq!(other, stored_as(dtype));
            let expected = quant::dequantize_to_vec(dtype, &bytes, 1024).unwrap();
            assert_eq!(quant::dequantize_to_vec(other, &converted, 1024).unwrap(), expected, "{dtype}");
        }
        assert!(upcast(DType::Q4_K, &[0; 144]).unwrap().is_none());
    }
}
