//! The formats with blocks of 32: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

use super::fit::{self, Equal, Grid, Weights};
use super::{Block, Decode, encode_weighted, f16_field, planes};
use crate::DType;
use bytemuck::{Pod, Zeroable};
use half::f16;

/// `x = d * q`, `q` from -8 to 7.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ4_0 {
    /// The scale, an `f16`.
    pub d: [u8; 2],
    /// Quants plus 8: byte `i` holds element `i` below and element `i + 16` above.
    pub qs: [u8; 16],
}

/// `x = d * q + m`, `q` from 0 to 15.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ4_1 {
    /// The scale, an `f16`.
    pub d: [u8; 2],
    /// The minimum, an `f16`.
    pub m: [u8; 2],
    /// Quants: byte `i` holds element `i` below and element `i + 16` above.
    pub qs: [u8; 16],
}

/// `x = d * q`, `q` from -16 to 15.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ5_0 {
    /// The scale, an `f16`.
    pub d: [u8; 2],
    /// Bit 4 of the quants, one bit per element in order.
    pub qh: [u8; 4],
    /// Bits 0 to 3 of the quants plus 16: byte `i` holds element `i` below and element `i + 16` above.
    pub qs: [u8; 16],
}

/// `x = d * q + m`, `q` from 0 to 31.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ5_1 {
    /// The scale, an `f16`.
    pub d: [u8; 2],
    /// The minimum, an `f16`.
    pub m: [u8; 2],
    /// Bit 4 of the quants, one bit per element in order.
    pub qh: [u8; 4],
    /// Bits 0 to 3 of the quants: byte `i` holds element `i` below and element `i + 16` above.
    pub qs: [u8; 16],
}

/// `x = d * q`, `q` from -127 to 127.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ8_0 {
    /// The scale, an `f16`.
    pub d: [u8; 2],
    /// Quants. -128 decodes, but the encoder does not write it.
    pub qs: [i8; 32],
}

impl BlockQ4_0 {
    /// The scale.
    pub fn d(&self) -> f32 {
        f16_field(self.d)
    }

    /// The quants, from -8 to 7.
    pub fn quants(&self) -> [i8; 32] {
        let mut quants = [0; 32];
        planes::unpack::<4, 16>(&self.qs, 0, &mut quants);
        planes::signed(&quants, 8)
    }

    /// Packs a scale and quants from -8 to 7.
    pub fn new(d: f16, quants: &[i8; 32]) -> Self {
        let mut block = BlockQ4_0 { d: d.to_le_bytes(), qs: [0; 16] };
        planes::pack::<4, 16>(&planes::unsigned(quants, 8), 0, &mut block.qs);
        block
    }
}

impl BlockQ4_1 {
    /// The scale.
    pub fn d(&self) -> f32 {
        f16_field(self.d)
    }

    /// The minimum.
    pub fn m(&self) -> f32 {
        f16_field(self.m)
    }

    /// The quants, from 0 to 15.
    pub fn quants(&self) -> [i8; 32] {
        let mut quants = [0; 32];
        planes::unpack::<4, 16>(&self.qs, 0, &mut quants);
        planes::signed(&quants, 0)
    }

    /// Packs a scale, a minimum and quants from 0 to 15.
    pub fn new(d: f16, m: f16, quants: &[i8; 32]) -> Self {
        let mut block = BlockQ4_1 { d: d.to_le_bytes(), m: m.to_le_bytes(), qs: [0; 16] };
        planes::pack::<4, 16>(&planes::unsigned(quants, 0), 0, &mut block.qs);
        block
    }
}

impl BlockQ5_0 {
    /// The scale.
    pub fn d(&self) -> f32 {
        f16_field(self.d)
    }

    /// The quants, from -16 to 15.
    pub fn quants(&self) -> [i8; 32] {
        let mut quants = [0; 32];
        planes::unpack::<4, 16>(&self.qs, 0, &mut quants);
        planes::unpack::<1, 1>(&self.qh, 4, &mut quants);
        planes::signed(&quants, 16)
    }

    /// Packs a scale and quants from -16 to 15.
    pub fn new(d: f16, quants: &[i8; 32]) -> Self {
        let quants = planes::unsigned(quants, 16);
        let mut block = BlockQ5_0 { d: d.to_le_bytes(), qh: [0; 4], qs: [0; 16] };
        planes::pack::<4, 16>(&quants, 0, &mut block.qs);
        planes::pack::<1, 1>(&quants, 4, &mut block.qh);
        block
    }
}

