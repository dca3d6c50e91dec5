//! Decoding agrees bit for bit with the `gguf` Python package.
//!
//! `scripts/make-golden-blocks.py` makes the files and describes their format.

use fulmen_core::{DType, quant};
use std::path::PathBuf;

/// The block bytes and the expected values of a type.
fn golden(dtype: DType) -> (Vec<u8>, Vec<f32>) {
    let name = format!("{}.bin", dtype.name().to_lowercase());
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let file = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let (elements, size) = (word(0) as usize, word(4) as usize);
    assert_eq!(file.len(), 8 + size + 4 * elements, "{}", path.display());
    let values = (0..elements).map(|i| f32::from_bits(word(8 + size + 4 * i))).collect();
    (file[8..8 + size].to_vec(), values)
}

#[test]
fn decoding_is_that_of_gguf() {
    for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::U32) {
        let (bytes, expected) = golden(dtype);
        assert!(expected.len() >= 2 * dtype.block_len(), "{dtype}: too few blocks");
        let values = quant::dequantize_to_vec(dtype, &bytes, expected.len()).unwrap();
        for (i, (value, expected)) in values.iter().zip(&expected).enumerate() {
            let same = value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan();
            assert!(same, "{dtype}: element {i} is {value:e}, must be {expected:e}");
        }
    }
}

/// Blocks may stand at any address.
#[test]
fn decoding_needs_no_alignment() {
    for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::U32) {
        let (bytes, expected) = golden(dtype);
        for shift in 1..4 {
            let mut shifted = vec![0; shift];
            shifted.extend_from_slice(&bytes);
            let values = quant::dequantize_to_vec(dtype, &shifted[shift..], expected.len()).unwrap();
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            assert!(values.iter().zip(&expected).all(same), "{dtype} shifted by {shift}");
        }
    }
}
