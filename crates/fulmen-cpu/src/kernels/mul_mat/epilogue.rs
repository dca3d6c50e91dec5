//! The epilogue of a matmul: bias, residual and SwiGLU on the way to the output.

/// A residual that is added to the result.
#[derive(Clone, Copy, Debug, Default)]
pub enum Residual<'a> {
    /// None.
    #[default]
    None,
    /// The previous contents of the output.
    InPlace,
    /// Rows of `n` values, `stride` values apart.
    Rows {
        /// The values.
        data: &'a [f32],
        /// Values from one row to the next.
        stride: usize,
    },
}

/// What is added to each element of the result.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// One value per column.
    pub bias: Option<&'a [f32]>,
    /// One value per element.
    pub residual: Residual<'a>,
}

impl Epilogue<'_> {
    pub(super) fn check(&self, m: usize, n: usize) {
        if let Some(bias) = self.bias {
            assert_eq!(bias.len(), n, "mul_mat: {} biases for {n} columns", bias.len());
        }
        if let Residual::Rows { data, stride } = self.residual
            && m > 0
        {
            let need = stride.checked_mul(m - 1).and_then(|v| v.checked_add(n));
            let fits = need.is_some_and(|need| need <= data.len());
            assert!(fits, "mul_mat: a residual of {m} x {n} does not fit {} values", data.len());
        }
    }

    /// Writes the columns of a row from `column` on.
    #[inline]
    pub(super) fn write(&self, row: usize, column: usize, values: &[f32], out: &mut [f32]) {
        let n = values.len();
        let out = &mut out[..n];
        match self.residual {
            Residual::None => out.copy_from_slice(values),
            Residual::InPlace => {
                for (out, v) in out.iter_mut().zip(values) {
                    *out += v;
                }
            }
            Residual::Rows { data, stride } => {
                let residual = &data[row * stride + column..][..n];
                for ((out, v), r) in out.iter_mut().zip(values).zip(residual) {
                    *out = v + r;
                }
            }
        }
        if let Some(bias) = self.bias {
            for (out, b) in out.iter_mut().zip(&bias[column..][..n]) {
                *out += b;
            }
        }
    }
}

/// `gate = silu(gate) * up`.
#[inline(always)]
pub(super) fn silu_mul(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        let x = *gate;
        *gate = x / (1.0 + exp(-x)) * up;
    }
}

/// `gate = gelu(gate) * up`, with GELU's tanh approximation: `0.5 (1 + tanh(y)) = 1 / (1 + e^(-2 y))`.
#[inline(always)]
pub(super) fn gelu_mul(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        let x = *gate;
        *gate = x / (1.0 + exp(-x * (1.595_769 + 0.071_354_814 * x * x))) * up;
    }
}

/// `e^x` to about two units in the last place, without branches so that loops over it vectorize. NaN stays
/// NaN; above 88 the result stays finite (silu is 0 there), below -88 it is a tiny number instead of 0.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    // `clamp` keeps NaN.
    let x = x.clamp(-88.0, 88.0);
    // x = n ln 2 + r, with ln 2 in two parts so that r is exact enough.
    let shifted = x * std::f32::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let e = p * r * r + r + 1.0;
    // 2^n by its exponent bits: the low bits of `shifted` are n.
    e * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gelu_is_accurate() {
        for i in -20_000..=20_000 {
            let x = i as f32 * 0.0006;
            let mut got = [x];
            gelu_mul(&mut got, &[1.0]);
            let x = f64::from(x);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            let want = 0.5 * x * (1.0 + inner.tanh());
            let error = (f64::from(got[0]) - want).abs();
            assert!(error <= 2e-6 * want.abs() + 1e-9, "gelu({x}) = {}, should be {want}", got[0]);
        }
        let mut special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e20, -1e20];
        gelu_mul(&mut special, &[1.0; 5]);
        assert!(special[0].is_nan() && special[1] == f32::INFINITY && special[3] == 1e20);
    }

    #[test]
    fn silu_is_accurate() {
        for i in -20_000..=20_000 {
            let x = i as f32 * 0.006;
            let mut got = [x];
            silu_mul(&mut got, &[1.0]);
            let x = f64::from(x);
            let want = x / (1.0 + (-x).exp());
            let error = (f64::from(got[0]) - want).abs();
            assert!(error <= 4e-7 * want.abs() + 1e-35, "silu({x}) = {}, should be {want}", got[0]);
        }
        let mut special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        silu_mul(&mut special, &[1.0; 3]);
        assert!(special[0].is_nan() && special[1] == f32::INFINITY);
    }
}
