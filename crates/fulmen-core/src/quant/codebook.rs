//! The formats whose 4-bit quants are indices of a table of 16 values: MXFP4, IQ4_NL, IQ4_XS.

use super::fit::{self, Equal, Weights};
use super::{Block, Decode, encode_weighted, f16_field, planes};
use crate::DType;
use bytemuck::{Pod, Zeroable};
use half::f16;

/// Twice the values of E2M1, the 4-bit floating-point type of MXFP4: index `i` has the sign bit `i & 8`.
pub const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The values of IQ4_NL and IQ4_XS, ascending: denser around zero, where most weights are.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// `x = 2^(e - 128) * MXFP4_VALUES[q]`: the OCP microscaling format MXFP4 (E8M0 scale, E2M1 elements), with
/// the table doubled and the scale halved.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockMXFP4 {
    /// The exponent of the scale.
    pub e: u8,
    /// Indices: byte `i` holds element `i` below and element `i + 16` above.
    pub qs: [u8; 16],
}

/// `x = d * IQ4_VALUES[q]`.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ4_NL {
    /// The scale, an `f16`.
    pub d: [u8; 2],
    /// Indices: byte `i` holds element `i` below and element `i + 16` above.
    pub qs: [u8; 16],
}

/// `x = d * scale(j) * IQ4_VALUES[q]`, `j` one of 8 groups of 32.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ4_XS {
    /// The scale of the scales, an `f16`.
    pub d: [u8; 2],
    /// Bits 4 and 5 of the scales plus 32, two bits per group in order.
    pub scales_h: [u8; 2],
    /// Bits 0 to 3, two groups per byte, the first one below.
    pub scales_l: [u8; 4],
    /// Indices: 16 bytes per group; byte `i` of them holds element `i` below and element `i + 16` above.
    pub qs: [u8; 128],
}

impl BlockMXFP4 {
    /// The scale, a power of two.
    pub fn d(&self) -> f32 {
        // The first two are subnormal.
        f32::from_bits(if self.e < 2 { 0x0020_0000 << self.e } else { u32::from(self.e - 1) << 23 })
    }

    /// The quants, from -12 to 12.
    pub fn quants(&self) -> [i8; 32] {
        look_up(&self.qs, &MXFP4_VALUES)
    }
}

impl BlockIQ4_NL {
    /// The scale.
    pub fn d(&self) -> f32 {
        f16_field(self.d)
    }

    /// The quants, from -127 to 113.
    pub fn quants(&self) -> [i8; 32] {
        look_up(&self.qs, &IQ4_VALUES)
    }
}

impl BlockIQ4_XS {
    /// The scale of the scales.
    pub fn d(&self) -> f32 {
        f16_field(self.d)
    }

    /// The scale of group `j`, from -32 to 31. Panics if `j` is not below 8.
    pub fn scale(&self, j: usize) -> i8 {
        let low = self.scales_l[j / 2] >> (j % 2 * 4) & 0x0f;
        let high = self.scales_h[j / 4] >> (j % 4 * 2) & 0x03;
        (low | high << 4) as i8 - 32
    }

    /// The quants, from -127 to 113.
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = [0; 256];
        for (group, qs) in quants.as_chunks_mut::<32>().0.iter_mut().zip(self.qs.as_chunks::<16>().0) {
            *group = look_up(qs, &IQ4_VALUES);
        }
        quants
    }
}

#[inline(always)]
fn look_up(qs: &[u8; 16], table: &[i8; 16]) -> [i8; 32] {
    let mut indices = [0; 32];
    planes::unpack::<4, 16>(qs, 0, &mut indices);
    indices.map(|index: u8| table[usize::from(index & 15)])
}

#[inline(always)]
fn decode(d: f32, quants: &[i8; 32], out: &mut [f32; 32]) {
    for (out, q) in out.iter_mut().zip(quants) {
        *out = d * f32::from(*q);
    }
}

impl Decode<32> for BlockMXFP4 {
    const DTYPE: DType = DType::MXFP4;

    fn decode(&self, out: &mut [f32; 32]) {
        decode(self.d(), &self.quants(), out);
    }
}

impl Block<32> for BlockMXFP4 {
    /// The power of two with the least squared error, of that whose largest values have the exponent of the
    /// peak and its neighbors.
    fn encode(values: &[f32; 32]) -> Self {
        let peak = fit::peak(values).abs();
        if peak == 0.0 {
            return BlockMXFP4 { e: 0, qs: [0; 16] };
        }
        // The peak is from 8 to 16 times the scale 2^(e - 128). Above 252 the largest values are infinite.
        let middle = f64::from(peak).log2().floor() as i32 - 3 + 128;
        let exponents = [middle, middle - 1, middle + 1].map(|e| e.clamp(0, 252));
        let encoded = exponents.map(|e| mxfp4_with(values, e));
        let [mut best, others @ ..] = encoded;
        for other in others {
            if other.0 < best.0 {
                best = other;
            }
        }
        best.1
    }
}

