//! Rotary position embedding.
//!
//! A [`Rope`] holds the frequencies of a model, [`Rope::angles`] computes the cos/sin table of a batch's
//! positions, and [`rotate`] applies it to queries or keys with SIMD, in parallel over rows. The table is
//! computed in f64, so it is as exact at position 131072 as at 1; every head, both Q and K, and every layer
//! use the same table. Bound by memory bandwidth.

use fulmen_core::{RopePairing, RopeSpec};

use super::parallel::{SharedPtr, rows};
use crate::{
    isa::Isa,
    lanes,
    simd::{Kernel, LaneIo, Simd, dispatch},
    threads::Pool,
};

/// Elements per task, of the rotation and of the angles, which cost much more per element.
const GRAIN: usize = 16 * 1024;
const ANGLE_GRAIN: usize = 256;

/// The frequencies of a rotation.
#[derive(Clone, Debug)]
pub struct Rope {
    params: RopeSpec,
    /// The angle of each pair at position 1.
    frequencies: Vec<f64>,
}

/// The cosines and sines of some positions.
#[derive(Clone, Debug)]
pub struct Angles {
    params: RopeSpec,
    positions: usize,
    /// For each position the factors of an element itself (cos), then those of its partner (sin); see
    /// [`Angles::row_len`].
    table: Vec<f32>,
}

impl Rope {
    /// The frequencies of `params`, each divided by its factor if factors are given.
    ///
    /// # Panics
    /// If `n_rot` is odd or there is not one factor for each pair.
    pub fn new(params: RopeSpec, factors: Option<&[f32]>) -> Rope {
        assert!(params.n_rot.is_multiple_of(2), "{} elements do not form pairs", params.n_rot);
        let pairs = params.n_rot as usize / 2;
        if let Some(factors) = factors {
            assert_eq!(factors.len(), pairs, "the frequency factors of rope");
        }
        let frequency = |i: usize| {
            let exponent = -2.0 * i as f64 / f64::from(params.n_rot);
            let factor = factors.map_or(1.0, |f| f64::from(f[i]));
            f64::from(params.base).powf(exponent) * f64::from(params.freq_scale) / factor
        };
        Rope { params, frequencies: (0..pairs).map(frequency).collect() }
    }

    /// The cosines and sines for a batch in which row `i` is at `positions[i]`.
    pub fn angles(&self, pool: &Pool, positions: &[u32]) -> Angles {
        let mut angles = Angles { params: self.params, positions: 0, table: Vec::new() };
        self.refill(pool, positions, &mut angles);
        angles
    }

    /// As [`Rope::angles`], reusing the memory of `angles`.
    pub fn refill(&self, pool: &Pool, positions: &[u32], angles: &mut Angles) {
        *angles = Angles {
            params: self.params,
            positions: positions.len(),
            table: std::mem::take(&mut angles.table),
        };
        let len = angles.row_len();
        angles.table.resize(positions.len() * len, 0.0);
        let table = SharedPtr::new(angles.table.as_mut_ptr());
        rows(pool, positions.len(), len, ANGLE_GRAIN, &|r| {
            for i in r {
                // SAFETY: row `i` lies in the table and belongs to this call alone.
                let row = unsafe { table.slice(i * len, len) };
                self.angles_of(positions[i], row);
            }
        });
    }

    fn angles_of(&self, position: u32, row: &mut [f32]) {
        let (first, second) = row.split_at_mut(row.len() / 2);
        let magnitude = f64::from(self.params.magnitude);
        for (i, frequency) in self.frequencies.iter().enumerate() {
            let (sin, cos) = (f64::from(position) * frequency).sin_cos();
            let (sin, cos) = ((sin * magnitude) as f32, (cos * magnitude) as f32);
            match self.params.pairing {
                RopePairing::NeoX => (first[i], second[i]) = (cos, sin),
                RopePairing::Interleaved => {
                    first[2 * i..2 * i + 2].copy_from_slice(&[cos, cos]);
                    second[2 * i..2 * i + 2].copy_from_slice(&[-sin, sin]);
                }
            }
        }
    }
}

impl Angles {
    /// Table entries per position: the cosine and sine of every pair (NeoX); or of every element, with the
    /// signs of the swapped partners (interleaved).
    fn row_len(&self) -> usize {
        match self.params.pairing {
            RopePairing::NeoX => self.params.n_rot as usize,
            RopePairing::Interleaved => 2 * self.params.n_rot as usize,
        }
    }
}

