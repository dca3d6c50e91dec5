//! The formats with blocks of 256 and scales without minima: Q3_K, Q6_K, Q8_K.

use super::fit::{self, Equal, Fit, Grid, Weights};
use super::{Block, Decode, encode_weighted, f16_field, planes};
use crate::DType;
use bytemuck::{Pod, Zeroable};
use half::f16;

/// `x = d * scale(j) * q`, `q` from -4 to 3, `j` one of 16 groups of 16.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ3_K {
    /// Bit 2 of the quants plus 4: bit `b` of byte `i` belongs to element `32 * b + i`.
    pub hmask: [u8; 32],
    /// Bits 0 and 1 of the quants plus 4: per 32 bytes four planes of 32 elements.
    pub qs: [u8; 64],
    /// 16 scales of 6 bits; see [`BlockQ3_K::scale`].
    pub scales: [u8; 12],
    /// The scale of the scales, an `f16`.
    pub d: [u8; 2],
}

/// `x = d * scales[j] * q`, `q` from -32 to 31, `j` one of 16 groups of 16.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ6_K {
    /// Bits 0 to 3 of the quants plus 32: per 64 bytes two planes of 64 elements.
    pub ql: [u8; 128],
    /// Bits 4 and 5: per 32 bytes four planes of 32 elements.
    pub qh: [u8; 64],
    /// The scales.
    pub scales: [i8; 16],
    /// The scale of the scales, an `f16`.
    pub d: [u8; 2],
}

/// `x = d * q`, `q` from -127 to 127.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ8_K {
    /// The scale, an `f32`.
    pub d: [u8; 4],
    /// Quants.
    pub qs: [i8; 256],
    /// The sum of each 16 quants, an `i16`.
    pub bsums: [[u8; 2]; 16],
}

impl BlockQ3_K {
    /// The scale of the scales.
    pub fn d(&self) -> f32 {
        f16_field(self.d)
    }

    /// The scale of group `j`, from -32 to 31. Panics if `j` is not below 16.
    pub fn scale(&self, j: usize) -> i8 {
        let low = self.scales[j % 8] >> (j / 8 * 4) & 0x0f;
        let high = self.scales[8 + j % 4] >> (j / 4 * 2) & 0x03;
        (low | high << 4) as i8 - 32
    }

    /// The quants, from -4 to 3.
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = [0; 256];
        planes::unpack::<2, 32>(&self.qs, 0, &mut quants);
        planes::unpack::<1, 32>(&self.hmask, 2, &mut quants);
        planes::signed(&quants, 4)
    }

    /// Packs scales from -32 to 31 and quants from -4 to 3.
    pub fn new(d: f16, scales: &[i8; 16], quants: &[i8; 256]) -> Self {
        let mut block = BlockQ3_K { hmask: [0; 32], qs: [0; 64], scales: [0; 12], d: d.to_le_bytes() };
        let scales = planes::unsigned(scales, 32);
        planes::pack::<4, 8>(&scales, 0, &mut block.scales[..8]);
        planes::pack::<2, 4>(&scales, 4, &mut block.scales[8..]);
        let quants = planes::unsigned(quants, 4);
        planes::pack::<2, 32>(&quants, 0, &mut block.qs);
        planes::pack::<1, 32>(&quants, 2, &mut block.hmask);
        block
    }
}

impl BlockQ6_K {
    /// The scale of the scales.
    pub fn d(&self) -> f32 {
        f16_field(self.d)
    }

    /// The quants, from -32 to 31.
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = [0; 256];
        planes::unpack::<4, 64>(&self.ql, 0, &mut quants);
        planes::unpack::<2, 32>(&self.qh, 4, &mut quants);
        planes::signed(&quants, 32)
    }

    /// Packs scales and quants from -32 to 31.
    pub fn new(d: f16, scales: &[i8; 16], quants: &[i8; 256]) -> Self {
        let mut block = BlockQ6_K { ql: [0; 128], qh: [0; 64], scales: *scales, d: d.to_le_bytes() };
        let quants = planes::unsigned(quants, 32);
        planes::pack::<4, 64>(&quants, 0, &mut block.ql);
        planes::pack::<2, 32>(&quants, 4, &mut block.qh);
        block
    }
}

