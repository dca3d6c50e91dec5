//! Every type on every instruction set against sums in `f64`.

use super::*;
use fulmen_core::GateActivation;
use half::{bf16, f16};

/// Every type that has a matmul.
fn types() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&dtype| dtype != DType::U32)
}

fn gauss(rng: &mut fastrand::Rng) -> f32 {
    let (u, v) = (1.0 - rng.f64(), rng.f64());
    ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
}

fn gaussian(rng: &mut fastrand::Rng, len: usize) -> Vec<f32> {
    (0..len).map(|_| gauss(rng)).collect()
}

/// Writes a random f16 of about this size.
fn random_scale(rng: &mut fastrand::Rng, at: &mut [u8], size: f32) {
    let value = size * (0.5 + rng.f32()) * if rng.bool() { 1.0 } else { -1.0 };
    at[..2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// Random weights: any quants and any packed scales, with outer scales of a usual size.
fn random_weights(rng: &mut fastrand::Rng, dtype: DType, n: usize, k: usize) -> Vec<u8> {
    let len = dtype.bytes(n * k).unwrap();
    let mut data: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
    for block in data.chunks_exact_mut(dtype.block_bytes()) {
        match dtype {
            DType::F32 => block.copy_from_slice(&gauss(rng).to_le_bytes()),
            DType::F16 => block.copy_from_slice(&f16::from_f32(gauss(rng)).to_le_bytes()),
            DType::BF16 => block.copy_from_slice(&bf16::from_f32(gauss(rng)).to_le_bytes()),
            DType::U32 => unreachable!(),
            DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::IQ4_NL => random_scale(rng, block, 0.02),
            DType::MXFP4 => block[0] = rng.u8(118..126),
            DType::IQ4_XS => random_scale(rng, block, 0.001),
            DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S | DType::IQ3_XXS | DType::IQ3_S => {
                random_scale(rng, block, 0.005)
            }
            DType::Q4_1 | DType::Q5_1 => {
                random_scale(rng, block, 0.02);
                random_scale(rng, &mut block[2..], 0.2);
            }
            DType::Q2_K => {
                random_scale(rng, &mut block[80..], 0.02);
                random_scale(rng, &mut block[82..], 0.02);
            }
            DType::Q3_K => random_scale(rng, &mut block[108..], 0.01),
            DType::Q4_K | DType::Q5_K => {
                random_scale(rng, block, 0.002);
                random_scale(rng, &mut block[2..], 0.01);
            }
            DType::Q6_K => random_scale(rng, &mut block[208..], 0.001),
            DType::Q8_K => block[..4].copy_from_slice(&(0.01 + rng.f32() * 0.01).to_le_bytes()),
        }
    }
    data
}

fn f16_at(block: &[u8], at: usize) -> f64 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f64()
}

/// Bits `from .. from + bits` of a byte.
fn bits(byte: u8, from: usize, bits: usize) -> f64 {
    f64::from(byte >> from & ((1 << bits) - 1))
}

/// The 6-bit scale and minimum number `j` of the twelve bytes in `Q4_K` and `Q5_K`.
fn scale_and_min(s: &[u8], j: usize) -> (f64, f64) {
    if j < 4 {
        (bits(s[j], 0, 6), bits(s[j + 4], 0, 6))
    } else {
        (bits(s[j + 4], 0, 4) + 16.0 * bits(s[j - 4], 6, 2), bits(s[j + 4], 4, 4) + 16.0 * bits(s[j], 6, 2))
    }
}

/// The value of IQ4_NL's table at an index.
fn iq4(index: f64) -> f64 {
    let table = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    f64::from(table[index as usize])
}

/// Element `i` of a block, from the definition of its format.
fn element(dtype: DType, b: &[u8], i: usize) -> f64 {
    // In the formats of 32, byte `i % 16` holds element `i`, in its low nibble for the first 16.
    let nibble = |at: usize| bits(b[at + i % 16], i / 16 * 4, 4);
    let fifth = |at: usize| bits(b[at + i / 8], i % 8, 1) * 16.0;
    // In Q2_K and Q3_K, 128 elements are in 32 bytes, 32 elements in each pair of bits.
    let (half, quarter, in32) = (i / 128, i / 32 % 4, i % 32);
    // In Q4_K and Q5_K, 64 elements are in 32 bytes.
    let nibble64 = |at: usize| bits(b[at + i / 64 * 32 + in32], i / 32 % 2 * 4, 4);
    match dtype {
        DType::F32 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        DType::F16 => f16::from_le_bytes([b[0], b[1]]).to_f64(),
        DType::BF16 => bf16::from_le_bytes([b[0], b[1]]).to_f64(),
        DType::U32 => unreachable!(),
        DType::Q4_0 => f16_at(b, 0) * (nibble(2) - 8.0),
        DType::Q4_1 => f16_at(b, 0) * nibble(4) + f16_at(b, 2),
        DType::Q5_0 => f16_at(b, 0) * (nibble(6) + fifth(2) - 16.0),
        DType::Q5_1 => f16_at(b, 0) * (nibble(8) + fifth(4)) + f16_at(b, 2),
        DType::Q8_0 => f16_at(b, 0) * f64::from(b[2 + i] as i8),
        // Sign, two bits of exponent, one of mantissa; the exponents are 1 - 1 (subnormal) to 3 - 1.
        DType::MXFP4 => {
            let (q, scale) = (nibble(1) as u8, (f64::from(b[0]) - 127.0).exp2());
            let (exponent, mantissa) = (bits(q, 1, 2), bits(q, 0, 1));
            let subnormal = exponent == 0.0;
            let one = if subnormal { 0.0 } else { 1.0 };
            let magnitude = (one + mantissa / 2.0) * (exponent.max(1.0) - 1.0).exp2();
            if q > 7 { -scale * magnitude } else { scale * magnitude }
        }
        DType::IQ4_NL => f16_at(b, 0) * iq4(nibble(2)),
        DType::IQ4_XS => {
            let j = i / 32;
            let scale = bits(b[4 + j / 2], j % 2 * 4, 4) + 16.0 * bits(b[2 + j / 4], j % 4 * 2, 2) - 32.0;
            f16_at(b, 0) * scale * iq4(bits(b[8 + 16 * j + i % 16], i / 16 % 2 * 4, 4))
        }
        DType::Q2_K => {
            let q = bits(b[16 + 32 * half + in32], 2 * quarter, 2);
            let scale = b[i / 16];
            f16_at(b, 80) * bits(scale, 0, 4) * q - f16_at(b, 82) * bits(scale, 4, 4)
        }
        DType::Q3_K => {
            let low = bits(b[32 + 32 * half + in32], 2 * quarter, 2);
            let high = bits(b[in32], i / 32, 1);
            let (s, j) = (&b[96..108], i / 16);
            let scale = bits(s[j % 8], j / 8 * 4, 4) + 16.0 * bits(s[8 + j % 4], j / 4 * 2, 2);
            f16_at(b, 108) * (scale - 32.0) * (low + 4.0 * high - 4.0)
        }
        DType::Q4_K => {
            let (scale, min) = scale_and_min(&b[4..16], i / 32);
            f16_at(b, 0) * scale * nibble64(16) - f16_at(b, 2) * min
        }
        DType::Q5_K => {
            let (scale, min) = scale_and_min(&b[4..16], i / 32);
            let q = nibble64(48) + 16.0 * bits(b[16 + in32], i / 32, 1);
            f16_at(b, 0) * scale * q - f16_at(b, 2) * min
        }
        DType::Q6_K => {
            let low = bits(b[64 * half + i % 64], quarter / 2 * 4, 4);
            let high = bits(b[128 + 32 * half + in32], 2 * quarter, 2);
            let scale = f64::from(b[192 + i / 16] as i8);
            f16_at(b, 208) * scale * (low + 16.0 * high - 32.0)
        }
        DType::Q8_K => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])) * f64::from(b[4 + i] as i8),
        DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S | DType::IQ3_XXS | DType::IQ3_S => {
            f16_at(b, 0) * grid_element(dtype, b, i)
        }
    }
}

