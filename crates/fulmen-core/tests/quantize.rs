//! Encoding: its error against a plain min/max quantizer, its limits, and what it refuses.

use fulmen_core::quant::{self, Block, Decode};
use fulmen_core::{DType, DTypeError};
use half::f16;

const ELEMENTS: usize = 64 * 256;

fn stored_types() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|dtype| dtype.can_encode())
}

fn gaussian(rng: &mut fastrand::Rng) -> f32 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    (radius * (std::f64::consts::TAU * rng.f64()).cos()) as f32
}

/// Named data of many kinds.
fn data() -> Vec<(&'static str, Vec<f32>)> {
    type Draw = fn(&mut fastrand::Rng, usize) -> f32;
    let kinds: [(&str, Draw); 11] = [
        ("gaussian", |rng, _| gaussian(rng)),
        ("uniform", |rng, _| rng.f32() * 2.0 - 1.0),
        ("heavy-tailed", |rng, _| gaussian(rng) / (gaussian(rng).abs() + 0.05)),
        ("weights", |rng, _| gaussian(rng) * 0.02),
        ("constant", |_, _| -0.3),
        ("constant per block", |_, i| (i / 256) as f32 * 0.37 - 5.1),
        ("zero", |_, _| 0.0),
        ("one outlier", |rng, i| if i % 256 == 77 { 40.0 } else { gaussian(rng) }),
        ("far from zero", |rng, _| 3.0 + gaussian(rng) * 0.1),
        ("non-negative", |rng, _| gaussian(rng).max(0.0)),
        ("tiny", |rng, _| gaussian(rng) * 3e-5),
    ];
    let mut rng = fastrand::Rng::with_seed(3);
    kinds.map(|(name, draw)| (name, (0..ELEMENTS).map(|i| draw(&mut rng, i)).collect())).into()
}

fn round_trip(dtype: DType, values: &[f32]) -> Vec<f32> {
    let bytes = quant::quantize_to_vec(dtype, values).unwrap();
    quant::dequantize_to_vec(dtype, &bytes, values.len()).unwrap()
}

/// The sum of squared differences.
fn error(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum()
}

/// Squared error over squared values.
fn nmse(values: &[f32], stored: &[f32]) -> f64 {
    error(values, stored) / error(values, &vec![0.0; values.len()])
}

fn rounded(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

fn divided(x: f32, by: f32) -> f32 {
    if by == 0.0 { 0.0 } else { x / by }
}

/// The plain way: scales and minima that just span each group, rounded as the format stores them, and the
/// quants nearest to the values.
fn plain_quantizer(dtype: DType, values: &[f32]) -> Vec<f32> {
    match dtype {
        DType::F32 => values.to_vec(),
        DType::F16 => values.iter().map(|x| rounded(*x)).collect(),
        DType::BF16 => values.iter().map(|x| half::bf16::from_f32(*x).to_f32()).collect(),
        DType::U32 => unreachable!(),
        DType::Q4_0 => plain_scaled(values, 32, 8.0, None),
        DType::Q5_0 => plain_scaled(values, 32, 16.0, None),
        DType::Q3_K => plain_scaled(values, 16, 4.0, Some(32.0)),
        DType::Q6_K => plain_scaled(values, 16, 32.0, Some(128.0)),
        DType::Q8_0 => plain_bytes(values, 32, rounded),
        DType::Q8_K => plain_bytes(values, 256, |d| d),
        DType::Q4_1 => plain_above(values, 32, 15.0, None),
        DType::Q5_1 => plain_above(values, 32, 31.0, None),
        DType::Q2_K => plain_above(values, 16, 3.0, Some(15.0)),
        DType::Q4_K => plain_above(values, 32, 15.0, Some(63.0)),
        DType::Q5_K => plain_above(values, 32, 31.0, Some(63.0)),
        DType::MXFP4 => plain_mxfp4(values),
        DType::IQ4_NL => plain_iq4(values, None),
        DType::IQ4_XS => plain_iq4(values, Some(32.0)),
        DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S | DType::IQ3_XXS | DType::IQ3_S => unreachable!(),
    }
}

/// The value of a table nearest to `x`.
fn nearest_of(table: &[i8; 16], x: f32) -> f32 {
    let distance = |value: f32| (f64::from(value) - f64::from(x)).abs();
    let values = table.iter().map(|value| f32::from(*value));
    values.min_by(|a, b| distance(*a).total_cmp(&distance(*b))).unwrap()
}

/// The scale by which the peak is from 4 to 8 times a power of two, as the specification has it.
fn plain_mxfp4(values: &[f32]) -> Vec<f32> {
    let encode = |block: &[f32]| {
        let peak = peak(block).abs();
        let scale = if peak == 0.0 { 0.0 } else { (peak.log2().floor() - 3.0).exp2() };
        block
            .iter()
            .map(|x| scale * nearest_of(&quant::MXFP4_VALUES, divided(*x, scale)))
            .collect::<Vec<f32>>()
    };
    values.chunks(32).flat_map(encode).collect()
}

fn plain_iq4(values: &[f32], steps: Option<f32>) -> Vec<f32> {
    let mut out = Vec::new();
    for block in values.chunks(256) {
        let mut scales: Vec<f32> = block.chunks(32).map(|x| peak(x) / -127.0).collect();
        match steps {
            None => scales.iter_mut().for_each(|scale| *scale = rounded(*scale)),
            Some(s) => {
                let d = rounded(peak(&scales) / -s);
                scales
                    .iter_mut()
                    .for_each(|scale| *scale = d * divided(*scale, d).round().clamp(-s, s - 1.0));
            }
        }
        for (group, scale) in block.chunks(32).zip(scales) {
            out.extend(group.iter().map(|x| scale * nearest_of(&quant::IQ4_VALUES, divided(*x, scale))));
        }
    }
    out
}

fn plain_bytes(values: &[f32], block: usize, store: fn(f32) -> f32) -> Vec<f32> {
    let encode = |block: &[f32]| {
        let d = store(block.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 127.0);
        block.iter().map(|x| d * divided(*x, d).round().clamp(-127.0, 127.0)).collect::<Vec<f32>>()
    };
    values.chunks(block).flat_map(encode).collect()
}

/// The value of the greatest magnitude.
fn peak(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |peak: f32, x| if x.abs() > peak.abs() { *x } else { peak })
}

