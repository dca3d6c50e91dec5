//! Search for NaN and infinities without dequantizing.

use super::{BlockMXFP4, Decode};
use crate::DType;

/// The byte offsets of the f16 scales and minima in a block.
const fn f16_offsets(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::F16 | DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::IQ4_NL | DType::IQ4_XS => &[0],
        DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S | DType::IQ3_XXS | DType::IQ3_S => &[0],
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        DType::F32 | DType::BF16 | DType::U32 | DType::Q8_K | DType::MXFP4 => &[],
    }
}

/// The index of the first element of the first block whose scale or minimum (or, for floating-point
/// types, whose value) is NaN or infinite. Bytes after the last whole block are ignored.
///
/// ```
/// use fulmen_core::{DType, quant};
/// let mut bytes = vec![0; 3 * 34];
/// assert_eq!(quant::first_not_finite(DType::Q8_0, &bytes), None);
/// bytes[68..70].copy_from_slice(&[0x00, 0x7c]); // infinity in f16
/// assert_eq!(quant::first_not_finite(DType::Q8_0, &bytes), Some(64));
/// ```
pub fn first_not_finite(dtype: DType, bytes: &[u8]) -> Option<usize> {
    let block = match dtype {
        DType::U32 => None,
        // The exponent of f16 has five bits, that of the others eight.
        DType::BF16 => find::<2>(bytes, |half| u16::from_le_bytes(half) & 0x7f80 == 0x7f80),
        DType::F32 => find::<4>(bytes, |word| u32::from_le_bytes(word) & 0x7f80_0000 == 0x7f80_0000),
        DType::F16 => find::<2>(bytes, |half| u16::from_le_bytes(half) & 0x7c00 == 0x7c00),
        DType::Q8_K => bytes.chunks_exact(dtype.block_bytes()).position(|block| {
            let scale = block.first_chunk().map_or(0, |scale| u32::from_le_bytes(*scale));
            scale & 0x7f80_0000 == 0x7f80_0000
        }),
        DType::MXFP4 => {
            let blocks: &[BlockMXFP4] = bytemuck::cast_slice(&bytes[..bytes.len() / 17 * 17]);
            // Every scale is finite; with the largest ones values are not.
            let bad = |block: &BlockMXFP4| {
                let mut values = [0.0; 32];
                block.decode(&mut values);
                values.iter().any(|value| !value.is_finite())
            };
            blocks.iter().position(|block| block.e > 252 && bad(block))
        }
        _ => {
            let bad = |block: &[u8], at: usize| block[at + 1] & 0x7c == 0x7c;
            let blocks = bytes.chunks_exact(dtype.block_bytes());
            match f16_offsets(dtype) {
                [a] => blocks.into_iter().position(|block| bad(block, *a)),
                [a, b] => blocks.into_iter().position(|block| bad(block, *a) | bad(block, *b)),
                _ => None,
            }
        }
    };
    block.map(|block| block * dtype.block_len())
}

/// The index of the first `N`-byte value for which `bad` holds. Chunks are tested as a whole first, which
/// vectorizes.
fn find<const N: usize>(bytes: &[u8], bad: impl Fn([u8; N]) -> bool + Copy) -> Option<usize> {
    const CHUNK: usize = 4096;
    let values = bytes.as_chunks::<N>().0;
    for (chunk, values) in values.chunks(CHUNK).enumerate() {
        if values.iter().fold(false, |any, value| any | bad(*value)) {
            return values.iter().position(|value| bad(*value)).map(|at| chunk * CHUNK + at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant;

    /// The result is that of dequantizing and searching.
    #[test]
    fn every_scale_of_every_type_is_checked() {
        for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::U32) {
            let elements = 3 * dtype.block_len().max(4);
            let values: Vec<f32> = (0..elements).map(|i| i as f32 - 3.0).collect();
            let good = match dtype.can_encode() {
                true => quant::quantize_to_vec(dtype, &values).unwrap(),
                false => vec![0; dtype.bytes(elements).unwrap()],
            };
            assert_eq!(first_not_finite(dtype, &good), None, "{dtype}");
            let mut found = 0;
            for at in 0..good.len() {
                let mut bytes = good.clone();
                // All exponent bits of a value that ends here.
                bytes[at] |= 0x7f;
                if at > 0 {
                    bytes[at - 1] |= 0x80;
                }
                let decoded = quant::dequantize_to_vec(dtype, &bytes, elements).unwrap();
                let first = decoded.iter().position(|x| !x.is_finite());
                let block = first.map(|first| first / dtype.block_len() * dtype.block_len());
                assert_eq!(first_not_finite(dtype, &bytes), block, "{dtype}, byte {at}");
                found += usize::from(block.is_some());
            }
            assert!(found >= 3, "{dtype}");
        }
    }
}
