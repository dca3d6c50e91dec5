//! Encoding with the importance of values: what equal weights give, how the error shrinks, what is refused.

use fulmen_core::quant::{self, Block};
use fulmen_core::{DType, DTypeError};

const ELEMENTS: usize = 64 * 256;

fn weighted_types() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|dtype| quant::uses_importance(*dtype))
}

fn gaussian(rng: &mut fastrand::Rng) -> f32 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    (radius * (std::f64::consts::TAU * rng.f64()).cos()) as f32
}

/// Named kinds of values.
fn values() -> Vec<(&'static str, Vec<f32>)> {
    type Draw = fn(&mut fastrand::Rng, usize) -> f32;
    let kinds: [(&str, Draw); 7] = [
        ("gaussian", |rng, _| gaussian(rng)),
        ("heavy-tailed", |rng, _| gaussian(rng) / (gaussian(rng).abs() + 0.05)),
        ("weights", |rng, _| gaussian(rng) * 0.02),
        ("constant", |_, _| -0.3),
        ("zero", |_, _| 0.0),
        ("one outlier", |rng, i| if i % 256 == 77 { 40.0 } else { gaussian(rng) }),
        ("tiny", |rng, _| gaussian(rng) * 3e-5),
    ];
    let mut rng = fastrand::Rng::with_seed(3);
    kinds.map(|(name, draw)| (name, (0..ELEMENTS).map(|i| draw(&mut rng, i)).collect())).into()
}

/// Named kinds of importance.
fn importances() -> Vec<(&'static str, Vec<f32>)> {
    type Draw = fn(&mut fastrand::Rng, usize) -> f32;
    let kinds: [(&str, Draw); 6] = [
        ("log-normal", |rng, _| (2.0 * gaussian(rng)).exp()),
        ("few columns", |rng, i| if i % 37 == 5 { 1000.0 * rng.f32() } else { rng.f32() }),
        ("some unused", |rng, _| if rng.bool() { 0.0 } else { rng.f32() }),
        ("unused groups", |rng, i| if i / 32 % 3 == 0 { 0.0 } else { rng.f32() }),
        ("wild", |rng, _| 10f32.powi(rng.i32(-37..38))),
        ("none", |_, _| 0.0),
    ];
    let mut rng = fastrand::Rng::with_seed(7);
    kinds.map(|(name, draw)| (name, (0..ELEMENTS).map(|i| draw(&mut rng, i)).collect())).into()
}

fn plain(dtype: DType, values: &[f32]) -> Vec<f32> {
    let bytes = quant::quantize_to_vec(dtype, values).unwrap();
    quant::dequantize_to_vec(dtype, &bytes, values.len()).unwrap()
}

fn weighted(dtype: DType, values: &[f32], importance: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; dtype.bytes(values.len()).unwrap()];
    quant::quantize_weighted(dtype, values, importance, &mut bytes).unwrap();
    quant::dequantize_to_vec(dtype, &bytes, values.len()).unwrap()
}

/// The weighted squared error of each block.
fn errors(dtype: DType, values: &[f32], importance: &[f32], stored: &[f32]) -> Vec<f64> {
    let block = dtype.block_len();
    let blocks = values.chunks(block).zip(importance.chunks(block)).zip(stored.chunks(block));
    let error = |((values, importance), stored): ((&[f32], &[f32]), &[f32])| -> f64 {
        let mean_square = values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / block as f64;
        let of = |i: usize| {
            let (x, y) = (f64::from(values[i]), f64::from(stored[i]));
            f64::from(importance[i]) * (mean_square + x * x).sqrt() * (x - y).powi(2)
        };
        (0..block).map(of).sum()
    };
    blocks.map(error).collect()
}

#[test]
fn the_weighted_error_of_no_block_is_greater_than_without() {
    for (name, values) in values() {
        for (kind, importance) in importances() {
            for dtype in weighted_types() {
                let ours = errors(dtype, &values, &importance, &weighted(dtype, &values, &importance));
                let plain = errors(dtype, &values, &importance, &plain(dtype, &values));
                for (block, (ours, plain)) in ours.iter().zip(&plain).enumerate() {
                    let what = format!("{dtype}, {name}, {kind}, block {block}");
                    assert!(*ours <= plain * (1.0 + 1e-5) + 1e-40, "{what}: {ours:e}, plain {plain:e}");
                }
            }
        }
    }
}

