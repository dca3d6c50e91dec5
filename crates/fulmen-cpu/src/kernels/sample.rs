//! Samples a token from each row of logits, by the algorithm of [`fulmen_core::sampling`].
//!
//! No row is fully sorted. A SIMD scan gathers the candidates above a threshold, which are a prefix of the
//! sorted order; the sampled one is then found by its cumulative weight with quickselect, halving the range
//! each time. A row costs a few passes over its logits plus time linear in the candidates. In parallel over
//! rows; bound by memory bandwidth.

use fulmen_core::sampling::{NO_TOKEN, SampleState};

use super::{argmax::Find, parallel::SharedPtr};
use crate::{
    isa::Isa,
    lanes,
    simd::{Kernel, LaneIo, Simd, dispatch, math},
    threads::Pool,
};

/// Total number of logits up to which one thread is used.
pub(super) const GRAIN: usize = 4 * 1024;
/// Weights whose sum is kept in f32; the sums of the blocks are added in f64.
const BLOCK: usize = 256;
/// Below this many candidates, sort instead of quickselect.
const SORT: usize = 64;
/// A weight with this logarithm is 0 in f32.
const NOTHING: f64 = -110.0;

#[derive(Clone, Copy)]
pub(super) struct Candidate {
    /// Sort key: smaller comes first.
    pub(super) key: u64,
    weight: f32,
}

impl Candidate {
    /// The key has the logit, mapped to an integer that decreases as it increases, above the index.
    #[inline]
    fn new(logit: f32, index: usize) -> Candidate {
        // Adding 0 maps -0 to 0, which is equal.
        let bits = (logit + 0.0).to_bits();
        let falling = if bits >> 31 == 0 { !bits & 0x7fff_ffff } else { bits };
        Candidate { key: u64::from(falling) << 32 | index as u64, weight: 0.0 }
    }

    #[inline]
    pub(super) fn logit(self) -> f32 {
        let falling = (self.key >> 32) as u32;
        f32::from_bits(if falling >> 31 == 0 { !falling & 0x7fff_ffff } else { falling })
    }

    #[inline]
    pub(super) fn index(self) -> u32 {
        self.key as u32
    }
}

/// Appends each element above `bound` to `found`, in order.
pub(super) struct Above<'a> {
    pub(super) row: &'a [f32],
    pub(super) bound: f32,
    pub(super) found: &'a mut Vec<Candidate>,
    /// If given, only the first `keep` of the sorted order are needed.
    pub(super) keep: Option<usize>,
}

impl Kernel for Above<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let x = self.row.as_ptr();
        lanes!(S, self.row.len(), |at, io| {
            // SAFETY: `io` covers lanes below the length.
            let v = unsafe { io.load(s, x.add(at), f32::NEG_INFINITY) };
            let hits = s.bits(s.lt(s.splat(self.bound), v));
            if hits != 0 {
                self.push(at, hits);
            }
        });
        if let Some(keep) = self.keep
            && keep < self.found.len()
        {
            self.shrink(keep);
        }
    }
}

impl Above<'_> {
    /// Appends the elements from `at` on whose bit in `hits` is set.
    #[inline(never)]
    fn push(&mut self, at: usize, mut hits: u32) {
        while hits != 0 {
            let i = at + hits.trailing_zeros() as usize;
            hits &= hits - 1;
            self.found.push(Candidate::new(self.row[i], i));
        }
        if let Some(keep) = self.keep
            && self.found.len() >= 2 * keep.max(SORT)
        {
            self.shrink(keep);
        }
    }

    /// Keeps the first `keep` of the sorted order. A later element that is not larger than the last of them
    /// has a higher index and so comes after it.
    fn shrink(&mut self, keep: usize) {
        let (_, last, _) = self.found.select_nth_unstable_by_key(keep - 1, |c| c.key);
        self.bound = last.logit();
        self.found.truncate(keep);
    }
}

