//! Rotary position embedding.

use fulmen_core::{RopePairing, RopeSpec, Rotation, Sharing};

use super::MODELS;
use crate::case::Case;
use crate::draw::Draw;

struct RopeCase {
    rows: u32,
    n_heads: u32,
    head_dim: u32,
    spec: RopeSpec,
    factors: bool,
}

fn rope(name: &str, rope_case: &RopeCase, positions: Draw, sharing: Sharing) -> Case {
    let &RopeCase { rows, n_heads, head_dim, spec, factors } = rope_case;
    let case = Case::new(name, |b| {
        let x = b.input("x", rows, n_heads * head_dim)?;
        let positions = b.indices("positions", rows)?;
        let factors = if factors { Some(b.vector("factors", spec.n_rot / 2)?) } else { None };
        let x = if sharing == Sharing::InPlace { b.add(x, x)? } else { x };
        let y = b.rope(x, head_dim, Rotation { spec, positions, factors })?;
        b.output("y", y)
    });
    let case = case.draw("positions", positions).sharing(sharing);
    if factors { case.draw("factors", Draw::Normal(4.0, 0.5)) } else { case }
}

pub(super) fn cases(cases: &mut Vec<Case>) {
    for pairing in [RopePairing::Interleaved, RopePairing::NeoX] {
        let style = match pairing {
            RopePairing::Interleaved => "interleaved",
            RopePairing::NeoX => "neox",
        };
        let mut add = |name: &str, rows: u32, n_heads: u32, head_dim: u32, positions: Draw| {
            let spec = RopeSpec::new(pairing, head_dim, 10_000.0);
            let rope_case = RopeCase { rows, n_heads, head_dim, spec, factors: false };
            let name = format!("{style}/{name}{rows}x{n_heads}x{head_dim}");
            cases.push(rope(&name, &rope_case, positions, Sharing::Never));
        };
        for head_dim in [2, 4, 6, 32, 64, 80, 128, 256] {
            for (rows, n_heads) in [(1, 1), (1, 9), (3, 2), (17, 3)] {
                add("", rows, n_heads, head_dim, Draw::Below(4096));
            }
        }
        add("position_0/", 3, 4, 64, Draw::Ints(vec![0; 3]));
        add("large_positions/", 3, 4, 128, Draw::Ints(vec![131_071, 131_072, 1_000_000]));
        add("equal_positions/", 4, 2, 64, Draw::Ints(vec![77; 4]));
        add("empty/", 0, 2, 64, Draw::Ints(vec![]));

        for model in &MODELS {
            let heads = model.heads;
            for rows in [1, 33] {
                let spec = RopeSpec::new(pairing, heads.head_dim, 1_000_000.0);
                let (n_heads, head_dim) = (heads.n_heads, heads.head_dim);
                let rope_case = RopeCase { rows, n_heads, head_dim, spec, factors: false };
                let name = format!("{style}/{}/{rows}x{n_heads}x{head_dim}", model.name);
                let run = Draw::Ints((100..100 + rows).collect());
                cases.push(rope(&name, &rope_case, run, Sharing::Never).timed());
            }
        }

        let plain = RopeSpec::new(pairing, 64, 500_000.0);
        for (name, spec, factors) in [
            ("partial", RopeSpec { n_rot: 20, ..plain }, false),
            ("one_pair", RopeSpec { n_rot: 2, ..plain }, false),
            ("freq_scale", RopeSpec { freq_scale: 0.125, ..plain }, false),
            ("magnitude", RopeSpec { magnitude: 1.2, ..plain }, false),
            ("factors", plain, true),
            ("all_options", RopeSpec { n_rot: 48, freq_scale: 0.25, magnitude: 0.9, ..plain }, true),
        ] {
            for rows in [1, 5] {
                let rope_case = RopeCase { rows, n_heads: 3, head_dim: 64, spec, factors };
                let name = format!("{style}/{name}/{rows}x3x64");
                cases.push(rope(&name, &rope_case, Draw::Below(4096), Sharing::Never));
            }
        }
        let rope_case = RopeCase { rows: 5, n_heads: 3, head_dim: 64, spec: plain, factors: false };
        let name = format!("{style}/in_place/5x3x64");
        cases.push(rope(&name, &rope_case, Draw::Below(4096), Sharing::InPlace));
        // A NaN or infinity affects only its pair.
        let name = format!("{style}/special/5x3x64");
        let special = vec![(7, f32::NAN), (70, f32::INFINITY), (200, f32::NEG_INFINITY)];
        let case = rope(&name, &rope_case, Draw::Below(4096), Sharing::Never);
        cases.push(case.draw("x", Draw::With(special)));
    }
}