fn plain_scaled(values: &[f32], group: usize, n: f32, steps: Option<f32>) -> Vec<f32> {
    let mut out = Vec::new();
    for block in values.chunks(256) {
        let mut scales: Vec<f32> = block.chunks(group).map(|x| peak(x) / -n).collect();
        match steps {
            None => scales.iter_mut().for_each(|scale| *scale = rounded(*scale)),
            Some(s) => {
                let d = rounded(peak(&scales) / -s);
                scales
                    .iter_mut()
                    .for_each(|scale| *scale = d * divided(*scale, d).round().clamp(-s, s - 1.0));
            }
        }
        for (group, scale) in block.chunks(group).zip(scales) {
            out.extend(group.iter().map(|x| scale * divided(*x, scale).round().clamp(-n, n - 1.0)));
        }
    }
    out
}

fn plain_above(values: &[f32], group: usize, top: f32, steps: Option<f32>) -> Vec<f32> {
    let mut out = Vec::new();
    for block in values.chunks(256) {
        let ends = |x: &[f32]| {
            let least = x.iter().copied().fold(f32::INFINITY, f32::min);
            let least = if steps.is_some() { least.min(0.0) } else { least };
            (least, x.iter().copied().fold(least, f32::max))
        };
        let mut grids: Vec<(f32, f32)> =
            block.chunks(group).map(ends).map(|(least, most)| ((most - least) / top, least)).collect();
        match steps {
            None => grids.iter_mut().for_each(|grid| *grid = (rounded(grid.0), rounded(grid.1))),
            Some(s) => {
                let d = rounded(grids.iter().fold(0.0, |most: f32, grid| most.max(grid.0)) / s);
                let dmin = rounded(grids.iter().fold(0.0, |most: f32, grid| most.max(-grid.1)) / s);
                let store = |x: f32, unit: f32| unit * divided(x, unit).round().min(s);
                grids.iter_mut().for_each(|grid| *grid = (store(grid.0, d), -store(-grid.1, dmin)));
            }
        }
        for (group, (scale, min)) in block.chunks(group).zip(grids) {
            out.extend(group.iter().map(|x| scale * divided(x - min, scale).round().clamp(0.0, top) + min));
        }
    }
    out
}

#[test]
fn never_worse_than_the_plain_quantizer() {
    for (name, values) in data() {
        for dtype in stored_types() {
            let ours = error(&values, &round_trip(dtype, &values));
            let plain = error(&values, &plain_quantizer(dtype, &values));
            assert!(ours <= plain * (1.0 + 1e-6), "{dtype}, {name}: {ours:e}, plain {plain:e}");
        }
    }
}