impl BlockQ8_K {
    /// The scale.
    pub fn d(&self) -> f32 {
        f32::from_le_bytes(self.d)
    }

    /// The quants.
    pub fn quants(&self) -> [i8; 256] {
        self.qs
    }

    /// The sum of the quants of group `j` of 16. Panics if `j` is not below 16.
    pub fn bsum(&self, j: usize) -> i16 {
        i16::from_le_bytes(self.bsums[j])
    }

    /// Packs a scale and quants, and sums these.
    pub fn new(d: f32, quants: &[i8; 256]) -> Self {
        let mut block = BlockQ8_K { d: d.to_le_bytes(), qs: *quants, bsums: [[0; 2]; 16] };
        for (sum, group) in block.bsums.iter_mut().zip(quants.as_chunks::<16>().0) {
            *sum = group.iter().map(|q| i16::from(*q)).sum::<i16>().to_le_bytes();
        }
        block
    }
}

impl BlockQ3_K {
    fn encode_with(values: &[f32; 256], weights: impl Weights) -> Self {
        let (d, scales, quants) = encode(values, weights, 4.0, 32.0);
        BlockQ3_K::new(d, &scales, &quants)
    }
}

impl Decode<256> for BlockQ3_K {
    const DTYPE: DType = DType::Q3_K;

    fn decode(&self, out: &mut [f32; 256]) {
        decode(self.d(), std::array::from_fn(|j| self.scale(j)), &self.quants(), out);
    }
}

impl Block<256> for BlockQ3_K {
    fn encode(values: &[f32; 256]) -> Self {
        BlockQ3_K::encode_with(values, Equal)
    }

    fn encode_weighted(values: &[f32; 256], weights: &[f32; 256]) -> Self {
        encode_weighted(values, weights, |weights| BlockQ3_K::encode_with(values, weights))
    }
}

impl BlockQ6_K {
    fn encode_with(values: &[f32; 256], weights: impl Weights) -> Self {
        let (d, scales, quants) = encode(values, weights, 32.0, 128.0);
        BlockQ6_K::new(d, &scales, &quants)
    }
}

impl Decode<256> for BlockQ6_K {
    const DTYPE: DType = DType::Q6_K;

    fn decode(&self, out: &mut [f32; 256]) {
        decode(self.d(), self.scales, &self.quants(), out);
    }
}

impl Block<256> for BlockQ6_K {
    fn encode(values: &[f32; 256]) -> Self {
        BlockQ6_K::encode_with(values, Equal)
    }

    fn encode_weighted(values: &[f32; 256], weights: &[f32; 256]) -> Self {
        encode_weighted(values, weights, |weights| BlockQ6_K::encode_with(values, weights))
    }
}

impl Decode<256> for BlockQ8_K {
    const DTYPE: DType = DType::Q8_K;

    fn decode(&self, out: &mut [f32; 256]) {
        let d = self.d();
        for (out, q) in out.iter_mut().zip(&self.qs) {
            *out = d * f32::from(*q);
        }
    }
}

impl Block<256> for BlockQ8_K {
    /// Spans the values: the format is for activations, where time counts and the step is small.
    fn encode(values: &[f32; 256]) -> Self {
        // A little below the greatest f32 / 127, so that d * 127 stays finite when rounded.
        const MOST: f32 = 2.6793e36;
        let d = (fit::peak(values).abs() / 127.0).min(MOST);
        let mut quants = [0; 256];
        if d > 0.0 {
            for (quant, value) in quants.iter_mut().zip(values) {
                // A division, because the inverse of a subnormal scale is infinite.
                *quant = fit::nearest(value / d, -127.0, 127.0) as i8;
            }
        }
        BlockQ8_K::new(d, &quants)
    }
}