impl BlockQ5_1 {
    /// The scale.
    pub fn d(&self) -> f32 {
        f16_field(self.d)
    }

    /// The minimum.
    pub fn m(&self) -> f32 {
        f16_field(self.m)
    }

    /// The quants, from 0 to 31.
    pub fn quants(&self) -> [i8; 32] {
        let mut quants = [0; 32];
        planes::unpack::<4, 16>(&self.qs, 0, &mut quants);
        planes::unpack::<1, 1>(&self.qh, 4, &mut quants);
        planes::signed(&quants, 0)
    }

    /// Packs a scale, a minimum and quants from 0 to 31.
    pub fn new(d: f16, m: f16, quants: &[i8; 32]) -> Self {
        let quants = planes::unsigned(quants, 0);
        let mut block = BlockQ5_1 { d: d.to_le_bytes(), m: m.to_le_bytes(), qh: [0; 4], qs: [0; 16] };
        planes::pack::<4, 16>(&quants, 0, &mut block.qs);
        planes::pack::<1, 1>(&quants, 4, &mut block.qh);
        block
    }
}

impl BlockQ8_0 {
    /// The scale.
    pub fn d(&self) -> f32 {
        f16_field(self.d)
    }

    /// The quants, from -128 to 127.
    pub fn quants(&self) -> [i8; 32] {
        self.qs
    }

    /// Packs a scale and quants.
    pub fn new(d: f16, quants: &[i8; 32]) -> Self {
        BlockQ8_0 { d: d.to_le_bytes(), qs: *quants }
    }
}

impl BlockQ4_0 {
    fn encode_with(values: &[f32; 32], weights: impl Weights) -> Self {
        let (d, quants) = encode_scaled(values, weights, 8.0);
        BlockQ4_0::new(d, &quants)
    }
}

impl Decode<32> for BlockQ4_0 {
    const DTYPE: DType = DType::Q4_0;

    fn decode(&self, out: &mut [f32; 32]) {
        decode_scaled(self.d(), &self.quants(), out);
    }
}

impl Block<32> for BlockQ4_0 {
    fn encode(values: &[f32; 32]) -> Self {
        BlockQ4_0::encode_with(values, Equal)
    }

    fn encode_weighted(values: &[f32; 32], weights: &[f32; 32]) -> Self {
        encode_weighted(values, weights, |weights| BlockQ4_0::encode_with(values, weights))
    }
}

impl BlockQ4_1 {
    fn encode_with(values: &[f32; 32], weights: impl Weights) -> Self {
        let (d, m, quants) = encode_above(values, weights, 15.0);
        BlockQ4_1::new(d, m, &quants)
    }
}

impl Decode<32> for BlockQ4_1 {
    const DTYPE: DType = DType::Q4_1;

    fn decode(&self, out: &mut [f32; 32]) {
        decode_above(self.d(), self.m(), &self.quants(), out);
    }
}

impl Block<32> for BlockQ4_1 {
    fn encode(values: &[f32; 32]) -> Self {
        BlockQ4_1::encode_with(values, Equal)
    }

    fn encode_weighted(values: &[f32; 32], weights: &[f32; 32]) -> Self {
        encode_weighted(values, weights, |weights| BlockQ4_1::encode_with(values, weights))
    }
}

impl BlockQ5_0 {
    fn encode_with(values: &[f32; 32], weights: impl Weights) -> Self {
        let (d, quants) = encode_scaled(values, weights, 16.0);
        BlockQ5_0::new(d, &quants)
    }
}

impl Decode<32> for BlockQ5_0 {
    const DTYPE: DType = DType::Q5_0;

    fn decode(&self, out: &mut [f32; 32]) {
        decode_scaled(self.d(), &self.quants(), out);
    }
}

impl Block<32> for BlockQ5_0 {
    fn encode(values: &[f32; 32]) -> Self {
        BlockQ5_0::encode_with(values, Equal)
    }

    fn encode_weighted(values: &[f32; 32], weights: &[f32; 32]) -> Self {
        encode_weighted(values, weights, |weights| BlockQ5_0::encode_with(values, weights))
    }
}