/// The table of the module's documentation, and how much less than the plain quantizer's the error must be.
#[test]
fn errors_are_as_documented() {
    let table = [
        (DType::F16, 4.3e-8, 1.0),
        (DType::BF16, 2.8e-6, 1.0),
        (DType::Q4_0, 6.5e-3, 0.9),
        (DType::Q4_1, 4.8e-3, 0.82),
        (DType::Q5_0, 1.6e-3, 0.9),
        (DType::Q5_1, 1.14e-3, 0.82),
        (DType::Q8_0, 2.9e-5, 1.0),
        (DType::Q2_K, 6.7e-2, 0.7),
        (DType::Q3_K, 2.06e-2, 0.87),
        (DType::Q4_K, 4.9e-3, 0.82),
        (DType::Q5_K, 1.21e-3, 0.85),
        (DType::Q6_K, 2.9e-4, 0.85),
        (DType::Q8_K, 4.8e-5, 1.0),
        (DType::MXFP4, 1.24e-2, 0.95),
        (DType::IQ4_NL, 5.6e-3, 0.9),
        (DType::IQ4_XS, 5.6e-3, 0.9),
    ];
    let mut rng = fastrand::Rng::with_seed(5);
    let values: Vec<f32> = (0..1 << 18).map(|_| gaussian(&mut rng)).collect();
    for (dtype, documented, against_plain) in table {
        let ours = nmse(&values, &round_trip(dtype, &values));
        let plain = nmse(&values, &plain_quantizer(dtype, &values));
        println!("{dtype:5} {ours:.3e}, plain {plain:.3e}, ratio {:.3}", ours / plain);
        assert!((ours / documented - 1.0).abs() < 0.03, "{dtype}: {ours:e}, documented {documented:e}");
        assert!(ours <= plain * against_plain * (1.0 + 1e-6), "{dtype}: {ours:e}, plain {plain:e}");
    }
}

/// Values that a format can express come back almost as they were: the second encoding adds little to the
/// error of the first.
#[test]
fn encoding_again_loses_almost_nothing() {
    for (name, values) in data() {
        for dtype in stored_types() {
            let once = round_trip(dtype, &values);
            let twice = round_trip(dtype, &once);
            let (first, second) = (error(&values, &once), error(&once, &twice));
            let floor = error(&once, &vec![0.0; once.len()]) * 1e-6;
            assert!(second <= first * 0.1 + floor, "{dtype}, {name}: {second:e} after {first:e}");
        }
    }
}

#[test]
fn values_that_are_not_finite_are_refused() {
    for dtype in stored_types() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 512];
            values[300] = bad;
            values[400] = bad;
            let refused = DTypeError::NotFinite { call: "quantize", dtype, index: 300 };
            assert_eq!(quant::quantize_to_vec(dtype, &values), Err(refused));
        }
    }
}

#[test]
fn lengths_and_types_are_checked() {
    for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.can_encode()) {
        let unsupported = DTypeError::Unsupported { call: "quantize", dtype };
        let (values, mut out) = (vec![0.0; dtype.block_len()], vec![0; dtype.block_bytes()]);
        assert_eq!(quant::quantize_to_vec(dtype, &values), Err(unsupported.clone()));
        assert_eq!(quant::quantize(dtype, &values, &mut out), Err(unsupported.clone()));
        assert_eq!(quant::quantize_weighted(dtype, &values, &values, &mut out), Err(unsupported));
    }
    assert!(quant::dequantize(DType::U32, &[0; 4], &mut [0.0]).is_err());
    for dtype in stored_types() {
        let (elements, size) = (2 * dtype.block_len(), 2 * dtype.block_bytes());
        let values = vec![0.0; elements];
        for wrong in [0, size - 1, size + 1] {
            let length = |call| DTypeError::Length { call, dtype, elements, expected: size, got: wrong };
            let bytes = vec![0; wrong];
            assert_eq!(quant::dequantize_to_vec(dtype, &bytes, elements), Err(length("dequantize")));
            let mut out = bytes.clone();
            assert_eq!(quant::quantize(dtype, &values, &mut out), Err(length("quantize")));
        }
        assert!(quant::dequantize_to_vec(dtype, &[], usize::MAX).is_err());
        if dtype.is_quantized() {
            let partial =
                DTypeError::PartialBlock { dtype, elements: elements - 1, block: dtype.block_len() };
            assert_eq!(quant::quantize_to_vec(dtype, &values[1..]), Err(partial));
        }
        assert_eq!(quant::quantize_to_vec(dtype, &[]), Ok(vec![]));
        assert_eq!(quant::dequantize_to_vec(dtype, &[], 0), Ok(vec![]));
    }
}

