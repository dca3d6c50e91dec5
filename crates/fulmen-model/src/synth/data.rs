//! Random weights that preserve the scale of activations; the same seed produces the same weights on every
//! machine.

use fulmen_core::{DTypeError, quant};

use super::ModelShape;
use crate::rope_factors::Llama3Scaling;
use crate::source::TensorInfo;

/// Large tensors are assembled from randomly chosen groups of this many elements.
const GROUP: usize = 256;
/// Number of distinct groups. Tensors with fewer are drawn element by element.
const POOL: usize = 1024;

/// SplitMix64: small, and the same in every version of this crate.
pub(super) struct Random(u64);

impl Random {
    /// An independent sequence for each name and seed.
    pub(super) fn new(name: &str, seed: u64) -> Random {
        // FNV-1a.
        let fold = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Random(name.bytes().fold(0xcbf2_9ce4_8422_2325, fold) ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Approximately normal, with mean 0 and standard deviation 1: a sum of eight uniform numbers. The sum is
    /// an integer, so the result does not depend on the math library.
    fn normal(&mut self) -> f32 {
        // Adds four 16-bit numbers in each 32-bit lane; the sums cannot overflow into the next lane.
        const EVEN: u64 = 0x0000_ffff_0000_ffff;
        let (a, b) = (self.next(), self.next());
        let pairs = (a & EVEN) + (a >> 16 & EVEN) + (b & EVEN) + (b >> 16 & EVEN);
        let sum = (pairs & 0xffff_ffff) + (pairs >> 32);
        // Standard deviation of one number: 65536 / sqrt(12); of eight: times sqrt(8).
        (sum as f32 - 262_140.0) * (1.0 / 53_510.13)
    }

    fn fill(&mut self, out: &mut [f32], mean: f32, deviation: f32) {
        out.iter_mut().for_each(|x| *x = mean + deviation * self.normal());
    }
}

/// The data of one tensor.
pub(super) fn data(shape: &ModelShape, tensor: &TensorInfo, seed: u64) -> Result<Vec<u8>, DTypeError> {
    let (name, dtype, elements) = (tensor.name(), tensor.dtype(), tensor.elements());
    let mut random = Random::new(name, seed);
    if name == "rope_freqs.weight" && shape.is_gemma4() {
        return quant::quantize_to_vec(dtype, &shape.proportional_factors());
    }
    if name == "rope_freqs.weight" {
        return quant::quantize_to_vec(dtype, &rope_factors(shape));
    }
    let (mean, deviation) = match name {
        "rope_factors_long.weight" => (4.0, 0.5),
        _ if name.ends_with(".bias") => (0.0, 0.2),
        // Logits beside those of keys.
        _ if name.ends_with(".attn_sinks.weight") => (0.0, 1.0),
        // Rates of decay.
        _ if name.ends_with(".ssm_a") => (-1.0, 0.2),
        // Their product is the scale of the attention scores, which has no other.
        _ if shape.is_gemma4()
            && (name.ends_with("attn_q_norm.weight") || name.ends_with("attn_k_norm.weight")) =>
        {
            let mean = (tensor.width() as f32).sqrt().sqrt().recip();
            (mean, 0.1 * mean)
        }
        // The router's norm, which is divided by the root of the width.
        _ if name.ends_with(".ffn_gate_inp.scale") => ((tensor.width() as f32).sqrt(), 1.0),
        _ if name.ends_with(".ffn_gate_inp_shexp.weight") => (0.0, 1.0 / (tensor.width() as f32).sqrt()),
        _ if tensor.dims().len() == 1 => (1.0, 0.1),
        _ => (0.0, 1.0 / (tensor.width() as f32).sqrt()),
    };
    // Large tensors reuse a pool of quantized groups, because quantizing every element would take minutes.
    // Rows of only one or two groups would repeat, so those tensors are quantized in full.
    let drawn = if tensor.width() > 2 * GROUP { elements.min(GROUP * POOL) } else { elements };
    let mut values = vec![0.0; drawn];
    random.fill(&mut values, mean, deviation);
    let pool = quant::quantize_to_vec(dtype, &values)?;
    if drawn == elements {
        return Ok(pool);
    }
    let group = dtype.bytes(GROUP)?;
    let mut out = Vec::with_capacity(tensor.bytes());
    while out.len() < tensor.bytes() {
        let at = usize::try_from(random.next() % POOL as u64).unwrap_or(0) * group;
        let take = group.min(tensor.bytes() - out.len());
        out.extend_from_slice(&pool[at..at + take]);
    }
    Ok(out)
}

fn rope_factors(shape: &ModelShape) -> Vec<f32> {
    let factor = f64::from(shape.rope_factor.unwrap_or(1.0));
    let scaling =
        Llama3Scaling { factor, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192.0 };
    scaling.factors(f64::from(shape.rope_base), shape.head_size)
}

#[cfg(test)]
mod tests {
    use fulmen_core::DType;

    use super::*;

    #[test]
    fn numbers_are_approximately_normal() {
        let mut random = Random::new("x", 1);
        let mut values = vec![0.0; 100_000];
        random.fill(&mut values, 0.0, 1.0);
        let n = values.len() as f64;
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let variance = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        let within = values.iter().filter(|x| x.abs() < 1.0).count() as f64 / n;
        assert!((within - 0.683).abs() < 0.02, "{within}");
    }

    #[test]
    fn large_tensors_have_distinct_rows_and_the_right_deviation() {
        let shape = ModelShape::preset("tiny-qwen3").unwrap();
        for dtype in [DType::Q4_K, DType::Q8_0, DType::F16] {
            let tensor = TensorInfo::new("token_embd.weight", &[1024, 600], dtype).unwrap();
            let bytes = data(&shape, &tensor, 7).unwrap();
            assert_eq!(bytes.len(), tensor.bytes());
            let rows: std::collections::HashSet<&[u8]> = bytes.chunks(tensor.bytes() / 600).collect();
            assert_eq!(rows.len(), 600);
            let values = quant::dequantize_to_vec(dtype, &bytes, tensor.elements()).unwrap();
            let square: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / values.len() as f64;
            assert!((square * 1024.0 - 1.0).abs() < 0.02, "{dtype}: {square}");
        }
    }
}
