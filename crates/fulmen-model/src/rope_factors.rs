//! The frequency factors of Llama 3's RoPE scaling.

/// The numbers of the scaling, as Llama 3's configuration names them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Llama3Scaling {
    pub(crate) factor: f64,
    pub(crate) low_freq_factor: f64,
    pub(crate) high_freq_factor: f64,
    /// The context that the model was first trained for.
    pub(crate) original_context: f64,
}

impl Llama3Scaling {
    /// What divides each pair's frequency: 1 for short waves, the whole factor for long ones, between them a mix.
    pub(crate) fn factors(self, base: f64, head_size: usize) -> Vec<f32> {
        let (low, high) = (self.low_freq_factor, self.high_freq_factor);
        let one = |pair: usize| {
            let exponent = 2.0 * pair as f64 / head_size as f64;
            let wave = std::f64::consts::TAU * base.powf(exponent);
            if wave < self.original_context / high {
                1.0
            } else if wave > self.original_context / low {
                self.factor
            } else {
                let smooth = (self.original_context / wave - low) / (high - low);
                1.0 / ((1.0 - smooth) / self.factor + smooth)
            }
        };
        (0..head_size / 2).map(|pair| one(pair) as f32).collect()
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