/// Whatever the finite input, the stored values are finite and not far outside its range.
#[test]
fn extreme_values_stay_finite() {
    let mut rng = fastrand::Rng::with_seed(9);
    let mut cases: Vec<Vec<f32>> =
        [f32::MAX, f32::MIN, 1e9, 65504.0, 65519.9, 65520.0, 6e-8, 2e-8, 1e-38, 1e-45]
            .iter()
            .flat_map(|x| [vec![*x; 256], (0..256).map(|i| if i % 3 == 0 { -x } else { *x }).collect()])
            .collect();
    for _ in 0..2000 {
        // Random exponents around a random centre, so that blocks are sometimes narrow and sometimes wild.
        let (centre, width) = (rng.i32(-140..128), rng.i32(1..40));
        let value = |rng: &mut fastrand::Rng| {
            let x = (rng.f32() * 2.0 - 1.0) * 2.0f32.powi((centre + rng.i32(-width..width)).clamp(-149, 127));
            if rng.u8(..4) == 0 { 0.0 } else { x }
        };
        cases.push((0..256).map(|_| value(&mut rng)).collect());
    }
    for dtype in stored_types() {
        for values in &cases {
            let stored = round_trip(dtype, values);
            let most = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            for (x, y) in values.iter().zip(&stored) {
                let bound = f64::from(most) * 1.6 + 1e-6;
                assert!(y.is_finite() && f64::from(y.abs()) <= bound, "{dtype}: {x:e} became {y:e}");
            }
            // Saturation aside, storing zeros instead would not have been better.
            if most < 6e4 && most > 1e-15 {
                assert!(nmse(values, &stored) <= 1.0 + 1e-6, "{dtype}: {values:?}");
            }
        }
    }
}

/// Quants, scales and minima as the accessors give them are those that decoding uses, and packing them again
/// gives the same bytes.
#[test]
fn accessors_agree_with_decoding() {
    fn check<B: Decode<N>, const N: usize>(
        group: usize,
        parts: impl Fn(&B) -> (B, [i8; N], Vec<(f32, f32)>),
    ) {
        let mut rng = fastrand::Rng::with_seed(11);
        for _ in 0..50 {
            let bytes: Vec<u8> = (0..size_of::<B>()).map(|_| rng.u8(..)).collect();
            let block: B = bytemuck::pod_read_unaligned(&bytes);
            let (packed, quants, grids) = parts(&block);
            let mut out = [0.0; N];
            block.decode(&mut out);
            for (i, value) in out.iter().enumerate() {
                let (scale, offset) = grids[i / group];
                let expected = scale * f32::from(quants[i]) + offset;
                let same = *value == expected || value.is_nan() && expected.is_nan();
                assert!(same, "{}: element {i} is {value:e}, must be {expected:e}", B::DTYPE);
            }
            let mut again = [0.0; N];
            packed.decode(&mut again);
            let bits = |x: [f32; N]| x.map(|x| if x.is_nan() { 0 } else { x.to_bits() });
            assert_eq!(bits(out), bits(again), "{}", B::DTYPE);
        }
    }
    let half = |bytes| f16::from_le_bytes(bytes);
    check::<quant::BlockQ4_0, 32>(32, |b| {
        (quant::BlockQ4_0::new(half(b.d), &b.quants()), b.quants(), vec![(b.d(), 0.0)])
    });
    check::<quant::BlockQ4_1, 32>(32, |b| {
        (quant::BlockQ4_1::new(half(b.d), half(b.m), &b.quants()), b.quants(), vec![(b.d(), b.m())])
    });
    check::<quant::BlockQ5_0, 32>(32, |b| {
        (quant::BlockQ5_0::new(half(b.d), &b.quants()), b.quants(), vec![(b.d(), 0.0)])
    });
    check::<quant::BlockQ5_1, 32>(32, |b| {
        (quant::BlockQ5_1::new(half(b.d), half(b.m), &b.quants()), b.quants(), vec![(b.d(), b.m())])
    });
    check::<quant::BlockQ8_0, 32>(32, |b| {
        (quant::BlockQ8_0::new(half(b.d), &b.quants()), b.quants(), vec![(b.d(), 0.0)])
    });
    check::<quant::BlockQ8_K, 256>(256, |b| {
        (quant::BlockQ8_K::new(b.d(), &b.quants()), b.quants(), vec![(b.d(), 0.0)])
    });
    check::<quant::BlockQ3_K, 256>(16, |b| {
        let scales: [i8; 16] = std::array::from_fn(|j| b.scale(j));
        let grids = scales.map(|scale| (b.d() * f32::from(scale), 0.0)).to_vec();
        (quant::BlockQ3_K::new(half(b.d), &scales, &b.quants()), b.quants(), grids)
    });
    check::<quant::BlockQ6_K, 256>(16, |b| {
        let grids = b.scales.map(|scale| (b.d() * f32::from(scale), 0.0)).to_vec();
        (quant::BlockQ6_K::new(half(b.d), &b.scales, &b.quants()), b.quants(), grids)
    });
    check::<quant::BlockMXFP4, 32>(32, |b| (*b, b.quants(), vec![(b.d(), 0.0)]));
    check::<quant::BlockIQ4_NL, 32>(32, |b| (*b, b.quants(), vec![(b.d(), 0.0)]));
    check::<quant::BlockIQ4_XS, 256>(32, |b| {
        (*b, b.quants(), (0..8).map(|j| (b.d() * f32::from(b.scale(j)), 0.0)).collect())
    });
    macro_rules! check_grid {
        ($block:ident, $groups:literal) => {
            check::<quant::$block, 256>(256 / $groups, |b| {
                (*b, b.quants(), (0..$groups).map(|j| (b.d() * b.factor(j), 0.0)).collect())
            });
        };
    }
    check_grid!(BlockIQ2_XXS, 8);
    check_grid!(BlockIQ2_XS, 16);
    check_grid!(BlockIQ2_S, 16);
    check_grid!(BlockIQ3_XXS, 8);
    check_grid!(BlockIQ3_S, 8);
    macro_rules! check_min {
        ($block:ident, $groups:literal) => {
            check::<quant::$block, 256>(256 / $groups, |b| {
                let pairs: [(u8, u8); $groups] = std::array::from_fn(|j| b.scale_min(j));
                let grid = |(s, m)| (b.d() * f32::from(s), -(b.dmin() * f32::from(m)));
                let packed = quant::$block::new(half(b.d), half(b.dmin), &pairs, &b.quants());
                (packed, b.quants(), pairs.map(grid).to_vec())
            });
        };
    }
    check_min!(BlockQ2_K, 16);
    check_min!(BlockQ4_K, 8);
    check_min!(BlockQ5_K, 8);
}

