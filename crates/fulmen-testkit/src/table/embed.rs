//! Embedding lookup.

use fulmen_core::{DType, RouteSpec, RouterScores, TablePart};

use super::{FLOATS, LLAMA32_1B, QWEN3_4B, SMOLLM2_135M, fits, weight_types};
use crate::case::{Case, Tolerance};
use crate::draw::Draw;

fn embed(name: &str, dtype: DType, rows: u32, width: u32, tokens: Draw, m: u32) -> Case {
    let case = Case::new(name, |b| {
        let (table, tokens) = (b.weight("table", dtype, rows, width)?, b.indices("tokens", m)?);
        let y = b.embed(table, tokens)?;
        b.output("y", y)
    });
    // Floating-point types are exact; dequantization may use fused multiply-adds.
    let tolerance = if FLOATS.contains(&dtype) { Tolerance::Exact } else { Tolerance::ELEMENT };
    case.dtype(dtype).draw("tokens", tokens).tolerance(tolerance)
}

/// The part of a table that a rank has: 37 rows of 200.
fn part(name: &str, dtype: DType, width: u32, first: u32, m: u32) -> Case {
    let case = Case::new(format!("part/{name}/m{m}/37x{width}"), |b| {
        let (table, tokens) = (b.weight("table", dtype, 37, width)?, b.indices("tokens", m)?);
        let y = b.embed_part(table, tokens, TablePart { first, of: 200 })?;
        b.output("y", y)
    });
    let tolerance = if FLOATS.contains(&dtype) { Tolerance::Exact } else { Tolerance::ELEMENT };
    // The rows around both ends of the part are among the first tokens.
    let edges = [first, first.wrapping_sub(1), first + 36, first + 37, 0, 199];
    let tokens =
        (0..m).map(|i| *edges.get(i as usize).filter(|&&token| token < 200).unwrap_or(&(i * 7 % 200)));
    case.dtype(dtype).draw("tokens", Draw::Ints(tokens.collect())).tolerance(tolerance)
}

/// Several tokens in a row: their rows side by side. The tokens are the experts that a router selects.
fn several(width: u32, m: u32) -> Case {
    let case = Case::new(format!("several/m{m}/8x{width}"), |b| {
        let (table, logits) = (b.weight("table", DType::F32, 8, width)?, b.input("logits", m, 8)?);
        let spec = RouteSpec { renormalize: true, ..RouteSpec::new(3, RouterScores::Softmax) };
        let routed = b.route(logits, None, spec)?;
        let y = b.embed(table, routed.ids)?;
        b.output("y", y)
    });
    case.dtype(DType::F32).tolerance(Tolerance::Exact)
}

pub(super) fn cases(cases: &mut Vec<Case>) {
    for (width, m) in [(1, 1), (1, 5), (1, 37), (3, 4), (64, 2)] {
        cases.push(several(width, m));
    }
    for dtype in weight_types() {
        for width in [1, 3, 32, 96, 256, 257, 576, 768, 2048, 2560] {
            if !fits(dtype, width) {
                continue;
            }
            for m in [1, 5] {
                let name = format!("m{m}/37x{width}");
                cases.push(embed(&name, dtype, 37, width, Draw::Below(37), m));
            }
        }
        for (name, first) in [("begin", 0), ("middle", 80), ("end", 163)] {
            for m in [1, 31] {
                cases.push(part(name, dtype, 512, first, m));
            }
        }
        let edges = Draw::Ints(vec![0, 36, 36, 0, 1]);
        cases.push(embed("edges/37x512", dtype, 37, 512, edges, 5));
        cases.push(embed("m0/37x256", dtype, 37, 256, Draw::Ints(vec![]), 0));
        cases.push(embed("one_row/1x256", dtype, 1, 256, Draw::Ints(vec![0, 0]), 2));
        if dtype.is_quantized() {
            let case = embed("blocks/37x1024", dtype, 37, 1024, Draw::Below(37), 37);
            cases.push(case.draw("table", Draw::Blocks));
        }
    }
    for (model, dtype) in [
        (&QWEN3_4B, DType::Q4_K),
        (&QWEN3_4B, DType::Q6_K),
        (&LLAMA32_1B, DType::Q6_K),
        (&LLAMA32_1B, DType::Q8_0),
        (&SMOLLM2_135M, DType::Q8_0),
        (&SMOLLM2_135M, DType::F16),
    ] {
        let name = format!("{}/m32/{}x{}", model.name, model.vocabulary, model.hidden);
        let mut tokens: Vec<u32> = (0..32).map(|i| i * (model.vocabulary / 37)).collect();
        tokens[31] = model.vocabulary - 1;
        cases.push(
            embed(&name, dtype, model.vocabulary, model.hidden, Draw::Ints(tokens), 32).large().timed(),
        );
    }
}