impl BlockQ5_1 {
    fn encode_with(values: &[f32; 32], weights: impl Weights) -> Self {
        let (d, m, quants) = encode_above(values, weights, 31.0);
        BlockQ5_1::new(d, m, &quants)
    }
}

impl Decode<32> for BlockQ5_1 {
    const DTYPE: DType = DType::Q5_1;

    fn decode(&self, out: &mut [f32; 32]) {
        decode_above(self.d(), self.m(), &self.quants(), out);
    }
}

impl Block<32> for BlockQ5_1 {
    fn encode(values: &[f32; 32]) -> Self {
        BlockQ5_1::encode_with(values, Equal)
    }

    fn encode_weighted(values: &[f32; 32], weights: &[f32; 32]) -> Self {
        encode_weighted(values, weights, |weights| BlockQ5_1::encode_with(values, weights))
    }
}

impl Decode<32> for BlockQ8_0 {
    const DTYPE: DType = DType::Q8_0;

    fn decode(&self, out: &mut [f32; 32]) {
        decode_scaled(self.d(), &self.quants(), out);
    }
}

impl Block<32> for BlockQ8_0 {
    /// Spans the values: at 8 bits a search gains next to nothing, and this one also serves activations.
    fn encode(values: &[f32; 32]) -> Self {
        let x = fit::load(values);
        let d = fit::unit_f16(fit::peak(&x).abs(), 127.0);
        let mut quants = [0; 32];
        Grid { scale: d.to_f32(), offset: 0.0, lo: -127.0, hi: 127.0 }.quants(&x, &mut quants);
        BlockQ8_0::new(d, &quants)
    }
}

#[inline(always)]
fn decode_scaled(d: f32, quants: &[i8; 32], out: &mut [f32; 32]) {
    for (out, q) in out.iter_mut().zip(quants) {
        *out = d * f32::from(*q);
    }
}

#[inline(always)]
fn decode_above(d: f32, m: f32, quants: &[i8; 32], out: &mut [f32; 32]) {
    for (out, q) in out.iter_mut().zip(quants) {
        *out = d * f32::from(*q) + m;
    }
}

/// Chooses a scale and quants `-n..n`: those of the search, or those that span the values if rounding the
/// scale to `f16` has made them better.
fn encode_scaled(values: &[f32; 32], weights: impl Weights, n: f32) -> (f16, [i8; 32]) {
    let x = fit::load(values);
    let spanning = fit::spanning_scale(&x, n);
    let searched = fit::search_scale(&x, weights, n);
    let scales = [fit::to_f16(searched), fit::to_f16(spanning), fit::unit_f16(spanning * n, n)];
    let grid = |d: f16| Grid::symmetric(d.to_f32(), n);
    let d = least(scales, |d| grid(d).fit(&x, weights).error);
    let mut quants = [0; 32];
    grid(d).quants(&x, &mut quants);
    (d, quants)
}

/// Chooses a scale, a minimum and quants `0..=top`, likewise.
fn encode_above(values: &[f32; 32], weights: impl Weights, top: f32) -> (f16, f16, [i8; 32]) {
    let x = fit::load(values);
    let rounded = |grid: Grid| (fit::to_f16(grid.scale), fit::to_f16(grid.offset));
    let spanning = fit::spanning_grid(&x, top, f32::INFINITY);
    let searched = fit::search_grid(&x, weights, top, f32::INFINITY);
    let reaching = (fit::unit_f16(spanning.scale * top, top), fit::to_f16(spanning.offset));
    let grid = |(d, m): (f16, f16)| Grid::above(d.to_f32(), m.to_f32(), top);
    let (d, m) =
        least([rounded(searched), rounded(spanning), reaching], |dm| grid(dm).fit(&x, weights).error);
    let mut quants = [0; 32];
    grid((d, m)).quants(&x, &mut quants);
    (d, m, quants)
}

/// The first of the candidates with the least error.
fn least<T: Copy, const C: usize>(candidates: [T; C], error: impl Fn(T) -> f32) -> T {
    let mut best = (f32::INFINITY, candidates[0]);
    for candidate in candidates {
        let error = error(candidate);
        if error < best.0 {
            best = (error, candidate);
        }
    }
    best.1
}