#[test]
fn q8_k_sums_its_quants() {
    let values: [f32; 256] = std::array::from_fn(|i| (i as f32 * 0.7).sin());
    let block = quant::BlockQ8_K::encode(&values);
    for j in 0..16 {
        let sum: i16 = block.qs[j * 16..][..16].iter().map(|q| i16::from(*q)).sum();
        assert_eq!(block.bsum(j), sum);
    }
}

/// Sums of uniform numbers by integer arithmetic, the same on every machine, with some outliers.
fn portable_values() -> Vec<f32> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut value = || {
        let sum: i64 = (0..4).map(|_| (next() >> 44) as i64 - (1 << 19)).sum();
        let outlier = if next() % 61 == 0 { 6.0 } else { 1.0 };
        sum as f32 / (1 << 22) as f32 * outlier
    };
    (0..ELEMENTS).map(|_| value()).collect()
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The bits that the encoders write: a model quantized today is the same file as one of yesterday.
#[test]
fn encoders_write_the_same_bits_as_ever() {
    let golden = [
        (DType::F32, 0x46f0_6db3_4563_fe83),
        (DType::F16, 0xd82b_b053_365b_4466),
        (DType::BF16, 0xe93d_a1d9_0173_64bb),
        (DType::Q4_0, 0x18dc_f72e_24f9_832d),
        (DType::Q4_1, 0xbbe1_2238_5763_dd04),
        (DType::Q5_0, 0x8906_bb67_a0b8_1d08),
        (DType::Q5_1, 0x22d2_f23c_114a_38b1),
        (DType::Q8_0, 0xa12d_cb88_5431_1ede),
        (DType::Q2_K, 0x78c7_611a_6486_4d35),
        (DType::Q3_K, 0x782d_60df_cade_4bf3),
        (DType::Q4_K, 0x8ee6_15b3_ad8c_e61d),
        (DType::Q5_K, 0xc35a_7350_7061_dea7),
        (DType::Q6_K, 0x3c3a_0c79_9221_88d3),
        (DType::Q8_K, 0x0945_a545_2994_f7f5),
        (DType::MXFP4, 0x8dd4_e39e_9a7d_e141),
        (DType::IQ4_NL, 0x6479_8f76_6f96_1d36),
        (DType::IQ4_XS, 0xcdaa_5e07_9d9c_8bf1),
    ];
    let values = portable_values();
    for (dtype, bits) in golden {
        assert_eq!(hash(&quant::quantize_to_vec(dtype, &values).unwrap()), bits, "{dtype}");
    }
}
