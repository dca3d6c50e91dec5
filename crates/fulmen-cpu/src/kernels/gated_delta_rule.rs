//! The gated delta rule: SIMD over the columns of a state, in parallel over sequences, value heads and
//! blocks of columns.
//!
//! The columns of a head's state do not depend on each other, so a task takes a block of them through all
//! rows of its sequence; the block stays in the L1 cache meanwhile. A row takes two passes over it: one for
//! `k · S`, one that updates it and computes `q · S`. Bound by memory bandwidth for one row, by the L1 cache
//! for many.

use fulmen_core::{DeltaHeads, MAX_DELTA_HEAD};

use super::parallel::SharedPtr;
use super::sequence_rows::SequenceRows;
use crate::{
    isa::Isa,
    lanes,
    simd::{Kernel, LaneIo, Simd, dispatch},
    threads::Pool,
};

/// Columns of a task.
const BLOCK: usize = 32;
const HEAD: usize = MAX_DELTA_HEAD as usize;

/// The operands; see [`GatedDeltaRuleCall`](fulmen_core::GatedDeltaRuleCall).
pub(crate) struct GatedDeltaRule<'a> {
    pub(crate) input: &'a [f32],
    pub(crate) alpha: &'a [f32],
    pub(crate) beta: &'a [f32],
    pub(crate) decay: &'a [f32],
    pub(crate) dt: &'a [f32],
    pub(crate) state: &'a mut [f32],
    pub(crate) positions: &'a [u32],
    pub(crate) sequences: Option<&'a [u32]>,
    pub(crate) output: &'a mut [f32],
    pub(crate) heads: DeltaHeads,
    pub(crate) epsilon: f32,
}

/// `log(1 + exp(x))`, without overflow.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `x` divided by its L2 norm, but at least by epsilon, times `scale`.
fn normalized(x: &[f32], epsilon: f32, scale: f32, out: &mut [f32; HEAD]) {
    let squares: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let factor = (f64::from(scale) / squares.sqrt().max(f64::from(epsilon))) as f32;
    // `max` drops a NaN, which must not disappear.
    let factor = if squares.is_nan() { f32::NAN } else { factor };
    out.iter_mut().zip(x).for_each(|(out, x)| *out = x * factor);
}

/// One row of a block of columns.
struct DeltaStep<'a> {
    /// The first column of the block in the first row of the state.
    state: *mut f32,
    q: &'a [f32; HEAD],
    k: &'a [f32; HEAD],
    v: *const f32,
    output: *mut f32,
    /// Multiplies the state.
    decay: f32,
    /// Multiplies the update.
    beta: f32,
    head_dim: usize,
    n: usize,
}

impl Kernel for DeltaStep<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (d, decay, beta) = (self.head_dim, s.splat(self.decay), s.splat(self.beta));
        lanes!(S, self.n, |at, io| {
            let mut predicted = s.splat(0.0);
            for i in 0..d {
                // SAFETY: the state has `d` rows of `d` columns, and `io` covers lanes below `n`.
                let row = unsafe { io.load(s, self.state.add(i * d + at), 0.0) };
                predicted = s.fma(s.splat(self.k[i]), row, predicted);
            }
            // SAFETY: v has the columns of the state.
            let v = unsafe { io.load(s, self.v.add(at), 0.0) };
            let update = s.mul(beta, s.sub(v, s.mul(decay, predicted)));
            let mut read = s.splat(0.0);
            for i in 0..d {
                // SAFETY: as above.
                unsafe {
                    let row = s.mul(decay, io.load(s, self.state.add(i * d + at), 0.0));
                    let row = s.fma(s.splat(self.k[i]), update, row);
                    read = s.fma(s.splat(self.q[i]), row, read);
                    io.store(s, self.state.add(i * d + at), row);
                }
            }
            // SAFETY: the output has the columns of the state.
            unsafe { io.store(s, self.output.add(at), read) };
        });
    }
}