/// The layout of the heads of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Heads per row.
    pub heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Elements from one row to the next, at least `heads * head_dim`.
    pub row_stride: usize,
}

struct Row<'a> {
    angles: &'a [f32],
    pairing: RopePairing,
    n_rot: usize,
    head_dim: usize,
    heads: usize,
    x: *const f32,
    out: *mut f32,
}

impl Kernel for Row<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (first, second) = self.angles.split_at(self.angles.len() / 2);
        let (first, second, half) = (first.as_ptr(), second.as_ptr(), self.n_rot / 2);
        for head in 0..self.heads {
            // SAFETY: `rotate` passes rows of `heads` heads; the table has an entry for each pair or element
            // below `n_rot`. Every element is read before it is overwritten.
            unsafe {
                let (x, out) = (self.x.add(head * self.head_dim), self.out.add(head * self.head_dim));
                match self.pairing {
                    RopePairing::NeoX => lanes!(S, half, |at, io| {
                        let (a, b) = (io.load(s, x.add(at), 0.0), io.load(s, x.add(half + at), 0.0));
                        let (cos, sin) = (io.load(s, first.add(at), 0.0), io.load(s, second.add(at), 0.0));
                        io.store(s, out.add(at), s.fma(a, cos, s.neg(s.mul(b, sin))));
                        io.store(s, out.add(half + at), s.fma(a, sin, s.mul(b, cos)));
                    }),
                    RopePairing::Interleaved => lanes!(S, self.n_rot, |at, io| {
                        let v = io.load(s, x.add(at), 0.0);
                        let (cos, sin) = (io.load(s, first.add(at), 0.0), io.load(s, second.add(at), 0.0));
                        io.store(s, out.add(at), s.fma(v, cos, s.mul(s.swap_pairs(v), sin)));
                    }),
                }
                if x != out.cast_const() {
                    x.add(self.n_rot).copy_to_nonoverlapping(out.add(self.n_rot), self.head_dim - self.n_rot);
                }
            }
        }
    }
}

