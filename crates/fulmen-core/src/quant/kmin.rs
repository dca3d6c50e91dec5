//! The formats with blocks of 256, scales and minima: Q2_K, Q4_K, Q5_K.

use super::fit::{self, Equal, Grid, Weights};
use super::{Block, Decode, encode_weighted, f16_field, planes};
use crate::DType;
use bytemuck::{Pod, Zeroable};
use half::f16;

/// `x = d * sc * q - dmin * m`, `q` from 0 to 3, `sc` and `m` per group of 16.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ2_K {
    /// Per group its scale in the lower and its minimum in the upper 4 bits.
    pub scales: [u8; 16],
    /// Quants: per 32 bytes four planes of 32 elements.
    pub qs: [u8; 64],
    /// The scale of the scales, an `f16`.
    pub d: [u8; 2],
    /// The scale of the minima, an `f16`.
    pub dmin: [u8; 2],
}

/// `x = d * sc * q - dmin * m`, `q` from 0 to 15, `sc` and `m` per group of 32.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ4_K {
    /// The scale of the scales, an `f16`.
    pub d: [u8; 2],
    /// The scale of the minima, an `f16`.
    pub dmin: [u8; 2],
    /// 8 scales and 8 minima of 6 bits; see [`BlockQ4_K::scale_min`].
    pub scales: [u8; 12],
    /// Quants: per 32 bytes two planes of 32 elements.
    pub qs: [u8; 128],
}

/// `x = d * sc * q - dmin * m`, `q` from 0 to 31, `sc` and `m` per group of 32.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ5_K {
    /// The scale of the scales, an `f16`.
    pub d: [u8; 2],
    /// The scale of the minima, an `f16`.
    pub dmin: [u8; 2],
    /// 8 scales and 8 minima of 6 bits; see [`BlockQ5_K::scale_min`].
    pub scales: [u8; 12],
    /// Bit 4 of the quants: bit `b` of byte `i` belongs to element `32 * b + i`.
    pub qh: [u8; 32],
    /// Bits 0 to 3 of the quants: per 32 bytes two planes of 32 elements.
    pub qs: [u8; 128],
}

impl BlockQ2_K {
    /// The scale of the scales.
    pub fn d(&self) -> f32 {
        f16_field(self.d)
    }

    /// The scale of the minima.
    pub fn dmin(&self) -> f32 {
        f16_field(self.dmin)
    }

    /// Scale and minimum of group `j`, from 0 to 15. Panics if `j` is not below 16.
    pub fn scale_min(&self, j: usize) -> (u8, u8) {
        (self.scales[j] & 0x0f, self.scales[j] >> 4)
    }

    /// The quants, from 0 to 3.
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = [0; 256];
        planes::unpack::<2, 32>(&self.qs, 0, &mut quants);
        planes::signed(&quants, 0)
    }

    /// Packs scales and minima from 0 to 15 and quants from 0 to 3.
    pub fn new(d: f16, dmin: f16, scale_min: &[(u8, u8); 16], quants: &[i8; 256]) -> Self {
        let scales = scale_min.map(|(scale, min)| scale & 0x0f | min << 4);
        let mut block = BlockQ2_K { scales, qs: [0; 64], d: d.to_le_bytes(), dmin: dmin.to_le_bytes() };
        planes::pack::<2, 32>(&planes::unsigned(quants, 0), 0, &mut block.qs);
        block
    }
}

impl BlockQ4_K {
    /// The scale of the scales.
    pub fn d(&self) -> f32 {
        f16_field(self.d)
    }

    /// The scale of the minima.
    pub fn dmin(&self) -> f32 {
        f16_field(self.dmin)
    }

    /// Scale and minimum of group `j`, from 0 to 63. Panics if `j` is not below 8.
    pub fn scale_min(&self, j: usize) -> (u8, u8) {
        scale_min(&self.scales, j)
    }