/// The block with an exponent, and its squared error.
fn mxfp4_with(values: &[f32; 32], e: i32) -> (f64, BlockMXFP4) {
    let scale = f64::from(e - 128).exp2();
    let (mut error, mut indices) = (0.0, [0u8; 32]);
    for (index, value) in indices.iter_mut().zip(values) {
        let magnitude = f64::from(value.abs()) / scale;
        // Values of the table are nearest to what lies between the middles of their neighbors.
        let at = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0].iter().filter(|&&middle| magnitude > middle).count();
        error += (magnitude - f64::from(MXFP4_VALUES[at])).powi(2);
        *index = at as u8 | if *value < 0.0 && at > 0 { 8 } else { 0 };
    }
    let mut block = BlockMXFP4 { e: e as u8, qs: [0; 16] };
    planes::pack::<4, 16>(&indices, 0, &mut block.qs);
    (error * scale * scale, block)
}

impl BlockIQ4_NL {
    fn encode_with(values: &[f32; 32], weights: impl Weights) -> Self {
        let x = fit::load(values);
        let peak = fit::peak(&x);
        let candidates = [search(&x, weights), peak / -127.0].map(fit::to_f16);
        let mut best = (f32::INFINITY, f16::ZERO, [0; 16]);
        for d in candidates.into_iter().chain([fit::unit_f16(peak, -127.0)]) {
            let fitted = Fitted::new(&x, weights, d.to_f32());
            if fitted.error < best.0 {
                best = (fitted.error, d, fitted.packed());
            }
        }
        BlockIQ4_NL { d: best.1.to_le_bytes(), qs: best.2 }
    }
}

impl Decode<32> for BlockIQ4_NL {
    const DTYPE: DType = DType::IQ4_NL;

    fn decode(&self, out: &mut [f32; 32]) {
        decode(self.d(), &self.quants(), out);
    }
}

impl Block<32> for BlockIQ4_NL {
    fn encode(values: &[f32; 32]) -> Self {
        BlockIQ4_NL::encode_with(values, Equal)
    }

    fn encode_weighted(values: &[f32; 32], weights: &[f32; 32]) -> Self {
        encode_weighted(values, weights, |weights| BlockIQ4_NL::encode_with(values, weights))
    }
}

impl BlockIQ4_XS {
    fn encode_with(values: &[f32; 256], weights: impl Weights) -> Self {
        let x = fit::load(values);
        let groups = x.as_chunks::<32>().0;
        let mut block = BlockIQ4_XS { d: [0; 2], scales_h: [0; 2], scales_l: [0; 4], qs: [0; 128] };
        let searched: [f32; 8] = std::array::from_fn(|j| search(&groups[j], weights.group(j, 32)));
        let spanning: [f32; 8] = std::array::from_fn(|j| fit::peak(&groups[j]) / -127.0);
        let unit = |scales: &[f32; 8]| fit::unit_f16(fit::peak(scales), -32.0);
        let mut best = round_scales(groups, weights, unit(&searched), &searched, &[0.0]);
        // The plain choice too, so that the result is never worse than that.
        let plain = round_scales(groups, weights, unit(&spanning), &spanning, &[0.0]);
        if plain.error < best.error {
            best = plain;
        }
        let refitted =
            round_scales(groups, weights, best.refit(groups, weights), &searched, &[0.0, -1.0, 1.0]);
        if refitted.error < best.error {
            best = refitted;
        }
        block.d = best.d.to_le_bytes();
        for (j, (qs, scale)) in block.qs.as_chunks_mut::<16>().0.iter_mut().zip(best.scales).enumerate() {
            *qs = Fitted::new(&groups[j], Equal, best.d.to_f32() * f32::from(scale)).packed();
            let stored = (scale + 32) as u8;
            block.scales_l[j / 2] |= (stored & 15) << (j % 2 * 4);
            block.scales_h[j / 4] |= (stored >> 4) << (j % 4 * 2);
        }
        block
    }
}

impl Decode<256> for BlockIQ4_XS {
    const DTYPE: DType = DType::IQ4_XS;

