//! Depthwise causal convolution with a state, then SiLU: SIMD over channels, in parallel over sequences and
//! blocks of channels.
//!
//! A vector of channels goes through all rows of its sequence while the last inputs stay in registers. Bound
//! by memory bandwidth: each input is read once and each output written once.

use fulmen_core::MAX_CONV_TAPS;

use super::elementwise::silu_of;
use super::parallel::SharedPtr;
use super::sequence_rows::SequenceRows;
use crate::{
    isa::Isa,
    lanes,
    simd::{Kernel, LaneIo, Simd, dispatch},
    threads::Pool,
};

/// Channels of a task.
const BLOCK: usize = 128;
const TAPS: usize = MAX_CONV_TAPS as usize;

/// The operands of a convolution; see [`CausalConvCall`](fulmen_core::CausalConvCall).
pub(crate) struct CausalConv<'a> {
    pub(crate) input: &'a [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) state: &'a mut [f32],
    pub(crate) positions: &'a [u32],
    pub(crate) sequences: Option<&'a [u32]>,
    pub(crate) output: &'a mut [f32],
    pub(crate) channels: usize,
    pub(crate) taps: usize,
}

/// A block of channels of one sequence.
struct ConvBlock<'a> {
    /// `[taps][BLOCK]`.
    weight: &'a [f32],
    rows: &'a [u32],
    positions: &'a [u32],
    /// The first channel of the block in row 0.
    input: *const f32,
    output: *mut f32,
    /// The first channel of the block in the oldest input.
    state: *mut f32,
    channels: usize,
    taps: usize,
    n: usize,
}

impl Kernel for ConvBlock<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (past, channels) = (self.taps - 1, self.channels);
        lanes!(S, self.n, |at, io| {
            let mut window = [s.splat(0.0); TAPS];
            let mut weight = [s.splat(0.0); TAPS];
            for (tap, weight) in weight.iter_mut().enumerate().take(self.taps) {
                // SAFETY: `io` covers lanes below `n`, which a block has of each tap.
                *weight = unsafe { io.load(s, self.weight.as_ptr().add(tap * BLOCK + at), 0.0) };
            }
            for (old, input) in window.iter_mut().enumerate().take(past) {
                // SAFETY: the slot has `taps - 1` rows of all channels.
                *input = unsafe { io.load(s, self.state.add(old * channels + at), 0.0) };
            }
            for &row in self.rows {
                if self.positions[row as usize] == 0 {
                    window = [s.splat(0.0); TAPS];
                }
                let first = row as usize * channels + at;
                // SAFETY: rows are those of the input and of the output.
                window[past] = unsafe { io.load(s, self.input.add(first), 0.0) };
                let mut sum = s.mul(weight[0], window[0]);
                for tap in 1..self.taps {
                    sum = s.fma(weight[tap], window[tap], sum);
                }
                // SAFETY: as above; each block writes its own channels.
                unsafe { io.store(s, self.output.add(first), silu_of(s, sum)) };
                for old in 0..past {
                    window[old] = window[old + 1];
                }
            }
            for (old, input) in window.iter().enumerate().take(past) {
                // SAFETY: as for the load.
                unsafe { io.store(s, self.state.add(old * channels + at), *input) };
            }
        });
    }
}

/// Runs the rows of every sequence in their order.
///
/// # Panics
/// If the sizes do not fit each other, or a sequence is not below the slots of the state.
pub(crate) fn causal_conv(pool: &Pool, isa: Isa, conv: CausalConv<'_>) {
    let CausalConv { input, weight, state, positions, sequences, output, channels, taps } = conv;
    let (m, slot) = (positions.len(), (taps - 1) * channels);
    assert!(input.len() == m * channels && output.len() == input.len(), "causal_conv: wrong rows");
    assert!((2..=TAPS).contains(&taps) && weight.len() == channels * taps, "causal_conv: wrong weight");
    let groups = SequenceRows::new(sequences, m);
    let slots = state.len() / slot;
    assert!((0..groups.len()).all(|at| groups.get(at).0 < slots), "causal_conv: no such slot");
    let (state, output) = (SharedPtr::new(state.as_mut_ptr()), SharedPtr::new(output.as_mut_ptr()));
    let input = SharedPtr::read(input.as_ptr());
    let blocks = channels.div_ceil(BLOCK);
    pool.run(groups.len() * blocks, &|task| {
        let ((sequence, rows), first) = (groups.get(task / blocks), task % blocks * BLOCK);
        let n = BLOCK.min(channels - first);
        let mut transposed = [0.0; TAPS * BLOCK];
        for (channel, taps) in weight[first * taps..][..n * taps].chunks(taps).enumerate() {
            taps.iter().enumerate().for_each(|(tap, x)| transposed[tap * BLOCK + channel] = *x);
        }
        // SAFETY: sizes were checked, and each task has channels of a sequence of its own.
        let (input, output, state) =
            unsafe { (input.at(first), output.at(first), state.at(sequence * slot + first)) };
        let weight = &transposed[..];
        dispatch(isa, ConvBlock { weight, rows, positions, input, output, state, channels, taps, n });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_in_chunks_is_the_sequence_at_once() {
        let (pool, channels, taps, m) = (Pool::new(2), 131, 4, 9);
        let mut random = fastrand::Rng::with_seed(5);
        let mut draw = |n: usize| (0..n).map(|_| random.f32() - 0.5).collect::<Vec<f32>>();
        let (x, weight) = (draw(m * channels), draw(channels * taps));
        for isa in Isa::available() {
            let run = |chunks: &[usize]| {
                // The state of an earlier sequence, which position 0 drops.
                let mut state = vec![7.0; 2 * (taps - 1) * channels];
                let (mut output, mut first) = (vec![f32::NAN; m * channels], 0);
                for &rows in chunks {
                    let positions: Vec<u32> = (first as u32..(first + rows) as u32).collect();
                    let range = first * channels..(first + rows) * channels;
                    let conv = CausalConv {
                        input: &x[range.clone()],
                        weight: &weight,
                        state: &mut state,
                        positions: &positions,
                        sequences: Some(&vec![1; rows]),
                        output: &mut output[range],
                        channels,
                        taps,
                    };
                    causal_conv(&pool, isa, conv);
                    first += rows;
                }
                assert!(state[..(taps - 1) * channels].iter().all(|x| *x == 7.0), "another slot");
                assert_eq!(state[(taps - 1) * channels..], x[(m - taps + 1) * channels..]);
                output
            };
            let whole = run(&[m]);
            assert_eq!(whole, run(&[1, 2, 1, 5]), "{isa}");
            for (at, got) in whole.iter().enumerate() {
                let (row, channel) = (at / channels, at % channels);
                let sum: f64 = (0..taps)
                    .filter(|tap| row + tap + 1 >= taps)
                    .map(|tap| {
                        let x = x[(row + tap + 1 - taps) * channels + channel];
                        f64::from(weight[channel * taps + tap]) * f64::from(x)
                    })
                    .sum();
                let expected = sum / (1.0 + (-sum).exp());
                assert!((f64::from(*got) - expected).abs() < 1e-6, "{isa} {at}: {got} {expected}");
            }
        }
    }
}