/// Element `i` of a block of IQ2 or IQ3, without the scale of the block.
fn grid_element(dtype: DType, b: &[u8], i: usize) -> f64 {
    use fulmen_core::quant::{IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_XXS_GRID};
    let (in8, eighth, fourth) = (i % 8, i / 8, i / 4);
    let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
    // The last of eight signs makes their number even.
    let sign_of_seven = |seven: u32| {
        let stored = if in8 < 7 { seven >> in8 & 1 } else { (seven & 127).count_ones() & 1 };
        1.0 - 2.0 * f64::from(stored)
    };
    let sign = |at: usize| 1.0 - 2.0 * bits(b[at + eighth], in8, 1);
    let scale = |at: usize, group: usize| bits(b[at + i / group / 2], i / group % 2 * 4, 4);
    match dtype {
        DType::IQ2_XXS => {
            let signs = word(2 + 8 * (i / 32) + 4);
            let q = f64::from(IQ2_XXS_GRID[usize::from(b[2 + 8 * (i / 32) + eighth % 4])][in8]);
            (0.5 + f64::from(signs >> 28)) / 4.0 * q * sign_of_seven(signs >> (7 * (eighth % 4)))
        }
        DType::IQ2_XS => {
            let word = u32::from(b[2 + 2 * eighth]) | u32::from(b[3 + 2 * eighth]) << 8;
            let q = f64::from(IQ2_XS_GRID[word as usize & 511][in8]);
            (0.5 + scale(66, 16)) / 4.0 * q * sign_of_seven(word >> 9)
        }
        DType::IQ2_S => {
            let high = bits(b[66 + eighth / 4], eighth % 4 * 2, 2) as usize;
            let q = f64::from(IQ2_S_GRID[usize::from(b[2 + eighth]) + 256 * high][in8]);
            (0.5 + scale(74, 16)) / 4.0 * q * sign(34)
        }
        DType::IQ3_XXS => {
            let signs = word(66 + 4 * (i / 32));
            let q = f64::from(IQ3_XXS_GRID[usize::from(b[2 + fourth])][i % 4]);
            (0.5 + f64::from(signs >> 28)) / 2.0 * q * sign_of_seven(signs >> (7 * (eighth % 4)))
        }
        _ => {
            let high = bits(b[66 + fourth / 8], fourth % 8, 1) as usize;
            let q = f64::from(IQ3_S_GRID[usize::from(b[2 + fourth]) + 256 * high][i % 4]);
            (1.0 + 2.0 * scale(106, 32)) * q * sign(74)
        }
    }
}