/// The weight of logits against the largest.
#[derive(Clone, Copy)]
pub(super) struct Weigh {
    pub(super) largest: f32,
    pub(super) temperature: f32,
}

impl Weigh {
    #[inline(always)]
    fn weight<S: Simd>(self, s: S, logit: S::V) -> S::V {
        let largest = s.splat(self.largest);
        let w = math::exp(s, s.div(s.sub(logit, largest), s.splat(self.temperature)));
        // Otherwise inf - inf would be NaN.
        s.select(s.eq(logit, largest), s.splat(1.0), w)
    }
}

/// The sum of the weights of a row; NaN has weight 0.
pub(super) struct Total<'a>(pub(super) Weigh, pub(super) &'a [f32]);

impl Kernel for Total<'_> {
    type Output = f64;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f64 {
        let (x, n) = (self.1.as_ptr(), self.1.len());
        let (mut total, mut from) = (0.0, 0);
        while from < n {
            let to = n.min(from + BLOCK);
            let mut sum = s.splat(0.0);
            lanes!(S, from, to, |at, io| {
                // SAFETY: `io` covers lanes below `n`; the lanes outside have weight 0.
                let w = self.0.weight(s, unsafe { io.load(s, x.add(at), f32::NEG_INFINITY) });
                // The maximum with 0 maps NaN to 0.
                sum = s.add(sum, s.max(w, s.splat(0.0)));
            });
            total += f64::from(s.reduce_sum(sum));
            from = to;
        }
        total
    }
}

/// Fills in the weights of candidates, in the same arithmetic as [`Total`].
struct Fill<'a>(Weigh, &'a mut [Candidate]);

impl Kernel for Fill<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut buffer = [0.0; BLOCK];
        for part in self.1.chunks_mut(BLOCK) {
            for (x, c) in buffer.iter_mut().zip(part.iter()) {
                *x = c.logit();
            }
            let p = buffer.as_mut_ptr();
            lanes!(S, part.len(), |at, io| {
                // SAFETY: `io` covers lanes below the part's length, which is at most the buffer's.
                unsafe { io.store(s, p.add(at), self.0.weight(s, io.load(s, p.add(at), 0.0))) };
            });
            for (x, c) in buffer.iter().zip(part) {
                c.weight = *x;
            }
        }
    }
}

fn mass(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|c| f64::from(c.weight)).sum()
}

/// The number of candidates, in sorted order, until `enough` holds for their cumulative weight: at least one,
/// and all if it never holds. Those are moved to the front, unsorted except that the last of them is at the
/// end.
fn prefix(candidates: &mut [Candidate], enough: impl Fn(f64) -> bool) -> usize {
    let (mut from, mut to, mut before) = (0, candidates.len(), 0.0);
    while to - from > SORT {
        let middle = from + (to - from) / 2;
        candidates[from..to].select_nth_unstable_by_key(middle - from, |c| c.key);
        let lower = mass(&candidates[from..middle]);
        if enough(before + lower) {
            to = middle;
        } else {
            (from, before) = (middle, before + lower);
        }
    }
    candidates[from..to].sort_unstable_by_key(|c| c.key);
    for (i, c) in candidates[from..to].iter().enumerate() {
        before += f64::from(c.weight);
        if enough(before) {
            return from + i + 1;
        }
    }
    to
}

