//! The index of each row's largest element: a SIMD maximum over strips of `STRIP` elements, then a scalar
//! search in the strip that contains it. Rows are divided into blocks of `BLOCK` elements for the threads.
//! Bound by memory bandwidth.

use super::parallel::SharedPtr;
use crate::{
    isa::Isa,
    lanes,
    simd::{Kernel, LaneIo, Simd, dispatch},
    threads::Pool,
};

/// Elements per task. Rows are split at multiples of it, for any number of threads.
const BLOCK: usize = 16 * 1024;
/// Elements between two comparisons with the largest so far.
const STRIP: usize = 512;

/// The largest of some elements and its lowest index; `-inf` at 0 if none is larger than `-inf`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Largest {
    pub(super) value: f32,
    pub(super) index: usize,
}

const NONE: Largest = Largest { value: f32::NEG_INFINITY, index: 0 };

/// Finds the largest of a slice.
pub(super) struct Find<'a>(pub(super) &'a [f32]);

impl Kernel for Find<'_> {
    type Output = Largest;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Largest {
        let (x, n) = (self.0.as_ptr(), self.0.len());
        let (mut value, mut strip) = (f32::NEG_INFINITY, 0..0);
        let mut from = 0;
        while from < n {
            let to = n.min(from + STRIP);
            let mut max = s.splat(f32::NEG_INFINITY);
            lanes!(S, from, to, |at, io| {
                // SAFETY: `io` covers lanes below `n`. With this order of the operands NaN never wins.
                max = s.max(unsafe { io.load(s, x.add(at), f32::NEG_INFINITY) }, max);
            });
            let max = s.reduce_max(max);
            if max > value {
                (value, strip) = (max, from..to);
            }
            from = to;
        }
        let start = strip.start;
        let index = self.0[strip].iter().position(|&x| x == value).map_or(0, |i| start + i);
        Largest { value, index }
    }
}

/// For each of the rows of `width` the index of the largest element, in `out`; the lowest such index on a
/// tie (-0 and 0 are equal).
///
/// NaN and -inf are never the largest. A row without other elements gives 0.
pub fn argmax(pool: &Pool, isa: Isa, x: &[f32], width: usize, out: &mut [u32]) {
    assert_eq!(x.len(), width * out.len(), "the rows of argmax");
    assert!(u32::try_from(width).is_ok(), "a row of argmax is too wide for its index");
    if width == 0 {
        out.fill(0);
        return;
    }
    let blocks = width.div_ceil(BLOCK);
    let find = |job: usize| {
        let (row, block) = (job / blocks, job % blocks);
        let start = block * BLOCK;
        let elements = &x[row * width..][start..width.min(start + BLOCK)];
        let found = dispatch(isa, Find(elements));
        Largest { index: start + found.index, ..found }
    };
    // Later blocks win only when they are larger, so the order of the blocks settles the ties.
    let better = |a: Largest, b: Largest| if b.value > a.value { b } else { a };
    if x.len() <= BLOCK || pool.threads() == 1 {
        for (row, out) in out.iter_mut().enumerate() {
            *out = (row * blocks..(row + 1) * blocks).map(find).fold(NONE, better).index as u32;
        }
        return;
    }
    let mut found = vec![NONE; out.len() * blocks];
    let shared = SharedPtr::new(found.as_mut_ptr());
    // Narrow rows go several to a job.
    let per_job = (BLOCK / width).max(1);
    let jobs = found.len();
    pool.run(jobs.div_ceil(per_job), &|job| {
        for i in job * per_job..jobs.min((job + 1) * per_job) {
            // SAFETY: each entry belongs to one job.
            unsafe { *shared.at(i) = find(i) };
        }
    });
    for (out, found) in out.iter_mut().zip(found.chunks(blocks)) {
        *out = found.iter().copied().fold(NONE, better).index as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};

    fn reference(row: &[f32]) -> u32 {
        let mut best = (f32::NEG_INFINITY, 0);
        for (i, &x) in row.iter().enumerate() {
            if x > best.0 {
                best = (x, i as u32);
            }
        }
        best.1
    }

    #[test]
    fn match_the_reference() {
        let mut rng = rng();
        for width in LENGTHS.into_iter().chain([151_936, 2 * BLOCK, 2 * BLOCK + 1]) {
            for rows in [0, 1, 2, 37] {
                let rows = if width > 10_000 { rows.min(2) } else { rows };
                // Few different values make many ties; some rows hold special ones.
                for (levels, special) in [(0, false), (3, false), (5, true)] {
                    let mut x: Vec<f32> = normal(&mut rng, rows * width, 1.0);
                    if levels > 0 {
                        x.iter_mut().for_each(|x| *x = (rng.u32(0..levels) as f32) - 2.0);
                    }
                    if special {
                        for x in &mut x {
                            if rng.u8(..) < 100 {
                                *x = SPECIAL[rng.usize(0..3)];
                            }
                        }
                    }
                    let want: Vec<u32> =
                        if width == 0 { vec![0; rows] } else { x.chunks(width).map(reference).collect() };
                    for (pool, isa) in machines() {
                        let mut got = vec![u32::MAX; rows];
                        argmax(&pool, isa, &x, width, &mut got);
                        assert_eq!(got, want, "{rows} rows of {width} on {isa}");
                    }
                }
            }
        }
    }

    #[test]
    fn rows_without_a_largest_give_zero_and_any_place_can_win() {
        for (pool, isa) in machines() {
            for width in [1, 7, 33, 40_000] {
                for mix in [[f32::NAN, f32::NAN], [f32::NEG_INFINITY; 2], [f32::NAN, f32::NEG_INFINITY]] {
                    let mut x: Vec<f32> = (0..width).map(|i| mix[i % 2]).collect();
                    let mut got = [9];
                    argmax(&pool, isa, &x, width, &mut got);
                    assert_eq!(got, [0], "{mix:?}");
                    for at in (0..width).step_by(1 + width / 50).chain([width - 1]) {
                        x[at] = f32::MIN;
                        argmax(&pool, isa, &x, width, &mut got);
                        assert_eq!(got, [at as u32], "{mix:?}");
                        x[at] = f32::NAN;
                    }
                }
            }
        }
    }
}