/// All weights, row-major.
fn dequantize(dtype: DType, data: &[u8]) -> Vec<f64> {
    let blocks = data.chunks_exact(dtype.block_bytes());
    blocks.flat_map(|b| (0..dtype.block_len()).map(|i| element(dtype, b, i))).collect()
}

/// The matmul in `f64`.
fn reference(w: &[f64], x: &[f32], m: usize, n: usize, k: usize) -> Vec<f64> {
    let mut out = vec![0.0; m * n];
    for i in 0..m {
        for j in 0..n {
            out[i * n + j] = (0..k).map(|l| f64::from(x[i * k + l]) * w[j * k + l]).sum();
        }
    }
    out
}

/// The normalized mean-square error.
fn nmse(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let error: f64 = got.iter().zip(want).map(|(&g, w)| (f64::from(g) - w).powi(2)).sum();
    let size: f64 = want.iter().map(|w| w * w).sum();
    error / size.max(1e-30)
}

fn tolerance(dtype: DType) -> f64 {
    if dtype.is_quantized() { 1e-4 } else { 1e-11 }
}

/// `mul_mat` with a plain output and no epilogue.
fn plain(pool: &Pool, isa: Isa, w: Weight<'_>, x: &[f32], m: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; m * w.rows()];
    let mut scratch = Scratch::new();
    let mut x = Activations::new(&mut scratch, x, m, w.cols());
    mul_mat(pool, isa, w, &mut x, Epilogue::default(), Out::rows(&mut out, w.rows()));
    out
}

