//! The vector operations of the matmul kernels, once per instruction set.
//!
//! Kernels are generic over [`Simd`] and always inlined into a function that enables the features of the
//! instruction set; otherwise the operations would not become single instructions.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::{Avx2, dot4_signed};
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(super) use neon::Neon;
pub(super) use portable::Portable;

/// Vectors of one instruction set. `LANES` 32-bit lanes make a vector.
///
/// # Safety
///
/// Every method needs the instruction set, and pointers that are readable (writable for stores) for the whole
/// vector; no alignment is assumed.
pub(super) trait Simd: Copy + Send + Sync + 'static {
    /// 32-bit lanes per vector, a power of two, 16 at most.
    const LANES: usize;
    /// XORed to the signed q8 activations for [`dot4`](Simd::dot4): 0x80 if the instruction takes them
    /// unsigned. Packed panels contain the correction.
    const X_FLIP: u8;
    /// MR of the f32 micro-kernel: rows of activations.
    const F32_MR: usize;
    /// NR of the f32 micro-kernel in vectors: columns of the output.
    const F32_NV: usize;
    /// MR of the q8 micro-kernel.
    const Q8_MR: usize;
    /// NR of the q8 micro-kernel in vectors.
    const Q8_NV: usize;

    /// `LANES` f32 values.
    type F: Copy;
    /// `LANES` 32-bit integers.
    type I: Copy;
    /// Four signed bytes of weights per lane, as `dot4` takes them.
    type W: Copy;
    /// Four bytes of activations, repeated for each lane.
    type X: Copy;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn load_f16(p: *const u16) -> Self::F;
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    unsafe fn store(p: *mut f32, v: Self::F);
    /// `a * b + c`, fused where the instruction set can.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// The sum of all lanes.
    unsafe fn sum(v: Self::F) -> f32;

    unsafe fn load_i(p: *const i32) -> Self::I;
    unsafe fn splat_i(x: i32) -> Self::I;
    /// Stores `-v`.
    unsafe fn store_negated(p: *mut i32, v: Self::I);
    unsafe fn load_w(p: *const i8) -> Self::W;
    unsafe fn splat4(p: *const u8) -> Self::X;
    /// Adds to each lane the dot product of its four bytes of weights and of activations.
    unsafe fn dot4(acc: Self::I, w: Self::W, x: Self::X) -> Self::I;
    unsafe fn to_f(v: Self::I) -> Self::F;

    /// The dot product of 256 signed weights and 256 signed activations (none below -127), each 16 of it
    /// multiplied by its scale of `s[16]`, added to `acc`: the sum over its lanes is the result.
    unsafe fn dot256(w: *const i8, x: *const i8, s: *const f32, acc: Self::F) -> Self::F;

    /// Writes the `LANES` x `LANES` tile of 32-bit values at `src` (rows `src_stride` apart) transposed to
    /// `dst` (rows `dst_stride` apart). Strides are in values. The rows are written in order, so they may
    /// overlap: later rows overwrite earlier ones.
    unsafe fn transpose(src: *const u32, src_stride: usize, dst: *mut u32, dst_stride: usize);
}

/// Converts f16 to f32, exactly; infinities and NaN are preserved.
#[inline(always)]
pub(super) fn f16_to_f32(h: u16) -> f32 {
    let magnitude = u32::from(h & 0x7fff);
    let exponent = magnitude & 0x7c00;
    // Subnormals go through an integer conversion: arithmetic on subnormal f32 is very slow, and scales of
    // blocks are often subnormal in f16. For the others the exponent is rebiased.
    let small = (magnitude as i32 as f32 * (1.0 / 16_777_216.0)).to_bits();
    let bias = if exponent == 0x7c00 { 224 << 23 } else { 112 << 23 };
    let bits = if exponent == 0 { small } else { (magnitude << 13) + bias };
    f32::from_bits(bits | u32::from(h & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::f16_to_f32;

    #[test]
    fn every_f16_converts() {
        for bits in 0..=u16::MAX {
            let (want, got) = (half::f16::from_bits(bits).to_f32(), f16_to_f32(bits));
            assert!(want.to_bits() == got.to_bits() || want.is_nan() && got.is_nan(), "{bits:#x}");
        }
    }
}
