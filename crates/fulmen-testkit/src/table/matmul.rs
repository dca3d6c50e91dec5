//! Matmuls: one weight, several, with bias and residual, and gate-up.

use fulmen_core::{DType, GateActivation, Sharing};

use super::{BLOCKS_32, FLOATS, LLAMA32_1B, MODELS, QWEN3_4B, SMOLLM2_135M, fits, weight_types};
use crate::case::{Case, Tolerance};
use crate::draw::Draw;

const GELU: GateActivation = GateActivation::GeluTanh;

pub(super) fn tolerance(dtype: DType) -> Tolerance {
    if FLOATS.contains(&dtype) { Tolerance::FLOAT_MATMUL } else { Tolerance::QUANTIZED_MATMUL }
}

fn mul_mat(name: &str, dtype: DType, m: u32, n: u32, k: u32) -> Case {
    let case = Case::new(format!("{name}m{m}/{n}x{k}"), |b| {
        let (x, w) = (b.input("x", m, k)?, b.weight("w", dtype, n, k)?);
        let y = b.mul_mat(x, w)?;
        b.output("y", y)
    });
    case.dtype(dtype).tolerance(tolerance(dtype))
}

/// The epilogue of a matmul.
#[derive(Clone, Copy)]
struct Epilogue {
    name: &'static str,
    bias: bool,
    residual: bool,
    in_place: bool,
}

const EPILOGUES: [Epilogue; 4] = [
    Epilogue { name: "bias", bias: true, residual: false, in_place: false },
    Epilogue { name: "residual", bias: false, residual: true, in_place: false },
    Epilogue { name: "bias_residual", bias: true, residual: true, in_place: false },
    Epilogue { name: "residual_in_place", bias: false, residual: true, in_place: true },
];

fn linear(epilogue: Epilogue, dtype: DType, m: u32, n: u32, k: u32) -> Case {
    let case = Case::new(format!("{}/m{m}/{n}x{k}", epilogue.name), |b| {
        let (x, w) = (b.input("x", m, k)?, b.weight("w", dtype, n, k)?);
        let bias = if epilogue.bias { Some(b.vector("bias", n)?) } else { None };
        let mut residual = if epilogue.residual { Some(b.input("residual", m, n)?) } else { None };
        if let (true, Some(r)) = (epilogue.in_place, residual) {
            residual = Some(b.add(r, r)?);
        }
        let y = b.linear(x, w, bias, residual)?;
        b.output("y", y)
    });
    let sharing = if epilogue.in_place { Sharing::InPlace } else { Sharing::Never };
    case.dtype(dtype).tolerance(tolerance(dtype)).sharing(sharing)
}

/// `x + W · norm(x)`, in place: a fused norm and matmul must not overwrite x while it is still read.
fn norm_residual(dtype: DType, m: u32, k: u32) -> Case {
    let case = Case::new(format!("norm_residual_in_place/m{m}/{k}x{k}"), |b| {
        let (x, w, gain) = (b.input("x", m, k)?, b.weight("w", dtype, k, k)?, b.vector("gain", k)?);
        let doubled = b.add(x, x)?;
        let normed = b.rms_norm(doubled, gain, 1e-5)?;
        let y = b.linear(normed, w, None, Some(doubled))?;
        b.output("y", y)
    });
    let case = case.draw("gain", Draw::GAIN).dtype(dtype);
    case.tolerance(tolerance(dtype)).sharing(Sharing::InPlace)
}

/// Several weights with one input, as the Q, K and V projections.
fn many(name: &str, types: [DType; 3], m: u32, rows: [u32; 3], k: u32, bias: bool) -> Case {
    let case = Case::new(format!("{name}/m{m}/{}+{}+{}x{k}", rows[0], rows[1], rows[2]), |b| {
        let x = b.input("x", m, k)?;
        let mut weights = Vec::new();
        for (at, (dtype, n)) in types.into_iter().zip(rows).enumerate() {
            let w = b.weight(&format!("w{at}"), dtype, n, k)?;
            // The second has none: each weight has its own.
            let bias = if bias && at != 1 { Some(b.vector(&format!("b{at}"), n)?) } else { None };
            weights.push((w, bias));
        }
        for (at, y) in b.linear_many(x, &weights)?.into_iter().enumerate() {
            b.output(&format!("y{at}"), y)?;
        }
        Ok(())
    });
    case.dtype(types[0]).tolerance(types.map(tolerance).into_iter().fold(tolerance(types[0]), looser))
}