/// The candidates that can be sampled, with their weights, and the sum of the weights that `top_k` keeps.
/// They are a prefix of the sorted order: omitted ones come after everything that can be sampled.
fn gather(isa: Isa, row: &[f32], state: &SampleState, weigh: Weigh, u: f64) -> (Vec<Candidate>, f64) {
    let mut found = Vec::new();
    let top_k = state.top_k as usize;
    if top_k > 0 && top_k < row.len() {
        dispatch(isa, Above { row, bound: f32::NEG_INFINITY, found: &mut found, keep: Some(top_k) });
        dispatch(isa, Fill(weigh, &mut found));
        let total = mass(&found);
        return (found, total);
    }
    let total = dispatch(isa, Total(weigh, row));
    let needed = if state.top_p < 1.0 { f64::from(state.top_p) * total } else { u * total };
    // With `min_p` and no `top_p`, sampling is relative to all that `min_p` keeps, so all of that is needed.
    let all = state.min_p > 0.0 && state.top_p >= 1.0;
    // Logarithms of weights: a little below what `min_p` keeps, and where weights are 0 in f32.
    let floor = if state.min_p > 0.0 { f64::from(state.min_p).ln() * 1.001 - 0.001 } else { NOTHING };
    let floor = floor.max(NOTHING);
    let mut depth = if all { floor } else { floor.max(-4.0) };
    loop {
        let bound = f64::from(weigh.largest) + depth * f64::from(weigh.temperature);
        // One lower than rounding gives, so that nothing at the bound is lost, and below the largest itself.
        let bound = (bound as f32).next_down().min(weigh.largest.next_down());
        found.clear();
        dispatch(isa, Above { row, bound, found: &mut found, keep: None });
        dispatch(isa, Fill(weigh, &mut found));
        let sum = mass(&found);
        if depth == NOTHING {
            return (found, sum);
        }
        if depth == floor || sum > needed {
            return (found, total);
        }
        depth = floor.max(2.0 * depth);
    }
}

fn draw(isa: Isa, row: &[f32], state: &SampleState) -> u32 {
    let largest = dispatch(isa, Find(row));
    if !largest.value.is_finite() {
        return NO_TOKEN;
    }
    // A NaN temperature is greedy, too.
    let sampled = state.temperature > 0.0;
    if !sampled || state.top_k == 1 {
        return largest.index as u32;
    }
    let weigh = Weigh { largest: largest.value, temperature: state.temperature };
    let u = f64::from(state.uniform());
    let (mut kept, mut total) = gather(isa, row, state, weigh, u);
    if state.min_p > 0.0 {
        kept.retain(|c| c.weight >= state.min_p);
    }
    if state.top_p < 1.0 {
        let needed = f64::from(state.top_p) * total;
        let n = prefix(&mut kept, |sum| sum >= needed);
        kept.truncate(n);
    }
    if state.top_p < 1.0 || state.min_p > 0.0 {
        total = mass(&kept);
    }
    let n = prefix(&mut kept, |sum| sum > u * total);
    kept.get(n.wrapping_sub(1)).map_or(largest.index as u32, |c| c.index())
}