#[test]
fn every_type_on_every_instruction_set() {
    let pool = Pool::new(3);
    let rng = &mut fastrand::Rng::with_seed(1);
    for dtype in types() {
        for blocks in [1, 2, 3, 7, 8] {
            let k = blocks * dtype.block_len().max(16);
            let x = gaussian(rng, 33 * k);
            for n in [1, 3, 16, 17, 64] {
                let data = random_weights(rng, dtype, n, k);
                let w = dequantize(dtype, &data);
                let want = reference(&w, &x, 33, n, k);
                let weight = Weight::new(dtype, &data, n, k);
                for isa in Isa::available() {
                    for m in [1, 2, 3, 4, 5, 8, 17, 33] {
                        let got = plain(&pool, isa, weight, &x[..m * k], m);
                        // Few dot products may happen to be near zero, so the error is measured against
                        // what they could have been; and their errors may happen to be large.
                        let expected: f64 = w.iter().map(|w| w * w).sum::<f64>() * m as f64;
                        let size: f64 = want[..m * n].iter().map(|v| v * v).sum();
                        let error = nmse(&got, &want[..m * n]) * size / size.max(expected);
                        let luck = if m * n < 32 {
                            16.0
                        } else if m < 8 {
                            4.0
                        } else {
                            1.0
                        };
                        assert!(
                            error <= luck * tolerance(dtype),
                            "{dtype} on {isa}, {m} x {n} x {k}: error {error:e}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn errors_are_those_of_q8_activations() {
    let pool = Pool::new(2);
    let rng = &mut fastrand::Rng::with_seed(2);
    let (m, n, k) = (16, 64, 2560);
    let x = gaussian(rng, m * k);
    for dtype in types() {
        let data = random_weights(rng, dtype, n, k);
        let want = reference(&dequantize(dtype, &data), &x, m, n, k);
        for isa in Isa::available() {
            for m in [4, m] {
                let got = plain(&pool, isa, Weight::new(dtype, &data, n, k), &x[..m * k], m);
                let error = nmse(&got, &want[..m * n]);
                assert!(error <= tolerance(dtype), "{dtype} on {isa}: error {error:e}");
            }
        }
    }
}

#[test]
fn floating_point_weights_of_any_length() {
    let pool = Pool::new(2);
    let rng = &mut fastrand::Rng::with_seed(3);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for k in [0, 1, 3, 7, 15, 17, 31, 100, 255, 257, 511, 513, 1000] {
            let (m, n) = (37, 19);
            let x = gaussian(rng, m * k);
            let data = random_weights(rng, dtype, n, k);
            let want = reference(&dequantize(dtype, &data), &x, m, n, k);
            for isa in Isa::available() {
                for m in [1, 2, 5, 12, 13, m] {
                    let got = plain(&pool, isa, Weight::new(dtype, &data, n, k), &x[..m * k], m);
                    let error = nmse(&got, &want[..m * n]);
                    assert!(error <= 1e-11, "{dtype} on {isa}, {m} x {n} x {k}: error {error:e}");
                }
            }
        }
    }
}

#[test]
fn empty_matmuls() {
    let pool = Pool::new(2);
    for isa in Isa::available() {
        for dtype in types() {
            let data = vec![0; dtype.bytes(3 * dtype.block_len()).unwrap()];
            let k = dtype.block_len();
            assert!(plain(&pool, isa, Weight::new(dtype, &data, 3, k), &[], 0).is_empty());
            assert!(plain(&pool, isa, Weight::new(dtype, &[], 0, k), &vec![1.0; 2 * k], 2).is_empty());
            assert_eq!(plain(&pool, isa, Weight::new(dtype, &[], 3, 0), &[], 1), [0.0; 3]);
            assert_eq!(plain(&pool, isa, Weight::new(dtype, &[], 3, 0), &[], 20), [0.0; 60]);
        }
    }
}

#[test]
fn epilogues_strides_and_offsets() {
    let pool = Pool::new(3);
    let rng = &mut fastrand::Rng::with_seed(4);
    let (n, k) = (37, 512);
    for dtype in [DType::F32, DType::Q8_0, DType::Q4_K] {
        let data = random_weights(rng, dtype, n, k);
        let weight = Weight::new(dtype, &data, n, k);
        let bias = gaussian(rng, n);
        for isa in Isa::available() {
            for m in [1, 3, 30] {
                let x = gaussian(rng, m * k);
                let plain = plain(&pool, isa, weight, &x, m);
                let residual = gaussian(rng, m * (n + 2));
                // Activations with a stride, an output between other columns, and all epilogues.
                let wide: Vec<f32> =
                    x.chunks(k).flat_map(|row| row.iter().copied().chain([f32::NAN; 5])).collect();
                for case in 0..6 {
                    let (stride, offset) = (n + 11, 4);
                    let before = gaussian(rng, m * stride);
                    let mut out = before.clone();
                    let epilogue = Epilogue {
                        bias: (case % 2 == 1).then_some(&bias[..]),
                        residual: match case / 2 {
                            0 => Residual::None,
                            1 => Residual::InPlace,
                            _ => Residual::Rows { data: &residual, stride: n + 2 },
                        },
                    };
                    let mut scratch = Scratch::new();
                    let mut acts = Activations::strided(&mut scratch, &wide, m, k, k + 5);
                    mul_mat(&pool, isa, weight, &mut acts, epilogue, Out { data: &mut out, stride, offset });
                    for i in 0..m {
                        for j in 0..stride {
                            let at = i * stride + j;
                            let want = if (offset..offset + n).contains(&j) {
                                let j = j - offset;
                                let mut want = plain[i * n + j];
                                want += if case % 2 == 1 { bias[j] } else { 0.0 };
                                want + match case / 2 {
                                    0 => 0.0,
                                    1 => before[at],
                                    _ => residual[i * (n + 2) + j],
                                }
                            } else {
                                before[at]
                            };
                            let error = (out[at] - want).abs();
                            assert!(error <= 1e-5 * want.abs().max(1.0), "{dtype} on {isa}, case {case}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn gate_and_up() {
    let pool = Pool::new(3);
    let rng = &mut fastrand::Rng::with_seed(5);
    let (n, k) = (69, 512);
    for types in [
        (DType::Q4_K, DType::Q4_K),
        (DType::Q4_K, DType::Q6_K),
        (DType::Q8_0, DType::Q4_K),
        (DType::F16, DType::Q4_0),
        (DType::F32, DType::F32),
    ] {
        let (gate, up) = (random_weights(rng, types.0, n, k), random_weights(rng, types.1, n, k));
        let (gate, up) = (Weight::new(types.0, &gate, n, k), Weight::new(types.1, &up, n, k));
        for isa in Isa::available() {
            for m in [1, 4, 7, 29, 100] {
                let x: Vec<f32> = gaussian(rng, m * k).iter().map(|v| v * 0.1).collect();
                let (g, u) = (plain(&pool, isa, gate, &x, m), plain(&pool, isa, up, &x, m));
                let mut out = vec![f32::NAN; m * (n + 3)];
                let mut scratch = Scratch::new();
                let mut acts = Activations::new(&mut scratch, &x, m, k);
                let to = Out { data: &mut out, stride: n + 3, offset: 1 };
                mul_mat_gate_up(&pool, isa, [gate, up], GateActivation::Silu, &mut acts, to);
                for i in 0..m {
                    for j in 0..n {
                        let g = f64::from(g[i * n + j]);
                        let want = g / (1.0 + (-g).exp()) * f64::from(u[i * n + j]);
                        let got = f64::from(out[i * (n + 3) + 1 + j]);
                        assert!(
                            (got - want).abs() <= 1e-6 * want.abs() + 1e-30,
                            "{types:?} on {isa}, {m} rows"
                        );
                    }
                    assert!(out[i * (n + 3)].is_nan() && out[i * (n + 3) + 1 + n].is_nan());
                }
            }
        }
    }
}

#[test]
fn one_quantization_serves_several_weights() {
    let pool = Pool::new(2);
    let rng = &mut fastrand::Rng::with_seed(6);
    let k = 768;
    let mut scratch = Scratch::new();
    // Scratch memory goes from larger to smaller problems and back.
    for m in [20, 1, 7, 33, 2] {
        let x = gaussian(rng, m * k);
        for isa in Isa::available() {
            let mut acts = Activations::new(&mut scratch, &x, m, k);
            for dtype in types().chain(types()) {
                let data = random_weights(rng, dtype, 9, k);
                let weight = Weight::new(dtype, &data, 9, k);
                let mut out = vec![0.0; m * 9];
                mul_mat(&pool, isa, weight, &mut acts, Epilogue::default(), Out::rows(&mut out, 9));
                assert_eq!(out, plain(&pool, isa, weight, &x, m), "{dtype} on {isa}, {m} rows");
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads_or_other_rows() {
    let rng = &mut fastrand::Rng::with_seed(7);
    let (m, n, k) = (1000, 101, 512);
    let x = gaussian(rng, m * k);
    let pools = [1, 2, 5].map(Pool::new);
    for dtype in types() {
        let data = random_weights(rng, dtype, n, k);
        let weight = Weight::new(dtype, &data, n, k);
        for isa in Isa::available() {
            for (few, rows) in [(true, GEMV_MAX_ROWS), (false, GEMV_MAX_ROWS + 1), (false, m)] {
                if rows == m && isa != Isa::best() {
                    continue;
                }
                let all = plain(&pools[0], isa, weight, &x[..rows * k], rows);
                for pool in &pools[1..] {
                    assert_eq!(all, plain(pool, isa, weight, &x[..rows * k], rows), "{dtype} on {isa}");
                }
                let less = if few { 1 } else { GEMV_MAX_ROWS + 1 };
                let part = plain(&pools[1], isa, weight, &x[..less * k], less);
                assert_eq!(all[..less * n], part, "{dtype} on {isa}, {rows} rows");
            }
        }
    }
}

#[test]
fn by_rows_a_row_has_the_same_bits_in_any_batch() {
    let rng = &mut fastrand::Rng::with_seed(9);
    let (m, n, k) = (70, 37, 512);
    let x = gaussian(rng, m * k);
    let pool = Pool::new(2);
    for dtype in types() {
        let data = random_weights(rng, dtype, n, k);
        let weight = Weight::new(dtype, &data, n, k);
        let run = |x: &[f32], rows: usize| {
            let mut out = vec![f32::NAN; rows * n];
            let mut scratch = Scratch::new();
            let mut x = Activations::new(&mut scratch, x, rows, k).by_rows(true);
            mul_mat(&pool, Isa::best(), weight, &mut x, Epilogue::default(), Out::rows(&mut out, n));
            out
        };
        let all = run(&x, m);
        for (first, rows) in [(0, 1), (69, 1), (3, 9), (11, 33)] {
            let part = run(&x[first * k..][..rows * k], rows);
            assert_eq!(all[first * n..][..rows * n], part, "{dtype}, {rows} rows from {first}");
        }
    }
}

#[test]
fn nan_and_infinity_propagate() {
    let pool = Pool::new(2);
    let rng = &mut fastrand::Rng::with_seed(8);
    let (n, k) = (20, 768);
    for dtype in types() {
        let data = random_weights(rng, dtype, n, k);
        let weight = Weight::new(dtype, &data, n, k);
        for isa in Isa::available() {
            for m in [3, 25] {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut x = gaussian(rng, m * k);
                    x[k + 300] = bad;
                    let out = plain(&pool, isa, weight, &x, m);
                    for (i, row) in out.chunks(n).enumerate() {
                        let finite = row.iter().filter(|v| v.is_finite()).count();
                        assert_eq!(finite, if i == 1 { 0 } else { n }, "{dtype} on {isa}, row {i} of {m}");
                    }
                }
            }
        }
    }
}