fn looser(a: Tolerance, b: Tolerance) -> Tolerance {
    if b == Tolerance::QUANTIZED_MATMUL { b } else { a }
}

fn gate_up(name: &str, types: [DType; 2], m: u32, n: u32, k: u32) -> Case {
    gate_up_with(name, types, m, n, k, GateActivation::Silu)
}

fn gate_up_with(
    name: &str,
    [gate, up]: [DType; 2],
    m: u32,
    n: u32,
    k: u32,
    activation: GateActivation,
) -> Case {
    let case = Case::new(format!("{name}m{m}/{n}x{k}"), |b| {
        let x = b.input("x", m, k)?;
        let (w, u) = (b.weight("gate", gate, n, k)?, b.weight("up", up, n, k)?);
        let y = b.gate_up_with(x, w, u, activation)?;
        b.output("y", y)
    });
    // Ordinary magnitudes, so that the gate is not saturated.
    let case = case.draw("x", Draw::Normal(0.0, 1.5 / (k.max(1) as f32).sqrt()));
    case.dtype(gate).tolerance(looser(tolerance(gate), tolerance(up)))
}

/// An RMS norm and the matmuls that read it, which a device may run as one kernel: the Q, K and V projections
/// (`rows` of each, none if it is 0), or gate-up. The norm's result is an output, too.
fn normed(dtype: DType, m: u32, rows: [u32; 3], gate_up: bool, k: u32) -> Case {
    let [a, b, c] = rows;
    let name = if gate_up { format!("norm/m{m}/{a}x{k}") } else { format!("norm/m{m}/{a}+{b}+{c}x{k}") };
    let case = Case::new(name, |b| {
        let (x, gain) = (b.input("x", m, k)?, b.vector("gain", k)?);
        let normed = b.rms_norm(x, gain, 1e-5)?;
        b.output("normed", normed)?;
        if gate_up {
            let (gate, up) = (b.weight("gate", dtype, rows[0], k)?, b.weight("up", dtype, rows[0], k)?);
            let y = b.gate_up(normed, gate, up)?;
            return b.output("y", y);
        }
        let mut weights = Vec::new();
        for (at, &n) in rows.iter().filter(|&&n| n > 0).enumerate() {
            weights.push((b.weight(&format!("w{at}"), dtype, n, k)?, None));
        }
        for (at, y) in b.linear_many(normed, &weights)?.into_iter().enumerate() {
            b.output(&format!("y{at}"), y)?;
        }
        Ok(())
    });
    // Small gains, so that the gate is not saturated.
    let gain = Draw::Normal(0.0, 1.5 / (k.max(1) as f32).sqrt());
    let tolerance = match tolerance(dtype) {
        Tolerance::QUANTIZED_MATMUL => Tolerance::NORMED_QUANTIZED_MATMUL,
        float => float,
    };
    case.draw("gain", gain).dtype(dtype).tolerance(tolerance)
}

/// The tolerance of a gate-up and the matmul behind it, with weights of these types.
pub(super) fn chained_tolerance([gate, down]: [DType; 2]) -> Tolerance {
    match gate.block_len().max(down.block_len()) {
        256 => Tolerance::CHAINED_K_MATMULS,
        _ => Tolerance::CHAINED_MATMULS,
    }
}

