//! Rotary position embedding.

use fulmen_core::{RopePairing, RopeSpec, Rotation, Sharing};

use super::MODELS;
use crate::case::Case;
use crate::draw::Draw;

struct Turn {
    rows: u32,
    n_heads: u32,
    head_dim: u32,
    spec: RopeSpec,
    factors: bool,
}

fn rope(name: &str, turn: &Turn, positions: Draw, sharing: Sharing) -> Case {
    let &Turn { rows, n_heads, head_dim, spec, factors } = turn;
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
            RopePairing::Interleaved => "adjacent",
            RopePairing::NeoX => "halves",
        };
        let mut add = |name: &str, rows: u32, n_heads: u32, head_dim: u32, positions: Draw| {
            let spec = RopeSpec::new(pairing, head_dim, 10_000.0);
            let turn = Turn { rows, n_heads, head_dim, spec, factors: false };
            let name = format!("{style}/{name}{rows}x{n_heads}x{head_dim}");
            cases.push(rope(&name, &turn, positions, Sharing::Never));
        };
        for head_dim in [2, 4, 6, 32, 64, 80, 128, 256] {
            for (rows, n_heads) in [(1, 1), (1, 9), (3, 2), (17, 3)] {
                add("", rows, n_heads, head_dim, Draw::Below(4096));
            }
        }
        add("zero/", 3, 4, 64, Draw::Ints(vec![0; 3]));
        add("far/", 3, 4, 128, Draw::Ints(vec![131_071, 131_072, 1_000_000]));
        add("equal/", 4, 2, 64, Draw::Ints(vec![77; 4]));
        add("none/", 0, 2, 64, Draw::Ints(vec![]));

        for model in &MODELS {
            let heads = model.heads;
            for rows in [1, 33] {
                let spec = RopeSpec::new(pairing, heads.head_dim, 1_000_000.0);
                let (n_heads, head_dim) = (heads.n_heads, heads.head_dim);
                let turn = Turn { rows, n_heads, head_dim, spec, factors: false };
                let name = format!("{style}/{}/{rows}x{n_heads}x{head_dim}", model.name);
                let run = Draw::Ints((100..100 + rows).collect());
                cases.push(rope(&name, &turn, run, Sharing::Never).timed());
            }
        }

        let plain = RopeSpec::new(pairing, 64, 500_000.0);
        for (name, spec, factors) in [
            ("partial", RopeSpec { n_rot: 20, ..plain }, false),
            ("one_pair", RopeSpec { n_rot: 2, ..plain }, false),
            ("stretched", RopeSpec { freq_scale: 0.125, ..plain }, false),
            ("magnitude", RopeSpec { magnitude: 1.2, ..plain }, false),
            ("factors", plain, true),
            ("everything", RopeSpec { n_rot: 48, freq_scale: 0.25, magnitude: 0.9, ..plain }, true),
        ] {
            for rows in [1, 5] {
                let turn = Turn { rows, n_heads: 3, head_dim: 64, spec, factors };
                let name = format!("{style}/{name}/{rows}x3x64");
                cases.push(rope(&name, &turn, Draw::Below(4096), Sharing::Never));
            }
        }
        let turn = Turn { rows: 5, n_heads: 3, head_dim: 64, spec: plain, factors: false };
        let name = format!("{style}/in_place/5x3x64");
        cases.push(rope(&name, &turn, Draw::Below(4096), Sharing::InPlace));
        // A NaN spoils its pair, an infinity too, and nothing else.
        let name = format!("{style}/special/5x3x64");
        let special = vec![(7, f32::NAN), (70, f32::INFINITY), (200, f32::NEG_INFINITY)];
        let case = rope(&name, &turn, Draw::Below(4096), Sharing::Never);
        cases.push(case.draw("x", Draw::With(special)));
    }
}