/// Runs the rows of every sequence in their order.
///
/// # Panics
/// If the sizes do not fit each other, or a sequence is not below the slots of the state.
pub(crate) fn gated_delta_rule(pool: &Pool, isa: Isa, rule: GatedDeltaRule<'_>) {
    let GatedDeltaRule { input, alpha, beta, decay, dt, positions, sequences, heads, epsilon, .. } = rule;
    let (m, d) = (positions.len(), heads.head_dim as usize);
    let (values, width) = (heads.n_v_heads as usize, heads.width() as usize);
    let (key_width, slot) = (heads.key_width() as usize, heads.state_width() as usize);
    assert!(input.len() == m * width && rule.output.len() == m * values * d, "delta rule: wrong rows");
    assert!(alpha.len() == m * values && beta.len() == m * values, "delta rule: wrong gates");
    assert!(decay.len() == values && dt.len() == values && d <= HEAD, "delta rule: wrong heads");
    let groups = SequenceRows::new(sequences, m);
    let slots = rule.state.len() / slot;
    assert!((0..groups.len()).all(|at| groups.get(at).0 < slots), "delta rule: no such slot");
    let state = SharedPtr::new(rule.state.as_mut_ptr());
    let output = SharedPtr::new(rule.output.as_mut_ptr());
    let blocks = d.div_ceil(BLOCK);
    pool.run(groups.len() * values * blocks, &|task| {
        let (sequence, rows) = groups.get(task / (values * blocks));
        let (head, first) = (task / blocks % values, task % blocks * BLOCK);
        let (key_head, n) = (heads.key_head(head as u32) as usize, BLOCK.min(d - first));
        let (mut q, mut k) = ([0.0; HEAD], [0.0; HEAD]);
        let scale = 1.0 / (d as f32).sqrt();
        // SAFETY: sizes were checked; each task has columns of a head and a sequence of its own.
        let state = unsafe { state.at(sequence * slot + head * d * d + first) };
        for row in rows.iter().map(|&row| row as usize) {
            if positions[row] == 0 {
                for i in 0..d {
                    // SAFETY: as above; `n` columns of the `d` rows.
                    unsafe { std::slice::from_raw_parts_mut(state.add(i * d), n).fill(0.0) };
                }
            }
            let x = &input[row * width..][..width];
            normalized(&x[key_head * d..][..d], epsilon, scale, &mut q);
            normalized(&x[key_width + key_head * d..][..d], epsilon, 1.0, &mut k);
            let at = row * values + head;
            let step = DeltaStep {
                state,
                q: &q,
                k: &k,
                v: x[2 * key_width + head * d + first..].as_ptr(),
                // SAFETY: as above.
                output: unsafe { output.at(at * d + first) },
                decay: (decay[head] * softplus(alpha[at] + dt[head])).exp(),
                beta: 1.0 / (1.0 + (-beta[at]).exp()),
                head_dim: d,
                n,
            };
            dispatch(isa, step);
        }
    });
}

#[cfg(test)]
mod tests {
    use fulmen_core::KeyHeadOrder;

    use super::*;

    /// The output of `m` rows of sequence 1 in chunks, and its state.
    fn run(isa: Isa, heads: DeltaHeads, chunks: &[usize]) -> (Vec<f32>, Vec<f32>) {
        let (pool, m) = (Pool::new(2), chunks.iter().sum::<usize>());
        let (width, values) = (heads.width() as usize, heads.n_v_heads as usize);
        let mut random = fastrand::Rng::with_seed(8);
        let mut draw = |n: usize| (0..n).map(|_| random.f32() * 2.0 - 1.0).collect::<Vec<f32>>();
        let (x, alpha, beta) = (draw(m * width), draw(m * values), draw(m * values));
        let (decay, dt, slot) = (vec![-0.5; values], draw(values), heads.state_width() as usize);
        let (mut state, mut output) = (vec![7.0; 2 * slot], vec![f32::NAN; m * heads.value_width() as usize]);
        let mut first = 0;
        for &rows in chunks {
            let positions: Vec<u32> = (first as u32..(first + rows) as u32).collect();
            let of = |width: usize| first * width..(first + rows) * width;
            let rule = GatedDeltaRule {
                input: &x[of(width)],
                alpha: &alpha[of(values)],
                beta: &beta[of(values)],
                decay: &decay,
                dt: &dt,
                state: &mut state,
                positions: &positions,
                sequences: Some(&vec![1; rows]),
                output: &mut output[of(heads.value_width() as usize)],
                heads,
                epsilon: 1e-6,
            };
            gated_delta_rule(&pool, isa, rule);
            first += rows;
        }
        assert!(state[..slot].iter().all(|x| *x == 7.0), "another slot");
        (output, state.split_off(slot))
    }

    #[test]
    fn a_sequence_in_chunks_is_the_sequence_at_once() {
        let order = KeyHeadOrder::Grouped;
        let heads = DeltaHeads { n_k_heads: 2, n_v_heads: 4, head_dim: 37, order };
        for isa in Isa::available() {
            assert_eq!(run(isa, heads, &[8]), run(isa, heads, &[1, 3, 1, 1, 2]), "{isa}");
        }
    }

    #[test]
    fn a_key_that_was_written_with_beta_1_reads_its_value() {
        let heads = DeltaHeads { n_k_heads: 1, n_v_heads: 1, head_dim: 4, order: KeyHeadOrder::Tiled };
        let (k, v) = ([3.0, 0.0, 4.0, 0.0], [1.0, -2.0, 0.5, 8.0]);
        let (mut state, mut output) = (vec![0.0; 16], vec![0.0; 4]);
        let rule = GatedDeltaRule {
            input: &[k, k, v].concat(),
            alpha: &[0.0],
            beta: &[100.0],
            decay: &[-1.0],
            dt: &[0.0],
            state: &mut state,
            positions: &[0],
            sequences: None,
            output: &mut output,
            heads,
            epsilon: 1e-6,
        };
        gated_delta_rule(&Pool::new(1), Isa::best(), rule);
        // The scale of queries is 1 / √4.
        for (output, v) in output.iter().zip(v) {
            assert!((output - v / 2.0).abs() < 1e-6, "{output} {v}");
        }
        assert!((state[0] - 0.6 * v[0]).abs() < 1e-6 && (state[11] - 0.8 * v[3]).abs() < 1e-6);
        assert_eq!(state[4..8], [0.0; 4]);
    }
}