    fn decode(&self, out: &mut [f32; 256]) {
        let (d, quants) = (self.d(), self.quants());
        let groups = out.as_chunks_mut::<32>().0.iter_mut().zip(quants.as_chunks::<32>().0);
        for (j, (out, quants)) in groups.enumerate() {
            decode(d * f32::from(self.scale(j)), quants, out);
        }
    }
}

impl Block<256> for BlockIQ4_XS {
    fn encode(values: &[f32; 256]) -> Self {
        BlockIQ4_XS::encode_with(values, Equal)
    }

    fn encode_weighted(values: &[f32; 256], weights: &[f32; 256]) -> Self {
        encode_weighted(values, weights, |weights| BlockIQ4_XS::encode_with(values, weights))
    }
}

/// 32 values on the grid `scale * IQ4_VALUES`: their indices, the weighted squared error, and the weighted
/// sums that the best scale for these indices needs.
struct Fitted {
    indices: [u8; 32],
    error: f32,
    xq: f32,
    qq: f32,
}

impl Fitted {
    fn new(x: &[f32; 32], weights: impl Weights, scale: f32) -> Fitted {
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let mut fitted = Fitted { indices: [0; 32], error: 0.0, xq: 0.0, qq: 0.0 };
        for (i, (index, &x)) in fitted.indices.iter_mut().zip(x).enumerate() {
            let (w, at) = (weights.at(i), nearest(x * inverse));
            let q = f32::from(IQ4_VALUES[at]);
            *index = at as u8;
            fitted.error += w * (x - scale * q).powi(2);
            fitted.xq += w * (x * q);
            fitted.qq += w * (q * q);
        }
        fitted
    }

    fn packed(&self) -> [u8; 16] {
        let mut qs = [0; 16];
        planes::pack::<4, 16>(&self.indices, 0, &mut qs);
        qs
    }
}

/// The index of the value of the table that is nearest to `x`.
fn nearest(x: f32) -> usize {
    let above = |pair: &[i8]| 2.0 * x > f32::from(pair[0]) + f32::from(pair[1]);
    IQ4_VALUES.windows(2).filter(|pair| above(pair)).count()
}

/// A good scale: the peak is tried at each of the outer values of the table, and the best of these grids is
/// fitted to the values.
fn search(x: &[f32; 32], weights: impl Weights) -> f32 {
    let peak = fit::peak(x);
    if peak.abs() < fit::SMALLEST {
        return 0.0;
    }
    let mut best = (f32::INFINITY, 0.0);
    let outer = IQ4_VALUES.into_iter().filter(|value| value.unsigned_abs() > 48);
    for start in outer.map(|value| peak / f32::from(value)) {
        let mut scale = start;
        for _ in 0..4 {
            let fitted = Fitted::new(x, weights, scale);
            if fitted.error >= best.0 {
                break;
            }
            best = (fitted.error, scale);
            // All indices have a value other than 0, and all weights are above it.
            scale = fitted.xq / fitted.qq;
        }
    }
    best.1
}

/// Scales as stored, and the error that they leave.
struct Choice {
    error: f32,
    d: f16,
    scales: [i8; 8],
}

/// Rounds the groups' scales to multiples of `d`, to those tried that leave the least error.
fn round_scales(
    groups: &[[f32; 32]],
    weights: impl Weights,
    d: f16,
    scales: &[f32; 8],
    tried: &[f32],
) -> Choice {
    let mut choice = Choice { error: 0.0, d, scales: [0; 8] };
    let d = d.to_f32();
    for (j, (group, scale)) in groups.iter().zip(scales).enumerate() {
        let weights = weights.group(j, 32);
        let nearest = fit::nearest(if d == 0.0 { 0.0 } else { scale / d }, -32.0, 31.0);
        let mut best = (f32::INFINITY, 0.0);
        for step in tried {
            let candidate = (nearest + step).clamp(-32.0, 31.0);
            let error = Fitted::new(group, weights, d * candidate).error;
            if error < best.0 {
                best = (error, candidate);
            }
        }
        choice.error += best.0;
        choice.scales[j] = best.1 as i8;
    }
    choice
}

impl Choice {
    /// The scale of scales that is best for the choice's quants.
    fn refit(&self, groups: &[[f32; 32]], weights: impl Weights) -> f16 {
        let (mut xq, mut qq) = (0.0, 0.0);
        for (j, (group, scale)) in groups.iter().zip(self.scales).enumerate() {
            let scale = f32::from(scale);
            let fitted = Fitted::new(group, weights.group(j, 32), self.d.to_f32() * scale);
            xq += scale * fitted.xq;
            qq += scale * scale * fitted.qq;
        }
        fit::to_f16(if qq > 0.0 { xq / qq } else { self.d.to_f32() })
    }
}