/// Rotates the heads of each row of `x` by the row's angles. An infinite or NaN element affects only its
/// pair.
///
/// # Panics
/// If a head has fewer than `n_rot` elements, or the layouts differ in more than the stride.
///
/// # Safety
/// `x` must be readable and `out` writable in their layouts, for a row of each position. They are either at
/// the same address with the same layout, or disjoint.
pub unsafe fn rotate(
    pool: &Pool,
    isa: Isa,
    angles: &Angles,
    x: *const f32,
    x_layout: Heads,
    out: *mut f32,
    out_layout: Heads,
) {
    let (Heads { heads, head_dim, row_stride: stride }, n_rot) = (x_layout, angles.params.n_rot as usize);
    let width = heads * head_dim;
    assert!((heads, head_dim) == (out_layout.heads, out_layout.head_dim), "the heads of rope");
    assert!(stride >= width && out_layout.row_stride >= width, "the rows of rope overlap");
    assert!(n_rot <= head_dim, "n_rot {n_rot} is more than the head size {head_dim}");
    let len = angles.row_len();
    let (x, out) = (SharedPtr::read(x), SharedPtr::new(out));
    rows(pool, angles.positions, width, GRAIN, &|r| {
        for i in r {
            // SAFETY: row `i` lies in both and belongs to this call alone.
            let (x, out) = unsafe { (x.at(i * stride), out.at(i * out_layout.row_stride)) };
            let (pairing, angles) = (angles.params.pairing, &angles.table[i * len..(i + 1) * len]);
            dispatch(isa, Row { angles, pairing, n_rot, head_dim, heads, x, out });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};

    fn reference(params: RopeSpec, factors: Option<&[f32]>, position: u32, head: &[f32]) -> Vec<f64> {
        let mut out: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
        let n_rot = params.n_rot as usize;
        for i in 0..n_rot / 2 {
            let theta = f64::from(position) * f64::from(params.freq_scale)
                / f64::from(params.base).powf(2.0 * i as f64 / n_rot as f64)
                / factors.map_or(1.0, |f| f64::from(f[i]));
            let (a, b) = match params.pairing {
                RopePairing::Interleaved => (2 * i, 2 * i + 1),
                RopePairing::NeoX => (i, i + n_rot / 2),
            };
            let (x, y, m) = (out[a], out[b], f64::from(params.magnitude));
            out[a] = (x * theta.cos() - y * theta.sin()) * m;
            out[b] = (x * theta.sin() + y * theta.cos()) * m;
        }
        out
    }

    #[test]
    fn match_the_reference_in_place_and_not() {
        let mut rng = rng();
        for pairing in [RopePairing::Interleaved, RopePairing::NeoX] {
            for (head_dim, n_rot) in
                [(0, 0), (1, 0), (2, 2), (6, 4), (33, 32), (64, 64), (80, 34), (128, 128), (256, 64)]
            {
                for (rows, heads, gap) in [(0, 4, 0), (1, 0, 3), (1, 1, 0), (3, 5, 7), (50, 8, 16)] {
                    for (base, freq_scale, magnitude, with_factors) in
                        [(10_000.0, 1.0, 1.0, false), (1e6, 0.25, 1.19, false), (500_000.0, 1.0, 1.0, true)]
                    {
                        let params = RopeSpec { pairing, n_rot: n_rot as u32, base, freq_scale, magnitude };
                        let factors: Vec<f32> = (0..n_rot / 2).map(|_| 1.0 + 7.0 * rng.f32()).collect();
                        let factors = with_factors.then_some(&factors[..]);
                        let mut positions: Vec<u32> = (0..rows).map(|_| rng.u32(0..131_073)).collect();
                        positions.iter_mut().take(1).for_each(|p| *p = 131_072);
                        let layout = Heads { heads, head_dim, row_stride: heads * head_dim + gap };
                        let dense = Heads { row_stride: heads * head_dim, ..layout };
                        let x = normal(&mut rng, rows * layout.row_stride, 1.0);
                        let mut want = Vec::new();
                        for (row, &position) in positions.iter().enumerate() {
                            for head in 0..heads {
                                let at = row * layout.row_stride + head * head_dim;
                                want.extend(reference(params, factors, position, &x[at..at + head_dim]));
                            }
                        }
                        let rope = Rope::new(params, factors);
                        let mut serial = Vec::new();
                        for (pool, isa) in machines() {
                            let what = format!("{params:?} {layout:?} on {isa}");
                            let angles = rope.angles(&pool, &positions);
                            let got = poisoned(want.len(), |out| {
                                // SAFETY: both hold the rows in their layouts.
                                unsafe { rotate(&pool, isa, &angles, x.as_ptr(), layout, out, dense) }
                            });
                            assert!(nmse(&got, &want) < 1e-13, "{what}: {}", nmse(&got, &want));
                            let mut over = x.clone();
                            // SAFETY: as above, in place.
                            unsafe {
                                rotate(&pool, isa, &angles, over.as_ptr(), layout, over.as_mut_ptr(), layout)
                            };
                            for row in 0..rows {
                                let at = row * layout.row_stride;
                                let (rotated, rest) =
                                    over[at..at + layout.row_stride].split_at(dense.row_stride);
                                assert_same(
                                    rotated,
                                    &got[row * dense.row_stride..][..dense.row_stride],
                                    &what,
                                );
                                assert_same(rest, &x[at + dense.row_stride..at + layout.row_stride], &what);
                            }
                            if pool.threads() == 1 {
                                serial = got;
                            } else {
                                assert_same(&got, &serial, &what);
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn special_values_stay_in_their_pair() {
        for pairing in [RopePairing::Interleaved, RopePairing::NeoX] {
            let params = RopeSpec { pairing, n_rot: 16, base: 1e4, freq_scale: 1.0, magnitude: 1.0 };
            let layout = Heads { heads: 1, head_dim: 20, row_stride: 20 };
            for (pool, isa) in machines() {
                let mut angles = Rope::new(params, None).angles(&pool, &[3; 9]);
                Rope::new(params, None).refill(&pool, &[5], &mut angles);
                for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut x = [1.0; 20];
                    x[2] = special;
                    // SAFETY: the array is one row.
                    unsafe { rotate(&pool, isa, &angles, x.as_ptr(), layout, x.as_mut_ptr(), layout) };
                    let partner = if pairing == RopePairing::Interleaved { 3 } else { 10 };
                    for (i, x) in x.iter().enumerate() {
                        assert_eq!(
                            x.is_finite(),
                            i != 2 && i != partner,
                            "{pairing:?} {special} {i} on {isa}"
                        );
                    }
                }
            }
        }
    }
}
