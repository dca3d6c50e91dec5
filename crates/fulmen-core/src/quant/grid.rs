//! The formats whose elements are entries of a grid with signs: IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S.
//!
//! An index chooses the magnitudes of 8 (IQ2) or 4 (IQ3) elements at once. These formats are read, not
//! written: choosing the entries takes an importance matrix and a search of its own.

use super::{Decode, f16_field, grids};
use crate::DType;
use bytemuck::{Pod, Zeroable};

/// The magnitudes of 8 elements of IQ2_XXS.
pub static IQ2_XXS_GRID: [[i8; 8]; 256] = expanded::<2, 3, 8, 256>(&grids::IQ2_XXS);
/// The magnitudes of 8 elements of IQ2_XS.
pub static IQ2_XS_GRID: [[i8; 8]; 512] = expanded::<2, 3, 8, 512>(&grids::IQ2_XS);
/// The magnitudes of 8 elements of IQ2_S.
pub static IQ2_S_GRID: [[i8; 8]; 1024] = expanded::<2, 3, 8, 1024>(&grids::IQ2_S);
/// The magnitudes of 4 elements of IQ3_XXS.
pub static IQ3_XXS_GRID: [[i8; 4]; 256] = expanded::<3, 8, 4, 256>(&grids::IQ3_XXS);
/// The magnitudes of 4 elements of IQ3_S.
pub static IQ3_S_GRID: [[i8; 4]; 512] = expanded::<3, 8, 4, 512>(&grids::IQ3_S);

/// `E` entries of `W` elements, of indices of `BITS` bits into `M` magnitudes.
const fn expanded<const BITS: usize, const M: usize, const W: usize, const E: usize>(
    (magnitudes, packed): &([i8; M], [u16; E]),
) -> [[i8; W]; E] {
    let mut grid = [[0; W]; E];
    let mut entry = 0;
    while entry < E {
        let mut element = 0;
        while element < W {
            let index = packed[entry] >> (BITS * element) & ((1 << BITS) - 1);
            grid[entry][element] = magnitudes[index as usize];
            element += 1;
        }
        entry += 1;
    }
    grid
}

/// `x = d * (1/2 + s) / 4 * q`, `s` from 0 to 15 per group of 32.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ2_XXS {
    /// The scale of the scales, an `f16`.
    pub d: [u8; 2],
    /// Per group four indices of 8 bits, then a word: four times seven signs, and the scale in the upper 4
    /// bits.
    pub qs: [[u8; 8]; 8],
}

/// `x = d * (1/2 + s) / 4 * q`, `s` from 0 to 15 per group of 16.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ2_XS {
    /// The scale of the scales, an `f16`.
    pub d: [u8; 2],
    /// Per 8 elements a word: an index in the lower 9 bits, seven signs above.
    pub qs: [[u8; 2]; 32],
    /// Scales, two groups per byte, the first one below.
    pub scales: [u8; 8],
}

/// `x = d * (1/2 + s) / 4 * q`, `s` from 0 to 15 per group of 16.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ2_S {
    /// The scale of the scales, an `f16`.
    pub d: [u8; 2],
    /// The lower 8 bits of the indices, one per 8 elements.
    pub qs: [u8; 32],
    /// Signs, one bit per element in order.
    pub signs: [u8; 32],
    /// Bits 8 and 9 of the indices, two bits per index in order.
    pub qh: [u8; 8],
    /// Scales, two groups per byte, the first one below.
    pub scales: [u8; 8],
}

/// `x = d * (1/2 + s) / 2 * q`, `s` from 0 to 15 per group of 32.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ3_XXS {
    /// The scale of the scales, an `f16`.
    pub d: [u8; 2],
    /// Indices, one per 4 elements.
    pub qs: [u8; 64],
    /// Per group a word: four times seven signs, and the scale in the upper 4 bits.
    pub signs: [[u8; 4]; 8],
}

/// `x = d * (1 + 2 s) * q`, `s` from 0 to 15 per group of 32.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ3_S {
    /// The scale of the scales, an `f16`.
    pub d: [u8; 2],
    /// The lower 8 bits of the indices, one per 4 elements.
    pub qs: [u8; 64],
    /// Bit 8 of the indices, one bit per index in order.
    pub qh: [u8; 8],
    /// Signs, one bit per element in order.
    pub signs: [u8; 32],
    /// Scales, two groups per byte, the first one below.
    pub scales: [u8; 4],
}

/// The signs of 8 elements, of which seven are stored: the number of minus signs is even.
#[inline(always)]
fn eight_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | ((seven.count_ones() as u8 & 1) << 7)
}

/// Magnitudes with the signs of the bits, the first one lowest.
#[inline(always)]
fn signed<const W: usize>(magnitudes: [i8; W], signs: u8, out: &mut [i8; W]) {
    for (i, (out, magnitude)) in out.iter_mut().zip(magnitudes).enumerate() {
        *out = if signs & (1 << i) == 0 { magnitude } else { -magnitude };
    }
}

/// Two entries of 4 elements with 8 signs.
#[inline(always)]
fn signed_pair(first: [i8; 4], second: [i8; 4], signs: u8, out: &mut [i8; 8]) {
    let ([a, b, c, d], [e, f, g, h]) = (first, second);
    signed([a, b, c, d, e, f, g, h], signs, out);
}