/// Samples one token for each row of `width` logits with the row's state, whose step it increments. The token
/// of a logit is its column, or that in `tokens`, which has the shape of the logits.
///
/// A state that [`SampleState::validate`] rejects still gives a valid index. A row without a finite maximum,
/// or without logits, gives [`NO_TOKEN`].
pub fn sample(
    pool: &Pool,
    isa: Isa,
    logits: &[f32],
    width: usize,
    tokens: Option<&[u32]>,
    states: &mut [SampleState],
    out: &mut [u32],
) {
    assert_eq!(states.len(), out.len(), "the states of sample");
    assert_eq!(logits.len(), width * out.len(), "the rows of sample");
    assert!(u32::try_from(width).is_ok(), "a row of sample is too wide for its index");
    assert!(tokens.is_none_or(|tokens| tokens.len() == logits.len()), "the tokens of sample");
    let rows = out.len();
    let (states, out) = (SharedPtr::new(states.as_mut_ptr()), SharedPtr::new(out.as_mut_ptr()));
    let job = |row: usize| {
        // SAFETY: each row belongs to one call, so its state and its result do, too.
        let (state, out) = unsafe { (&mut *states.at(row), &mut *out.at(row)) };
        let column = draw(isa, &logits[row * width..][..width], state);
        *out = match tokens {
            Some(tokens) if column != NO_TOKEN => tokens[row * width + column as usize],
            _ => column,
        };
        state.step = state.step.wrapping_add(1);
    };
    if rows == 1 || logits.len() <= GRAIN {
        (0..rows).for_each(job);
    } else {
        pool.run(rows, &job);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};

    /// The algorithm as documented, in f64, for each of `tilts` of the thresholds.
    fn reference(row: &[f32], state: &SampleState, tilts: &[f64]) -> Vec<u32> {
        let mut sorted: Vec<(f32, u32)> = row
            .iter()
            .enumerate()
            .filter(|(_, l)| **l > f32::NEG_INFINITY)
            .map(|(i, &l)| (l, i as u32))
            .collect();
        sorted.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap().then(a.1.cmp(&b.1)));
        if !sorted.first().is_some_and(|c| c.0.is_finite()) {
            return vec![NO_TOKEN];
        }
        if state.temperature == 0.0 {
            return vec![sorted[0].1];
        }
        if state.top_k > 0 {
            sorted.truncate(state.top_k as usize);
        }
        let top = sorted[0].0;
        let weight = |l: f32| match l == top {
            true => 1.0,
            false => ((f64::from(l) - f64::from(top)) / f64::from(state.temperature)).exp(),
        };
        let weights: Vec<f64> = sorted.iter().map(|c| weight(c.0)).collect();
        let z: f64 = weights.iter().sum();
        let mut results = Vec::new();
        // What rounding of the sums may draw: all candidates around the target.
        let draw_tilt = tilts.iter().fold(0.0, |most: f64, tilt| most.max(*tilt));
        for min_tilt in tilts {
            for top_tilt in tilts {
                let least = f64::from(state.min_p) * (1.0 + min_tilt);
                let mut n = weights.iter().take_while(|&&w| w >= least).count().max(1);
                if state.top_p < 1.0 {
                    let mut sum = 0.0;
                    let enough = |w: &f64| {
                        sum += w;
                        sum >= f64::from(state.top_p) * z * (1.0 + top_tilt)
                    };
                    n = weights[..n].iter().position(enough).map_or(n, |i| i + 1);
                }
                let total: f64 = weights[..n].iter().sum();
                let drawn = |tilt: f64| {
                    let (target, mut sum) = ((f64::from(state.uniform()) + tilt) * total, 0.0);
                    let above = |w: &f64| {
                        sum += w;
                        sum > target
                    };
                    weights[..n].iter().position(above).unwrap_or(n - 1)
                };
                let around = drawn(-draw_tilt)..=drawn(draw_tilt);
                results.extend(sorted[around].iter().map(|candidate| candidate.1));
            }
        }
        results.sort_unstable();
        results.dedup();
        results
    }

    fn states(rng: &mut fastrand::Rng) -> Vec<SampleState> {
        let mut states = Vec::new();
        for temperature in [0.0, 0.01, 0.7, 1.0, 3.0, 100.0] {
            for top_k in [0, 1, 2, 40, 1000, 200_000] {
                for top_p in [0.0, 0.3, 0.95, 1.0, 2.0] {
                    for min_p in [0.0, 0.05, 0.9] {
                        let (seed_lo, seed_hi, step, row) =
                            (rng.u32(..), rng.u32(..), rng.u32(..), rng.u32(..));
                        states.push(SampleState {
                            temperature,
                            top_k,
                            top_p,
                            min_p,
                            seed_lo,
                            seed_hi,
                            step,
                            row,
                        });
                    }
                }
            }
        }
        states
    }

    #[test]
    fn match_the_rule() {
        let mut rng = rng();
        for width in LENGTHS {
            for (spread, levels, special) in
                [(2.0, 0, false), (20.0, 0, false), (0.0, 4, false), (1.0, 3, true)]
            {
                let mut states = states(&mut rng);
                if width > 300 {
                    states.retain(|_| rng.u8(..) < 60);
                }
                let mut logits = normal(&mut rng, states.len() * width, spread);
                for l in &mut logits {
                    if levels > 0 {
                        *l = rng.u32(0..levels) as f32;
                    }
                    if special && rng.u8(..) < 40 {
                        *l = SPECIAL[rng.usize(..SPECIAL.len())];
                    }
                }
                let want: Vec<Vec<u32>> = (0..states.len())
                    .map(|i| reference(&logits[i * width..][..width], &states[i], &[0.0, -1e-6, 1e-6]))
                    .collect();
                for (pool, isa) in machines() {
                    let mut after = states.clone();
                    let mut got = vec![u32::MAX; states.len()];
                    sample(&pool, isa, &logits, width, None, &mut after, &mut got);
                    for (i, got) in got.iter().enumerate() {
                        assert!(
                            want[i].contains(got),
                            "{width} {:?} on {isa}: {got} not {:?}",
                            states[i],
                            want[i]
                        );
                        assert_eq!(
                            after[i],
                            SampleState { step: states[i].step.wrapping_add(1), ..states[i] }
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn match_the_rule_over_a_vocabulary() {
        let mut rng = rng();
        let width = 151_936;
        for spread in [0.5, 2.0, 6.0] {
            let logits = normal(&mut rng, width, spread);
            let mut states = states(&mut rng);
            states.retain(|_| rng.u8(..) < 8);
            for state in states {
                let want = reference(&logits, &state, &[0.0, -1e-6, 1e-6]);
                for isa in Isa::available() {
                    let mut got = [u32::MAX];
                    sample(&Pool::new(1), isa, &logits, width, None, &mut [state], &mut got);
                    assert!(want.contains(&got[0]), "{state:?} on {isa}: {got:?} not {want:?}");
                }
            }
        }
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [0.3, 2.0, f32::NAN, -1.0, 1.5, f32::NEG_INFINITY, 0.3];
        let weights = logits.map(|l: f32| if l.is_nan() { 0.0 } else { f64::from(l / 0.8).exp() });
        let total: f64 = weights.iter().sum();
        let draws = 20_000;
        let mut states = [SampleState { temperature: 0.8, seed_lo: 99, ..SampleState::greedy() }];
        let (mut counts, mut out) = ([0u32; 7], [0]);
        for _ in 0..draws {
            sample(&Pool::new(1), Isa::best(), &logits, 7, None, &mut states, &mut out);
            counts[out[0] as usize] += 1;
        }
        for (count, weight) in counts.into_iter().zip(weights) {
            let expected = weight / total * f64::from(draws);
            assert!((f64::from(count) - expected).abs() <= 5.0 * expected.sqrt(), "{count} not {expected}");
        }
    }

    #[test]
    fn hostile_rows_and_states_give_an_index_of_the_row_or_none() {
        let nan = f32::NAN;
        let good = SampleState { temperature: 1.0, top_p: 0.9, min_p: 0.1, ..SampleState::greedy() };
        let bad = [
            SampleState { temperature: nan, ..good },
            SampleState { temperature: f32::INFINITY, ..good },
            SampleState { temperature: f32::MAX, ..good },
            SampleState { temperature: 1e-45, ..good },
            SampleState { temperature: -1.0, ..good },
            SampleState { top_p: nan, ..good },
            SampleState { top_p: -1.0, ..good },
            SampleState { min_p: nan, ..good },
            SampleState { min_p: 7.0, ..good },
        ];
        let rows = [[nan; 37], [f32::INFINITY; 37], [f32::NEG_INFINITY; 37], [f32::MAX; 37], [1e-45; 37]];
        for (pool, isa) in machines() {
            for state in bad {
                for row in rows {
                    let mut out = [u32::MAX];
                    sample(&pool, isa, &row, 37, None, &mut [state], &mut out);
                    match row[0].is_finite() {
                        true => assert!(out[0] < 37, "{state:?} {row:?}"),
                        false => assert_eq!(out, [NO_TOKEN], "{state:?} {row:?}"),
                    }
                }
            }
        }
    }
}
