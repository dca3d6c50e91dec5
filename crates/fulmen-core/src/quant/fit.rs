//! The search for scales that every encoder uses.
//!
//! A group of values is stored as quants on a [`Grid`]: `x = scale * q + offset`, `q` an integer in a range.
//! The best grid has no closed form, because the quants depend on it; but for given quants the best scale and
//! offset are a linear fit, and for a given grid the best quants are a rounding. So the search starts from a
//! few grids around the one that just spans the values, improves each by alternating the two, and keeps the
//! one with the least squared error. Spanning all values is rarely best: clipping the outermost one a little
//! makes the step of all the others smaller.
//!
//! All errors are measured, never derived from sums by subtraction, so the choice holds for values that
//! nearly lie on a grid already.
//!
//! Errors count by [`Weights`]: [`Equal`] ones, or those that an importance matrix gives.

use half::f16;

/// Lanes of the running sums. The compiler may not reorder floating-point additions, so the sums are written
/// out in the order that vectorizes.
const LANES: usize = 4;

/// Values beyond this exceed what any block's scales can express; clamping them keeps sums finite.
const LARGEST: f32 = 1e9;

/// A group whose values all lie below this is nearest to zero on every grid: half the least positive `f16`.
pub(super) const SMALLEST: f32 = 1.0 / (1u32 << 25) as f32;

/// The values a group's quants stand for: `scale * q + offset` for `q` from `lo` to `hi`.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    pub(super) scale: f32,
    pub(super) offset: f32,
    pub(super) lo: f32,
    pub(super) hi: f32,
}

/// How much the error of each value counts.
pub(super) trait Weights: Copy {
    /// Whether they are all 1.
    const EQUAL: bool;

    /// That of value `i`.
    fn at(self, i: usize) -> f32;

    /// Those of group `j` of `len` values.
    fn group(self, j: usize, len: usize) -> Self;
}

/// All values count the same.
#[derive(Clone, Copy)]
pub(super) struct Equal;

impl Weights for Equal {
    const EQUAL: bool = true;

    #[inline(always)]
    fn at(self, _: usize) -> f32 {
        1.0
    }

    #[inline(always)]
    fn group(self, _: usize, _: usize) -> Equal {
        Equal
    }
}

/// A weight for each value, from 0 to 1.
#[derive(Clone, Copy)]
pub(super) struct Given<'a>(pub(super) &'a [f32]);

impl Weights for Given<'_> {
    const EQUAL: bool = false;

    #[inline(always)]
    fn at(self, i: usize) -> f32 {
        self.0[i]
    }

    #[inline(always)]
    fn group(self, j: usize, len: usize) -> Self {
        Given(&self.0[j * len..][..len])
    }
}

/// How values lie on a grid: weighted sums over the quants `q` nearest to them and over what remains, `r`.
pub(super) struct Fit {
    pub(super) error: f32,
    /// The sum of the weights.
    pub(super) w: f32,
    pub(super) r: f32,
    pub(super) q: f32,
    pub(super) rq: f32,
    pub(super) qq: f32,
}

/// The integer nearest to `x` in `lo..=hi`. Bounds must lie within ±2^22; NaN gives a bound.
#[inline(always)]
pub(super) fn nearest(x: f32, lo: f32, hi: f32) -> f32 {
    // Comparisons in this form are single instructions, and adding 1.5 * 2^23 leaves no room for a
    // fraction: without SSE4.1 the library's rounding is a call per element.
    const NO_FRACTION: f32 = 12_582_912.0;
    let x = if x > lo { x } else { lo };
    let x = if x < hi { x } else { hi };
    (x + NO_FRACTION) - NO_FRACTION
}

#[inline(always)]
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

impl Grid {
    /// Quants `-n..n` without an offset.
    pub(super) fn symmetric(scale: f32, n: f32) -> Grid {
        Grid { scale, offset: 0.0, lo: -n, hi: n - 1.0 }
    }

    /// Quants `0..=top` above an offset.
    pub(super) fn above(scale: f32, offset: f32, top: f32) -> Grid {
        Grid { scale, offset, lo: 0.0, hi: top }
    }

    /// Lays the values on the grid.
    #[inline(always)]
    pub(super) fn fit<const N: usize>(&self, x: &[f32; N], weights: impl Weights) -> Fit {
        let [error, r, q, rq, qq, w] = self.sums(x, weights).map(|lanes| lanes.iter().sum());
        Fit { error, w, r, q, rq, qq }
    }