#[inline(always)]
fn decode(d: f32, scales: [i8; 16], quants: &[i8; 256], out: &mut [f32; 256]) {
    let groups = out.as_chunks_mut::<16>().0.iter_mut().zip(quants.as_chunks::<16>().0);
    for ((out, quants), scale) in groups.zip(scales) {
        let scale = d * f32::from(scale);
        for (out, q) in out.iter_mut().zip(quants) {
            *out = scale * f32::from(*q);
        }
    }
}

/// Scales as stored, and the error that they leave.
struct Choice {
    error: f32,
    d: f16,
    scales: [i8; 16],
}

/// Chooses scales `-s..s` and quants `-n..n`.
fn encode(values: &[f32; 256], weights: impl Weights, n: f32, s: f32) -> (f16, [i8; 16], [i8; 256]) {
    let x = fit::load(values);
    let groups = x.as_chunks::<16>().0;
    let mut quants = [0; 256];
    if fit::peak(&x).abs() < fit::SMALLEST {
        return (f16::ZERO, [0; 16], quants);
    }
    let search = |j: usize| fit::search_scale(&groups[j], weights.group(j, 16), n);
    let searched: [f32; 16] = std::array::from_fn(search);
    let spanning: [f32; 16] = std::array::from_fn(|j| fit::spanning_scale(&groups[j], n));
    let unit = |scales: &[f32; 16]| fit::unit_f16(fit::peak(scales), -s);
    let mut best = round_scales(groups, weights, unit(&searched), &searched, (n, s), NEAREST);
    // The plain choice too, so that the result is never worse than that.
    let plain = round_scales(groups, weights, unit(&spanning), &spanning, (n, s), NEAREST);
    if plain.error < best.error {
        best = plain;
    }
    let unit = refit(groups, weights, &best, n);
    let refitted = round_scales(groups, weights, unit, &searched, (n, s), NEIGHBOURS);
    if refitted.error < best.error {
        best = refitted;
    }
    for ((group, quants), scale) in groups.iter().zip(quants.as_chunks_mut::<16>().0).zip(best.scales) {
        Grid::symmetric(best.d.to_f32() * f32::from(scale), n).quants(group, quants);
    }
    (best.d, best.scales, quants)
}

/// Which multiples of the unit are tried, counted from the nearest one.
const NEAREST: &[f32] = &[0.0];
const NEIGHBOURS: &[f32] = &[0.0, -1.0, 1.0];

/// Rounds the groups' scales to multiples of `d`, to those tried that leave the least error.
fn round_scales(
    groups: &[[f32; 16]],
    weights: impl Weights,
    d: f16,
    scales: &[f32; 16],
    (n, s): (f32, f32),
    tried: &[f32],
) -> Choice {
    let mut choice = Choice { error: 0.0, d, scales: [0; 16] };
    let d = d.to_f32();
    for (j, (group, scale)) in groups.iter().zip(scales).enumerate() {
        let weights = weights.group(j, 16);
        let nearest = fit::nearest(if d == 0.0 { 0.0 } else { scale / d }, -s, s - 1.0);
        let mut best = (f32::INFINITY, 0.0);
        for step in tried {
            let candidate = (nearest + step).clamp(-s, s - 1.0);
            let error = Grid::symmetric(d * candidate, n).fit(group, weights).error;
            if error < best.0 {
                best = (error, candidate);
            }
        }
        choice.error += best.0;
        choice.scales[j] = best.1 as i8;
    }
    choice
}

/// The scale of scales that is best for a choice's quants.
fn refit(groups: &[[f32; 16]], weights: impl Weights, choice: &Choice, n: f32) -> f16 {
    let d = choice.d.to_f32();
    let (mut rq, mut qq) = (0.0, 0.0);
    for (j, (group, scale)) in groups.iter().zip(choice.scales).enumerate() {
        let scale = f32::from(scale);
        let fit: Fit = Grid::symmetric(d * scale, n).fit(group, weights.group(j, 16));
        rq += scale * fit.rq;
        qq += scale * scale * fit.qq;
    }
    fit::to_f16(if qq > 0.0 { d + rq / qq } else { d })
}
