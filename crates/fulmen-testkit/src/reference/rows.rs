//! Element-wise ops and ops on rows.

use fulmen_core::{RopePairing, RopeSpec};

/// `1 / (1 + e^-x)`.
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x · sigmoid(x)`, with its limit 0 at -∞.
pub fn silu(x: f64) -> f64 {
    if x == f64::NEG_INFINITY { 0.0 } else { x * sigmoid(x) }
}

/// `x · Φ(x)`, with its limit 0 at -∞. Φ by the complementary error function, which keeps its digits far
/// below 0.
pub fn gelu(x: f64) -> f64 {
    if x == f64::NEG_INFINITY { 0.0 } else { x * 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2) }
}

/// GELU by its tanh approximation, `x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))`, with its limit 0 at -∞. The
/// tanh is taken by the logistic function, `(1 + tanh(u)) / 2 = sigmoid(2u)`, which keeps its digits far
/// below 0.
pub fn gelu_tanh(x: f64) -> f64 {
    if x == f64::NEG_INFINITY {
        return 0.0;
    }
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    x * sigmoid(2.0 * u)
}

/// `max(x, 0)²`. NaN stays NaN, -∞ gives 0.
pub fn relu2(x: f64) -> f64 {
    if x < 0.0 { 0.0 } else { x * x }
}

/// `cap · tanh(x / cap)`. ±cap at the infinities, NaN stays NaN, ±0 stays itself.
pub fn soft_cap(x: f64, cap: f64) -> f64 {
    cap * (x / cap).tanh()
}

pub(super) fn zip(a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect()
}

/// `x · sigmoid(gate)`, with a gate for each element or for several neighbors.
pub(super) fn sigmoid_gate(x: &[f64], gate: &[f64]) -> Vec<f64> {
    let span = (x.len() / gate.len().max(1)).max(1);
    x.iter().enumerate().map(|(at, x)| x * sigmoid(gate[at / span])).collect()
}

/// RMS norm over rows as long as the gain.
pub(super) fn rms_norm(x: &[f64], gamma: &[f64], epsilon: f32) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks(gamma.len().max(1)) {
        let mean_square = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        let factor = 1.0 / (mean_square + f64::from(epsilon)).sqrt();
        out.extend(row.iter().zip(gamma).map(|(x, gamma)| x * factor * gamma));
    }
    out
}

/// The means of the squares of each row of both operands, beside each other.
pub(super) fn mean_squares(x: [&[f64]; 2], widths: [usize; 2]) -> Vec<f64> {
    let mean = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
    let [a, b] = x;
    a.chunks(widths[0]).zip(b.chunks(widths[1])).flat_map(|(a, b)| [mean(a), mean(b)]).collect()
}

/// RMS norm over rows as long as the gain, of which the mean squares are known.
pub(super) fn rms_scale(
    x: &[f64],
    means: impl Iterator<Item = f64>,
    gamma: &[f64],
    epsilon: f32,
) -> Vec<f64> {
    let rows = x.chunks(gamma.len().max(1)).zip(means);
    let scaled = |(row, mean): (&[f64], f64)| -> Vec<f64> {
        let factor = 1.0 / (mean + f64::from(epsilon)).sqrt();
        row.iter().zip(gamma).map(|(x, gamma)| x * factor * gamma).collect()
    };
    rows.flat_map(scaled).collect()
}

/// Softmax in place. A row of only -∞ is fully masked and gives zeros.
pub(super) fn softmax(row: &mut [f64]) {
    if row.iter().all(|&x| x == f64::NEG_INFINITY) {
        row.fill(0.0);
        return;
    }
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter_mut().for_each(|x| *x = (*x - max).exp());
    let sum: f64 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
}

/// RoPE: rotates the heads of each row by the row's position.
pub(super) fn rope(
    x: &mut [f64],
    positions: &[u32],
    factors: Option<&[f64]>,
    head_dim: usize,
    spec: &RopeSpec,
) {
    let n_rot = spec.n_rot as usize;
    if positions.is_empty() {
        return;
    }
    let width = x.len() / positions.len();
    for (row, &position) in x.chunks_mut(width.max(1)).zip(positions) {
        for head in row.chunks_mut(head_dim) {
            for pair in 0..n_rot / 2 {
                let frequency = f64::from(spec.base).powf(-2.0 * pair as f64 / n_rot as f64);
                let factor = factors.map_or(1.0, |factors| factors[pair]);
                let angle = f64::from(position) * f64::from(spec.freq_scale) * frequency / factor;
                let (sin, cos) = angle.sin_cos();
                let (i, j) = match spec.pairing {
                    RopePairing::Interleaved => (2 * pair, 2 * pair + 1),
                    RopePairing::NeoX => (pair, pair + n_rot / 2),
                };
                let (a, b) = (head[i], head[j]);
                head[i] = (a * cos - b * sin) * f64::from(spec.magnitude);
                head[j] = (a * sin + b * cos) * f64::from(spec.magnitude);
            }
        }
    }
}