/// The feed-forward part of a layer: each op reads what the one before it may have forwarded.
fn feed_forward([gate, down]: [DType; 2], m: u32, n: u32, k: u32, activation: GateActivation) -> Case {
    let name = match activation {
        GateActivation::Silu => "feed_forward",
        GateActivation::GeluTanh => "feed_forward/gelu",
    };
    let case = Case::new(format!("{name}/m{m}/{n}x{k}"), |b| {
        let (x, gain) = (b.input("x", m, k)?, b.vector("gain", k)?);
        let (w, u) = (b.weight("gate", gate, n, k)?, b.weight("up", gate, n, k)?);
        let normed = b.rms_norm(x, gain, 1e-5)?;
        let inner = b.gate_up_with(normed, w, u, activation)?;
        b.output("inner", inner)?;
        let w = b.weight("down", down, k, n)?;
        let y = b.linear(inner, w, None, Some(x))?;
        b.output("y", y)
    });
    // Small gains, so that the gate is not saturated.
    let gain = Draw::Normal(0.0, 1.5 / (k.max(1) as f32).sqrt());
    case.draw("gain", gain).dtype(gate).tolerance(chained_tolerance([gate, down]))
}

const M: [u32; 14] = [1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 33, 64, 150];

pub(super) fn cases(cases: &mut Vec<Case>) {
    for dtype in weight_types() {
        small(cases, dtype);
        real(cases, dtype);
    }
    // Weights of different types in one op, as K-quant mixes have them.
    let mixed = [DType::Q4_K, DType::Q4_K, DType::Q6_K];
    for m in [1, 4, 13, 33, 150] {
        cases.push(many("mixed", mixed, m, [96, 32, 32], 512, false));
        cases.push(many("mixed_bias", [DType::F16, DType::Q8_0, DType::F32], m, [96, 33, 5], 512, true));
        cases.push(gate_up("mixed/", [DType::Q4_K, DType::Q6_K], m, 96, 512));
        cases.push(gate_up("mixed/", [DType::Q8_0, DType::F16], m, 33, 96));
        cases.push(gate_up_with("gelu/mixed/", [DType::Q8_0, DType::F16], m, 33, 96, GELU));
    }
    for m in [2, 16] {
        let model = &QWEN3_4B;
        let rows = [model.heads.q_width(), model.heads.kv_width(), model.heads.kv_width()];
        cases.push(many(&format!("{}/mixed", model.name), mixed, m, rows, model.hidden, false).large());
    }
    for dtype in [DType::Q4_K, DType::Q6_K, DType::Q8_0, DType::F16] {
        for m in [1, 3, 16, 33, 65] {
            cases.push(norm_residual(dtype, m, 512));
        }
        for m in [1, 16] {
            cases.push(norm_residual(dtype, m, 2560).large());
        }
    }
    for dtype in FLOATS {
        floats(cases, dtype);
    }
    several_rows(cases);
    // More columns of the output than a device computes at once, and rows that are not a power of two.
    for dtype in [DType::Q4_K, DType::Q6_K, DType::Q8_0] {
        cases.push(mul_mat("large_n/", dtype, 9, 30_011, 512).large());
    }
    cases.push(gate_up("large_k/", [DType::Q4_K; 2], 13, 2816, 8192).large());
    for dtype in [DType::Q4_K, DType::Q8_0] {
        cases.push(gate_up("large_k/", [dtype; 2], 1, 67, 8192).large());
    }
    // Outputs for which large GPUs use different tile sizes.
    for (m, n) in [(130, 5291), (260, 5643), (390, 6347), (520, 6667)] {
        for dtype in [DType::Q4_K, DType::F16] {
            cases.push(mul_mat("tiles/", dtype, m, n, 256).large());
            for epilogue in EPILOGUES {
                cases.push(linear(epilogue, dtype, m, n + 1, 256).large());
            }
            cases.push(gate_up("tiles/", [dtype; 2], m, n / 2, 256).large());
        }
    }
    lm_heads(cases);
}

