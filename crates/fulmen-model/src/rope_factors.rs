//! The frequency factors of Llama 3's RoPE scaling.

/// The scaling parameters, named as in Llama 3's `config.json`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Llama3Scaling {
    pub(crate) factor: f64,
    pub(crate) low_freq_factor: f64,
    pub(crate) high_freq_factor: f64,
    /// The context length of the original training.
    pub(crate) original_context: f64,
}

impl Llama3Scaling {
    /// The divisor of each pair's frequency: 1 for short wavelengths, `factor` for long ones, interpolated
    /// between.
    pub(crate) fn factors(self, base: f64, head_size: usize) -> Vec<f32> {
        let (low, high) = (self.low_freq_factor, self.high_freq_factor);
        let divisor = |pair: usize| {
            let exponent = 2.0 * pair as f64 / head_size as f64;
            let wavelength = std::f64::consts::TAU * base.powf(exponent);
            if wavelength < self.original_context / high {
                1.0
            } else if wavelength > self.original_context / low {
                self.factor
            } else {
                let smooth = (self.original_context / wavelength - low) / (high - low);
                1.0 / ((1.0 - smooth) / self.factor + smooth)
            }
        };
        (0..head_size / 2).map(|pair| divisor(pair) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_go_from_one_to_the_factor() {
        let scaling = Llama3Scaling {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192.0,
        };
        let factors = scaling.factors(5e5, 64);
        assert_eq!((factors.len(), factors[0], factors[31]), (32, 1.0, 32.0));
        assert!(factors.is_sorted());
        assert!(factors.iter().any(|&x| x > 1.0 && x < 32.0));
    }
}