    #[inline(always)]
    fn sums<const N: usize, W: Weights>(&self, x: &[f32; N], weights: W) -> [[f32; LANES]; 6] {
        const { assert!(N.is_multiple_of(LANES)) };
        let Grid { scale, offset, lo, hi } = *self;
        let inverse = inverse(scale);
        let mut sums = [[0.0f32; LANES]; 6];
        for (chunk, x) in x.as_chunks::<LANES>().0.iter().enumerate() {
            for l in 0..LANES {
                let w = weights.at(chunk * LANES + l);
                let above = x[l] - offset;
                let q = nearest(above * inverse, lo, hi);
                let r = above - scale * q;
                sums[0][l] += w * (r * r);
                sums[1][l] += w * r;
                sums[2][l] += w * q;
                sums[3][l] += w * (r * q);
                sums[4][l] += w * (q * q);
                if !W::EQUAL {
                    sums[5][l] += w;
                }
            }
        }
        if W::EQUAL {
            sums[5] = [(N / LANES) as f32; LANES];
        }
        sums
    }

    /// The quants of the values.
    #[inline(always)]
    pub(super) fn quants<const N: usize>(&self, x: &[f32; N], out: &mut [i8; N]) {
        let inverse = inverse(self.scale);
        for (x, out) in x.iter().zip(out) {
            *out = nearest((x - self.offset) * inverse, self.lo, self.hi) as i8;
        }
    }

    /// The best symmetric grid for the quants of a fit.
    #[inline(always)]
    fn rescaled(&self, fit: &Fit) -> Grid {
        let step = if fit.qq > 0.0 { fit.rq / fit.qq } else { 0.0 };
        Grid { scale: self.scale + step, ..*self }
    }

    /// The best grid for the quants of a fit, its offset not above `ceiling`.
    #[inline(always)]
    fn refitted<W: Weights>(&self, fit: &Fit, ceiling: f32) -> Grid {
        let det = fit.w * fit.qq - fit.q * fit.q;
        // With equal weights this is zero (all quants equal) or at least the number of values less 1, because
        // quants are integers. With others, less than this part of its terms is their rounding.
        let least = if W::EQUAL { 0.5 } else { fit.w * fit.qq * 4e-6 };
        if det < least || det <= 0.0 {
            return *self;
        }
        let step = (fit.w * fit.rq - fit.q * fit.r) / det;
        let offset = self.offset + (fit.r - step * fit.q) / fit.w;
        if offset <= ceiling {
            return Grid { scale: self.scale + step, offset, ..*self };
        }
        let moved = ceiling - self.offset;
        Grid { scale: self.scale + (fit.rq - moved * fit.q) / fit.qq, offset: ceiling, ..*self }
    }
}

/// The values of a block, cut to the range in which sums stay finite.
#[inline(always)]
pub(super) fn load<const N: usize>(values: &[f32; N]) -> [f32; N] {
    values.map(|value| value.clamp(-LARGEST, LARGEST))
}

/// The value of the greatest magnitude, with its sign.
#[inline(always)]
pub(super) fn peak<const N: usize>(x: &[f32; N]) -> f32 {
    let (least, most) = span(x);
    if most > -least { most } else { least }
}

/// The least and the greatest value.
#[inline(always)]
fn span<const N: usize>(x: &[f32; N]) -> (f32, f32) {
    let mut least = [f32::INFINITY; LANES];
    let mut most = [f32::NEG_INFINITY; LANES];
    for x in x.as_chunks::<LANES>().0 {
        for l in 0..LANES {
            least[l] = if x[l] < least[l] { x[l] } else { least[l] };
            most[l] = if x[l] > most[l] { x[l] } else { most[l] };
        }
    }
    (least.into_iter().fold(f32::INFINITY, f32::min), most.into_iter().fold(f32::NEG_INFINITY, f32::max))
}

/// The nearest `f16`, never infinite.
#[inline(always)]
pub(super) fn to_f16(x: f32) -> f16 {
    f16::from_f32(x.clamp(-f16::MAX.to_f32(), f16::MAX.to_f32()))
}