/// Half of the byte `j / 2`.
#[inline(always)]
fn nibble(bytes: &[u8], j: usize) -> f32 {
    f32::from(bytes[j / 2] >> (j % 2 * 4) & 15)
}

impl BlockIQ2_XXS {
    /// The scale of the scales.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_field(self.d)
    }

    /// Signs and scale of group `j`.
    #[inline(always)]
    fn word(&self, j: usize) -> u32 {
        let [.., a, b, c, d] = self.qs[j];
        u32::from_le_bytes([a, b, c, d])
    }

    /// The scale of group `j` of 32 in units of `d`. Panics if `j` is not below 8.
    #[inline]
    pub fn factor(&self, j: usize) -> f32 {
        (0.5 + (self.word(j) >> 28) as f32) * 0.25
    }

    /// The quants, from -43 to 43.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = [0; 256];
        for (i, out) in quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let index = self.qs[i / 4][i % 4];
            signed(IQ2_XXS_GRID[usize::from(index)], eight_signs(self.word(i / 4) >> (7 * (i % 4))), out);
        }
        quants
    }
}

impl BlockIQ2_XS {
    /// The scale of the scales.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_field(self.d)
    }

    /// The scale of group `j` of 16 in units of `d`. Panics if `j` is not below 16.
    #[inline]
    pub fn factor(&self, j: usize) -> f32 {
        (0.5 + nibble(&self.scales, j)) * 0.25
    }

    /// The quants, from -43 to 43.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = [0; 256];
        for (out, word) in quants.as_chunks_mut::<8>().0.iter_mut().zip(self.qs) {
            let word = u16::from_le_bytes(word);
            signed(IQ2_XS_GRID[usize::from(word & 511)], eight_signs(u32::from(word >> 9)), out);
        }
        quants
    }
}

impl BlockIQ2_S {
    /// The scale of the scales.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_field(self.d)
    }

    /// The scale of group `j` of 16 in units of `d`. Panics if `j` is not below 16.
    #[inline]
    pub fn factor(&self, j: usize) -> f32 {
        (0.5 + nibble(&self.scales, j)) * 0.25
    }

    /// The quants, from -43 to 43.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = [0; 256];
        for (i, out) in quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = usize::from(self.qh[i / 4] >> (i % 4 * 2) & 3);
            signed(IQ2_S_GRID[usize::from(self.qs[i]) | high << 8], self.signs[i], out);
        }
        quants
    }
}

impl BlockIQ3_XXS {
    /// The scale of the scales.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_field(self.d)
    }

    /// The scale of group `j` of 32 in units of `d`. Panics if `j` is not below 8.
    #[inline]
    pub fn factor(&self, j: usize) -> f32 {
        (0.5 + (u32::from_le_bytes(self.signs[j]) >> 28) as f32) * 0.5
    }

    /// The quants, from -62 to 62.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = [0; 256];
        for (i, out) in quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let signs = eight_signs(u32::from_le_bytes(self.signs[i / 4]) >> (7 * (i % 4)));
            let entry = |at: usize| IQ3_XXS_GRID[usize::from(self.qs[at])];
            signed_pair(entry(2 * i), entry(2 * i + 1), signs, out);
        }
        quants
    }
}

impl BlockIQ3_S {
    /// The scale of the scales.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_field(self.d)
    }

    /// The scale of group `j` of 32 in units of `d`. Panics if `j` is not below 8.
    #[inline]
    pub fn factor(&self, j: usize) -> f32 {
        1.0 + 2.0 * nibble(&self.scales, j)
    }

    /// The quants, from -15 to 15.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = [0; 256];
        for (i, out) in quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let entry = |at: usize| {
                let high = usize::from(self.qh[at / 8] >> (at % 8) & 1);
                IQ3_S_GRID[usize::from(self.qs[at]) | high << 8]
            };
            signed_pair(entry(2 * i), entry(2 * i + 1), self.signs[i], out);
        }
        quants
    }
}

/// Groups of `G` elements, each with its factor. Scales and products have at most 22 significant bits, so
/// that they are exact in any order.
#[inline(always)]
fn decode<const G: usize>(d: f32, factor: impl Fn(usize) -> f32, quants: &[i8; 256], out: &mut [f32; 256]) {
    let groups = out.as_chunks_mut::<G>().0.iter_mut().zip(quants.as_chunks::<G>().0);
    for (j, (out, quants)) in groups.enumerate() {
        let scale = d * factor(j);
        for (out, q) in out.iter_mut().zip(quants) {
            *out = scale * f32::from(*q);
        }
    }
}

macro_rules! decodes {
    ($($block:ident: $dtype:ident, groups of $group:literal;)*) => {$(
        impl Decode<256> for $block {
            const DTYPE: DType = DType::$dtype;

            fn decode(&self, out: &mut [f32; 256]) {
                decode::<$group>(self.d(), |j| self.factor(j), &self.quants(), out);
            }
        }
    )*};
}

decodes! {
    BlockIQ2_XXS: IQ2_XXS, groups of 32;
    BlockIQ2_XS: IQ2_XS, groups of 16;
    BlockIQ2_S: IQ2_S, groups of 16;
    BlockIQ3_XXS: IQ3_XXS, groups of 32;
    BlockIQ3_S: IQ3_S, groups of 32;
}