fn small(cases: &mut Vec<Case>, dtype: DType) {
    for m in M {
        for (n, k) in [(67, 768), (256, 256), (33, 2304)] {
            cases.push(mul_mat("", dtype, m, n, k));
        }
        cases.push(gate_up("", [dtype; 2], m, 67, 768));
        cases.push(gate_up_with("gelu/", [dtype; 2], m, 67, 768, GELU));
    }
    for m in [1, 2, 5, 17, 150] {
        for (n, k) in [(1, 256), (3, 256), (255, 512), (257, 512)] {
            cases.push(mul_mat("", dtype, m, n, k));
        }
        for (n, k) in [(1, 1), (3, 1), (257, 3), (16, 31), (1, 33), (5, 255), (7, 257), (65, 1000)] {
            if FLOATS.contains(&dtype) {
                cases.push(mul_mat("", dtype, m, n, k));
            }
        }
        for (n, k) in [(1, 32), (5, 96), (65, 576), (3, 1056)] {
            if FLOATS.contains(&dtype) || BLOCKS_32.contains(&dtype) {
                cases.push(mul_mat("", dtype, m, n, k));
                cases.push(gate_up("", [dtype; 2], m, n, k));
            }
        }
        for epilogue in EPILOGUES {
            cases.push(linear(epilogue, dtype, m, 67, 512));
        }
        cases.push(many("three", [dtype; 3], m, [96, 32, 33], 512, false));
        cases.push(many("three_bias", [dtype; 3], m, [96, 32, 33], 512, true));
    }
    cases.push(mul_mat("", dtype, 0, 8, 256));
    cases.push(gate_up("", [dtype; 2], 0, 8, 256));
    cases.push(mul_mat("", dtype, 3, 0, 256));
    if dtype.is_quantized() {
        for m in [1, 3, 33, 65] {
            let blocks = mul_mat("blocks/", dtype, m, 131, 4096).draw("w", Draw::Blocks);
            cases.push(blocks.tolerance(Tolerance::RANDOM_QUANTS_MATMUL));
            let blocks =
                gate_up("blocks/", [dtype; 2], m, 131, 4096).tolerance(Tolerance::RANDOM_QUANTS_MATMUL);
            cases.push(blocks.draw("gate", Draw::Blocks).draw("up", Draw::Blocks));
        }
    }
    // A row with a NaN gives a row of NaN and does not affect the others.
    for m in [3, 17, 65] {
        let nan = mul_mat("nan_row/", dtype, m, 67, 512).draw("x", Draw::With(vec![(512 + 100, f32::NAN)]));
        cases.push(nan);
        let zeros = vec![0.0; m as usize * 512];
        cases.push(mul_mat("zeros/", dtype, m, 67, 512).draw("x", Draw::Floats(zeros)));
    }
    for (name, deviation) in [("tiny", 1e-20), ("huge", 1e20), ("enormous", 1e35)] {
        for m in [3, 65] {
            let case = mul_mat(&format!("{name}/"), dtype, m, 67, 512);
            cases.push(case.draw("x", Draw::Normal(0.0, deviation)));
        }
    }
}

/// Quantized weights in small batches: with a norm, in every format, and with activations that are forwarded;
/// and numbers of rows between those that kernels have tiles for.
fn several_rows(cases: &mut Vec<Case>) {
    for dtype in weight_types().filter(|dtype| dtype.is_quantized()) {
        for m in [2, 3, 6, 8] {
            cases.push(normed(dtype, m, [141, 33, 1], false, 768));
            cases.push(normed(dtype, m, [139, 0, 0], true, 512));
        }
        for m in [1, 2, 4, 7, 8] {
            cases.push(feed_forward([dtype; 2], m, 512, 256, GateActivation::Silu));
            cases.push(feed_forward([dtype; 2], m, 512, 256, GELU));
        }
        for m in [24, 48, 96] {
            cases.push(mul_mat("", dtype, m, 67, 768));
        }
    }
    for m in [1, 2, 4, 8, 16] {
        let (mixed, model) = ([DType::Q4_K, DType::Q6_K], &QWEN3_4B);
        for activation in [GateActivation::Silu, GELU] {
            cases.push(feed_forward(mixed, m, 768, 512, activation));
            cases.push(feed_forward(mixed, m, model.inner, model.hidden, activation).large());
        }
    }
    let mixed = [DType::Q4_K, DType::Q4_K, DType::Q6_K];
    for m in [2, 3, 8] {
        cases.push(many("mixed", mixed, m, [96, 32, 33], 1280, false));
    }
    // Long rows of activations, of which several may not fit the shared memory of a block.
    for (m, k) in [(2, 24_576), (4, 24_576), (8, 13_312), (8, 24_576)] {
        cases.push(mul_mat("long/", DType::Q4_K, m, 35, k));
        cases.push(mul_mat("long/", DType::Q6_K, m, 35, k));
    }
}