    /// The quants, from 0 to 15.
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = [0; 256];
        planes::unpack::<4, 32>(&self.qs, 0, &mut quants);
        planes::signed(&quants, 0)
    }

    /// Packs scales and minima from 0 to 63 and quants from 0 to 15.
    pub fn new(d: f16, dmin: f16, scale_min: &[(u8, u8); 8], quants: &[i8; 256]) -> Self {
        let scales = pack_scale_min(scale_min);
        let mut block = BlockQ4_K { d: d.to_le_bytes(), dmin: dmin.to_le_bytes(), scales, qs: [0; 128] };
        planes::pack::<4, 32>(&planes::unsigned(quants, 0), 0, &mut block.qs);
        block
    }
}

impl BlockQ5_K {
    /// The scale of the scales.
    pub fn d(&self) -> f32 {
        f16_field(self.d)
    }

    /// The scale of the minima.
    pub fn dmin(&self) -> f32 {
        f16_field(self.dmin)
    }

    /// Scale and minimum of group `j`, from 0 to 63. Panics if `j` is not below 8.
    pub fn scale_min(&self, j: usize) -> (u8, u8) {
        scale_min(&self.scales, j)
    }

    /// The quants, from 0 to 31.
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = [0; 256];
        planes::unpack::<4, 32>(&self.qs, 0, &mut quants);
        planes::unpack::<1, 32>(&self.qh, 4, &mut quants);
        planes::signed(&quants, 0)
    }

    /// Packs scales and minima from 0 to 63 and quants from 0 to 31.
    pub fn new(d: f16, dmin: f16, scale_min: &[(u8, u8); 8], quants: &[i8; 256]) -> Self {
        let quants = planes::unsigned(quants, 0);
        let scales = pack_scale_min(scale_min);
        let (d, dmin) = (d.to_le_bytes(), dmin.to_le_bytes());
        let mut block = BlockQ5_K { d, dmin, scales, qh: [0; 32], qs: [0; 128] };
        planes::pack::<4, 32>(&quants, 0, &mut block.qs);
        planes::pack::<1, 32>(&quants, 4, &mut block.qh);
        block
    }
}

/// The 6-bit pair `j` of Q4_K and Q5_K. The first four scales fill the lower 6 bits of bytes 0 to 3 and
/// their minima those of bytes 4 to 7; the other four have their lower 4 bits in bytes 8 to 11 (scale below,
/// minimum above) and their upper 2 bits on top of bytes 0 to 7.
#[inline(always)]
fn scale_min(scales: &[u8; 12], j: usize) -> (u8, u8) {
    if j < 4 {
        return (scales[j] & 0x3f, scales[j + 4] & 0x3f);
    }
    let low = scales[j + 4];
    (low & 0x0f | (scales[j - 4] >> 6) << 4, low >> 4 | (scales[j] >> 6) << 4)
}

/// The inverse of [`scale_min`].
fn pack_scale_min(scale_min: &[(u8, u8); 8]) -> [u8; 12] {
    let mut scales = [0; 12];
    for j in 0..4 {
        let ((scale, min), (late_scale, late_min)) = (scale_min[j], scale_min[j + 4]);
        scales[j] = scale & 0x3f | (late_scale >> 4) << 6;
        scales[j + 4] = min & 0x3f | (late_min >> 4) << 6;
        scales[j + 8] = late_scale & 0x0f | late_min << 4;
    }
    scales
}

impl BlockQ2_K {
    fn encode_with(values: &[f32; 256], weights: impl Weights) -> Self {
        let (choice, quants) = encode::<16, 16>(values, weights, 3.0, 15.0);
        BlockQ2_K::new(choice.d, choice.dmin, &choice.scale_min, &quants)
    }
}

impl Decode<256> for BlockQ2_K {
    const DTYPE: DType = DType::Q2_K;

    fn decode(&self, out: &mut [f32; 256]) {
        let scale_min: [_; 16] = std::array::from_fn(|j| self.scale_min(j));
        decode::<16, 16>(self.d(), self.dmin(), &scale_min, &self.quants(), out);
    }
}

impl Block<256> for BlockQ2_K {
    fn encode(values: &[f32; 256]) -> Self {
        BlockQ2_K::encode_with(values, Equal)
    }

    fn encode_weighted(values: &[f32; 256], weights: &[f32; 256]) -> Self {
        encode_weighted(values, weights, |weights| BlockQ2_K::encode_with(values, weights))
    }
}