/// What a layer's result gains: the squared error of the weights times the mean square of their activations,
/// without the factor that the encoder adds.
#[test]
fn skewed_importance_reduces_the_error_of_results() {
    let mut rng = fastrand::Rng::with_seed(21);
    let values: Vec<f32> = (0..ELEMENTS).map(|_| gaussian(&mut rng)).collect();
    let importance: Vec<f32> = (0..ELEMENTS).map(|_| (2.0 * gaussian(&mut rng)).exp()).collect();
    for (dtype, most) in [
        (DType::Q4_0, 0.65),
        (DType::Q4_1, 0.42),
        (DType::Q5_0, 0.6),
        (DType::Q5_1, 0.38),
        (DType::Q2_K, 0.38),
        (DType::Q3_K, 0.53),
        (DType::Q4_K, 0.42),
        (DType::Q5_K, 0.45),
        (DType::Q6_K, 0.46),
        (DType::IQ4_NL, 0.52),
        (DType::IQ4_XS, 0.56),
    ] {
        let error = |stored: Vec<f32>| -> f64 {
            let squares = values.iter().zip(stored).map(|(x, y)| f64::from(x - y).powi(2));
            squares.zip(&importance).map(|(square, importance)| square * f64::from(*importance)).sum()
        };
        let ratio = error(weighted(dtype, &values, &importance)) / error(plain(dtype, &values));
        println!("{dtype:6} {ratio:.3}");
        assert!(ratio < most, "{dtype}: {ratio}");
    }
    assert_eq!(weighted_types().count(), 11);
}

/// Equal weights of any size give the block of the plain encoder, bit for bit.
#[test]
fn equal_weights_give_the_plain_bits() {
    fn check<B: Block<N> + PartialEq + std::fmt::Debug, const N: usize>() {
        for (name, values) in values() {
            for values in values.as_chunks::<N>().0 {
                for weight in [1.0, 0.0, 3.7, 1e-20, 1e30] {
                    assert!(
                        B::encode_weighted(values, &[weight; N]) == B::encode(values),
                        "{name}, {weight}"
                    );
                }
            }
        }
    }
    check::<quant::BlockQ4_0, 32>();
    check::<quant::BlockQ4_1, 32>();
    check::<quant::BlockQ5_0, 32>();
    check::<quant::BlockQ5_1, 32>();
    check::<quant::BlockQ8_0, 32>();
    check::<quant::BlockQ2_K, 256>();
    check::<quant::BlockQ3_K, 256>();
    check::<quant::BlockQ4_K, 256>();
    check::<quant::BlockQ5_K, 256>();
    check::<quant::BlockQ6_K, 256>();
    check::<quant::BlockQ8_K, 256>();
    check::<quant::BlockMXFP4, 32>();
    check::<quant::BlockIQ4_NL, 32>();
    check::<quant::BlockIQ4_XS, 256>();
}

/// Types that have no search, and blocks in which nothing is important, are as without.
#[test]
fn what_cannot_be_weighted_has_the_plain_bits() {
    let (_, values) = values().swap_remove(0);
    for (kind, importance) in importances() {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.can_encode()) {
            if !quant::uses_importance(dtype) || kind == "none" {
                assert_eq!(weighted(dtype, &values, &importance), plain(dtype, &values), "{dtype}, {kind}");
            }
        }
    }
}

#[test]
fn importance_is_checked() {
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.can_encode()) {
        let values = [1.0; 512];
        let mut out = vec![0; dtype.bytes(512).unwrap()];
        for bad in [-1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut importance = [1.0; 512];
            importance[300] = bad;
            importance[400] = bad;
            let refused = quant::quantize_weighted(dtype, &values, &importance, &mut out);
            assert_eq!(refused, Err(DTypeError::Importance { dtype, index: 300 }));
        }
        let refused = quant::quantize_weighted(dtype, &values, &[1.0; 511], &mut out);
        assert!(matches!(refused, Err(DTypeError::Length { elements: 512, got: 2044, .. })), "{refused:?}");
        let refused = quant::quantize_weighted(dtype, &values, &[1.0; 512], &mut out[1..]);
        assert!(matches!(refused, Err(DTypeError::Length { call: "quantize", .. })), "{refused:?}");
        let refused = quant::quantize_weighted(dtype, &[f32::NAN; 512], &[1.0; 512], &mut out);
        assert!(matches!(refused, Err(DTypeError::NotFinite { index: 0, .. })), "{refused:?}");
    }
}
