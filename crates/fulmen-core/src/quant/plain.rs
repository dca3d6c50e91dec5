//! The floating-point types, little endian.
//!
//! Bytes need not be aligned, so half-precision elements pass through a small array on the stack; converting
//! a whole array uses the processor's instructions where it has them.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

const CHUNK: usize = 128;

pub(super) fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (quad, out) in bytes.as_chunks::<4>().0.iter().zip(out) {
        *out = f32::from_le_bytes(*quad);
    }
}

pub(super) fn encode_f32(values: &[f32], out: &mut [u8]) {
    for (quad, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
        *quad = value.to_le_bytes();
    }
}

pub(super) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.chunks(2 * CHUNK).zip(out.chunks_mut(CHUNK)) {
        let mut chunk = [f16::ZERO; CHUNK];
        for (value, pair) in chunk.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *value = f16::from_le_bytes(*pair);
        }
        chunk[..out.len()].convert_to_f32_slice(out);
    }
}

pub(super) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (pair, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*pair)) << 16);
    }
}

pub(super) fn encode_f16(values: &[f32], out: &mut [u8]) {
    let limit = f16::MAX.to_f32();
    for (values, out) in values.chunks(CHUNK).zip(out.chunks_mut(2 * CHUNK)) {
        let mut clamped = [0.0; CHUNK];
        for (to, value) in clamped.iter_mut().zip(values) {
            *to = value.clamp(-limit, limit);
        }
        let mut chunk = [f16::ZERO; CHUNK];
        chunk.convert_from_f32_slice(&clamped);
        for (pair, value) in out.as_chunks_mut::<2>().0.iter_mut().zip(&chunk) {
            *pair = value.to_le_bytes();
        }
    }
}

pub(super) fn encode_bf16(values: &[f32], out: &mut [u8]) {
    let limit = bf16::MAX.to_f32();
    for (pair, value) in out.as_chunks_mut::<2>().0.iter_mut().zip(values) {
        // Rounds to nearest, ties to even. Written out because the values are known not to be NaN, whose
        // treatment would prevent vectorization.
        let bits = value.clamp(-limit, limit).to_bits();
        let rounded = bits + 0x7fff + ((bits >> 16) & 1);
        *pair = ((rounded >> 16) as u16).to_le_bytes();
    }
}