/// An `f16` near `greatest / steps` whose multiples up to `steps` reach `greatest`.
///
/// Among the least `f16`s the nearest can be so much too small that the greatest scale would be cut; then
/// the next one up is taken.
pub(super) fn unit_f16(greatest: f32, steps: f32) -> f16 {
    let unit = to_f16(greatest / steps);
    let reach = unit.to_f32().abs() * (steps.abs() + 0.5);
    if greatest.abs() > reach && unit.to_bits() & 0x7fff < f16::MAX.to_bits() {
        return f16::from_bits(unit.to_bits() + 1);
    }
    unit
}

/// Alternates fitting and rounding from `start` and returns the best grid met, with its error.
#[inline(always)]
fn descend<const N: usize>(
    x: &[f32; N],
    weights: impl Weights,
    start: Grid,
    rounds: usize,
    next: impl Fn(&Grid, &Fit) -> Grid,
) -> (f32, Grid) {
    let fit = start.fit(x, weights);
    let mut best = (fit.error, start);
    let mut grid = next(&start, &fit);
    for round in 0..rounds {
        let fit = grid.fit(x, weights);
        if fit.error >= best.0 {
            break;
        }
        best = (fit.error, grid);
        if round + 1 < rounds {
            grid = next(&grid, &fit);
        }
    }
    best
}

/// The scale of the grid with quants `-n..n` that just spans the values.
#[inline(always)]
pub(super) fn spanning_scale<const N: usize>(x: &[f32; N], n: f32) -> f32 {
    peak(x) / -n
}

/// A good scale for quants `-n..n`.
pub(super) fn search_scale<const N: usize>(x: &[f32; N], weights: impl Weights, n: f32) -> f32 {
    let peak = peak(x);
    if peak.abs() < SMALLEST {
        return 0.0;
    }
    let starts = SYM_STARTS.iter().map(|steps| peak / -(n + steps));
    let starts = starts.chain(SYM_FLIPPED.iter().map(|steps| peak / (n + steps)));
    let starts = starts.map(|scale| Grid::symmetric(scale, n));
    best_of(x, weights, starts, |grid, fit| grid.rescaled(fit)).scale
}

/// How many steps more (or less) than `n` the peak is from zero on the grids tried: on the side that has
/// `n` quants, and on the other one.
const SYM_STARTS: [f32; 5] = [-0.8, -0.4, 0.0, 0.4, 0.9];
const SYM_FLIPPED: [f32; 4] = [-1.7, -1.3, -0.9, -0.4];

/// The grid with quants `0..=top` that just spans the values, its offset not above `ceiling`.
#[inline(always)]
pub(super) fn spanning_grid<const N: usize>(x: &[f32; N], top: f32, ceiling: f32) -> Grid {
    let (least, most) = span(x);
    let offset = least.min(ceiling);
    Grid::above((most - offset) / top, offset, top)
}

/// A good grid with quants `0..=top`, its offset not above `ceiling`.
pub(super) fn search_grid<const N: usize, W: Weights>(
    x: &[f32; N],
    weights: W,
    top: f32,
    ceiling: f32,
) -> Grid {
    let spanning = spanning_grid(x, top, ceiling);
    let range = spanning.scale * top;
    if range < SMALLEST {
        return spanning;
    }
    let starts = MIN_STARTS.iter().map(|(below, above)| {
        let scale = range / (top + below + above);
        Grid::above(scale, (spanning.offset + below * scale).min(ceiling), top)
    });
    best_of(x, weights, starts, |grid, fit| grid.refitted::<W>(fit, ceiling))
}

/// How many steps the grids tried leave out at the lower and at the upper end.
const MIN_STARTS: [(f32, f32); 9] = [
    (0.0, 0.0),
    (-0.3, -0.3),
    (0.3, 0.3),
    (0.6, 0.6),
    (0.0, 0.5),
    (0.5, 0.0),
    (-0.3, 0.3),
    (0.3, -0.3),
    (0.9, 0.9),
];

/// The best grid that a step of [`descend`] from each start gives, followed to its end.
#[inline(always)]
fn best_of<const N: usize>(
    x: &[f32; N],
    weights: impl Weights,
    starts: impl Iterator<Item = Grid>,
    next: impl Fn(&Grid, &Fit) -> Grid,
) -> Grid {
    let mut best = (f32::INFINITY, Grid::symmetric(0.0, 1.0));
    for start in starts {
        let found = descend(x, weights, start, 1, &next);
        if found.0 < best.0 {
            best = found;
        }
    }
    descend(x, weights, best.1, 3, &next).1
}