/// Float weights: rows that are not whole vectors, long and short rows, alone and with a norm.
fn floats(cases: &mut Vec<Case>, dtype: DType) {
    for m in [1, 2, 3, 4, 9] {
        for (n, k) in [(1, 8), (5, 4), (131, 1000), (65, 1004), (529, 520), (33, 2055)] {
            cases.push(mul_mat("rows/", dtype, m, n, k));
        }
        for k in [8, 520, 1002, 2056] {
            cases.push(normed(dtype, m, [67, 0, 0], false, k));
            cases.push(normed(dtype, m, [141, 33, 1], false, k));
            cases.push(normed(dtype, m, [139, 0, 0], true, k));
        }
        for epilogue in EPILOGUES {
            cases.push(linear(epilogue, dtype, m, 401, 1000));
        }
        cases.push(norm_residual(dtype, m, 1000));
    }
    // Rows of x that leave little of the shared memory of a block, or that do not fit.
    for (m, k) in [(1, 24_000), (1, 44_008), (1, 60_000), (2, 24_000), (3, 24_000), (4, 9728)] {
        cases.push(mul_mat("long/", dtype, m, 9, k));
    }
    cases.push(normed(dtype, 1, [2560, 0, 0], false, 24_000).large());
    cases.push(normed(dtype, 1, [9728, 0, 0], true, 2560).large());
}

/// The matmuls of real models: decode at batch 1, decode of a batch, and prefill.
fn real(cases: &mut Vec<Case>, dtype: DType) {
    for model in &MODELS {
        let (hidden, inner) = (model.hidden, model.inner);
        let (q, kv) = (model.heads.q_width(), model.heads.kv_width());
        for (n, k) in [(q, hidden), (kv, hidden), (hidden, q), (inner, hidden), (hidden, inner)] {
            if !fits(dtype, k) {
                continue;
            }
            for m in [1, 5, 16, 33] {
                let case = mul_mat(&format!("{}/", model.name), dtype, m, n, k).large();
                let timed = m == 1 && (n, k) == (inner, hidden);
                if !cases.iter().any(|other| other.name == case.name) {
                    cases.push(if timed { case.timed() } else { case });
                }
            }
        }
        if fits(dtype, hidden) {
            for m in [1, 11, 16, 17] {
                let case = gate_up(&format!("{}/", model.name), [dtype; 2], m, inner, hidden).large();
                cases.push(if m == 1 { case.timed() } else { case });
            }
        }
    }
    // Rows too long for the shared memory of a block, and as many weight tiles as a large model has.
    if matches!(dtype, DType::Q4_K | DType::Q6_K) {
        cases.push(mul_mat("large/", dtype, 16, 17920, 6144).large());
    }
    if dtype == DType::Q4_K {
        cases.push(gate_up("large/", [dtype; 2], 16, 17920, 6144).large());
    }
    if matches!(dtype, DType::F32 | DType::F16 | DType::Q4_K | DType::Q8_0) {
        let name = format!("{}/", QWEN3_4B.name);
        cases.push(mul_mat(&name, dtype, 512, 2560, 2560).large().timed());
    }
}

/// LM heads: from the last hidden row to the vocabulary.
fn lm_heads(cases: &mut Vec<Case>) {
    for (model, dtype) in [
        (&QWEN3_4B, DType::Q4_K),
        (&QWEN3_4B, DType::Q6_K),
        (&QWEN3_4B, DType::F16),
        (&LLAMA32_1B, DType::Q6_K),
        (&LLAMA32_1B, DType::Q8_0),
        (&SMOLLM2_135M, DType::Q8_0),
        (&SMOLLM2_135M, DType::F16),
    ] {
        let name = format!("{}/lm_head/", model.name);
        cases.push(mul_mat(&name, dtype, 1, model.vocabulary, model.hidden).large().timed());
    }
}