impl BlockQ4_K {
    fn encode_with(values: &[f32; 256], weights: impl Weights) -> Self {
        let (choice, quants) = encode::<32, 8>(values, weights, 15.0, 63.0);
        BlockQ4_K::new(choice.d, choice.dmin, &choice.scale_min, &quants)
    }
}

impl Decode<256> for BlockQ4_K {
    const DTYPE: DType = DType::Q4_K;

    fn decode(&self, out: &mut [f32; 256]) {
        let scale_min: [_; 8] = std::array::from_fn(|j| self.scale_min(j));
        decode::<32, 8>(self.d(), self.dmin(), &scale_min, &self.quants(), out);
    }
}

impl Block<256> for BlockQ4_K {
    fn encode(values: &[f32; 256]) -> Self {
        BlockQ4_K::encode_with(values, Equal)
    }

    fn encode_weighted(values: &[f32; 256], weights: &[f32; 256]) -> Self {
        encode_weighted(values, weights, |weights| BlockQ4_K::encode_with(values, weights))
    }
}

impl BlockQ5_K {
    fn encode_with(values: &[f32; 256], weights: impl Weights) -> Self {
        let (choice, quants) = encode::<32, 8>(values, weights, 31.0, 63.0);
        BlockQ5_K::new(choice.d, choice.dmin, &choice.scale_min, &quants)
    }
}

impl Decode<256> for BlockQ5_K {
    const DTYPE: DType = DType::Q5_K;

    fn decode(&self, out: &mut [f32; 256]) {
        let scale_min: [_; 8] = std::array::from_fn(|j| self.scale_min(j));
        decode::<32, 8>(self.d(), self.dmin(), &scale_min, &self.quants(), out);
    }
}

impl Block<256> for BlockQ5_K {
    fn encode(values: &[f32; 256]) -> Self {
        BlockQ5_K::encode_with(values, Equal)
    }

    fn encode_weighted(values: &[f32; 256], weights: &[f32; 256]) -> Self {
        encode_weighted(values, weights, |weights| BlockQ5_K::encode_with(values, weights))
    }
}

/// `S` groups of `G` elements.
#[inline(always)]
fn decode<const G: usize, const S: usize>(
    d: f32,
    dmin: f32,
    scale_min: &[(u8, u8); S],
    quants: &[i8; 256],
    out: &mut [f32; 256],
) {
    let groups = out.as_chunks_mut::<G>().0.iter_mut().zip(quants.as_chunks::<G>().0);
    for ((out, quants), (scale, min)) in groups.zip(scale_min) {
        let scale = d * f32::from(*scale);
        let min = dmin * f32::from(*min);
        for (out, q) in out.iter_mut().zip(quants) {
            *out = scale * f32::from(*q) - min;
        }
    }
}

/// Scales and minima as stored, and the error that they leave.
struct Choice<const S: usize> {
    error: f32,
    d: f16,
    dmin: f16,
    scale_min: [(u8, u8); S],
}

impl<const S: usize> Choice<S> {
    /// The grid of group `j`, as the decoder computes it.
    fn grid(&self, j: usize, top: f32) -> Grid {
        let (scale, min) = self.scale_min[j];
        Grid::above(self.d.to_f32() * f32::from(scale), -(self.dmin.to_f32() * f32::from(min)), top)
    }
}

/// Chooses scales and minima `0..=steps` and quants `0..=top`.
///
/// Minima are stored without a sign, so no group's offset may lie above zero.
fn encode<const G: usize, const S: usize>(
    values: &[f32; 256],
    weights: impl Weights,
    top: f32,
    steps: f32,
) -> (Choice<S>, [i8; 256]) {
    let x = fit::load(values);
    let groups = x.as_chunks::<G>().0;
    let mut quants = [0; 256];
    if fit::peak(&x).abs() < fit::SMALLEST {
        return (Choice { error: 0.0, d: f16::ZERO, dmin: f16::ZERO, scale_min: [(0, 0); S] }, quants);
    }
    let search = |j: usize| fit::search_grid(&groups[j], weights.group(j, G), top, 0.0);
    let searched: [Grid; S] = std::array::from_fn(search);
    let spanning: [Grid; S] = std::array::from_fn(|j| fit::spanning_grid(&groups[j], top, 0.0));
    let units = |grids: &[Grid; S]| {
        let scale = grids.iter().map(|grid| grid.scale).fold(0.0, f32::max);
        let min = grids.iter().map(|grid| -grid.offset).fold(0.0, f32::max);
        (fit::unit_f16(scale, steps), fit::unit_f16(min, steps))
    };
    let mut best = round_grids(groups, weights, units(&searched), &searched, (top, steps), NEAREST);
    // The plain choice too, so that the result is never worse than that.
    let plain = round_grids(groups, weights, units(&spanning), &spanning, (top, steps), NEAREST);
    if plain.error < best.error {
        best = plain;
    }
    let units = refit(groups, weights, &best, top);
    let refitted = round_grids(groups, weights, units, &searched, (top, steps), NEIGHBOURS);
    if refitted.error < best.error {
        best = refitted;
    }
    for (j, (group, quants)) in groups.iter().zip(quants.as_chunks_mut::<G>().0).enumerate() {
        best.grid(j, top).quants(group, quants);
    }
    (best, quants)
}

/// Which multiples of a unit are tried, counted from the nearest one.
const NEAREST: &[f32] = &[0.0];
const NEIGHBOURS: &[f32] = &[0.0, -1.0, 1.0];

/// Rounds the groups' grids to multiples of the units, to those tried that leave the least error.
fn round_grids<const G: usize, const S: usize>(
    groups: &[[f32; G]],
    weights: impl Weights,
    (d, dmin): (f16, f16),
    grids: &[Grid; S],
    (top, steps): (f32, f32),
    tried: &[f32],
) -> Choice<S> {
    let mut choice = Choice { error: 0.0, d, dmin, scale_min: [(0, 0); S] };
    let (d, dmin) = (d.to_f32(), dmin.to_f32());
    let multiple = |x: f32, unit: f32| {
        let steps_of = if unit == 0.0 { 0.0 } else { x / unit };
        fit::nearest(steps_of, 0.0, steps)
    };
    for (j, (group, grid)) in groups.iter().zip(grids).enumerate() {
        let weights = weights.group(j, G);
        let nearest = multiple(grid.scale, d);
        let min = multiple(-grid.offset, dmin);
        let mut best = (f32::INFINITY, 0.0, 0.0);
        for step in tried {
            let scale = (nearest + step).clamp(0.0, steps);
            for step in tried {
                let min = (min + step).clamp(0.0, steps);
                let error = Grid::above(d * scale, -(dmin * min), top).fit(group, weights).error;
                if error < best.0 {
                    best = (error, scale, min);
                }
            }
        }
        choice.error += best.0;
        choice.scale_min[j] = (best.1 as u8, best.2 as u8);
    }
    choice
}

/// The units that are best for a choice's quants, by a linear fit in both.
fn refit<const G: usize, const S: usize>(
    groups: &[[f32; G]],
    weights: impl Weights,
    choice: &Choice<S>,
    top: f32,
) -> (f16, f16) {
    let (mut uu, mut uv, mut vv, mut ru, mut rv) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (j, group) in groups.iter().enumerate() {
        let fit = choice.grid(j, top).fit(group, weights.group(j, G));
        let (scale, min) = (f32::from(choice.scale_min[j].0), f32::from(choice.scale_min[j].1));
        uu += scale * scale * fit.qq;
        uv -= scale * min * fit.q;
        vv += min * min * fit.w;
        ru += scale * fit.rq;
        rv -= min * fit.r;
    }
    let (d, dmin) = (choice.d.to_f32(), choice.dmin.to_f32());
    let det = uu * vv - uv * uv;
    // A determinant this small against its terms is rounding noise: the two units cannot be told apart.
    if det > 1e-3 * uu * vv {
        return (fit::to_f16(d + (ru * vv - rv * uv) / det), fit::to_f16(dmin + (rv * uu - ru * uv) / det));
    }
    if uu > 0.0 {
        return (fit::to_f16(d + ru / uu), choice.dmin);
    }
    (choice.d, choice.dmin)
}
