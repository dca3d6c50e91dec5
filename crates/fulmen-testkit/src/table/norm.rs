//! RMS norm, alone and with a residual addition.

use fulmen_core::Sharing;

use super::{MODELS, at};
use crate::case::Case;
use crate::draw::Draw;

fn rms_norm(name: &str, rows: u32, width: u32, head: u32, epsilon: f32) -> Case {
    let case = Case::new(name, |b| {
        let (x, gamma) = (b.input("x", rows, width)?, b.vector("gamma", head)?);
        let y = b.rms_norm(x, gamma, epsilon)?;
        b.output("y", y)
    });
    case.draw("gamma", Draw::GAIN)
}

fn add_rms_norm(name: &str, rows: u32, width: u32, sharing: Sharing) -> Case {
    let case = Case::new(name, |b| {
        let (x, y) = (b.input("x", rows, width)?, b.input("y", rows, width)?);
        let gamma = b.vector("gamma", width)?;
        // A computed operand, so that the sum may overwrite it.
        let a = if sharing == Sharing::InPlace { b.add(x, y)? } else { x };
        let (normed, sum) = b.add_rms_norm(a, y, gamma, 1e-5)?;
        b.output("normed", normed)?;
        b.output("sum", sum)
    });
    case.draw("gamma", Draw::GAIN).sharing(sharing)
}

/// A norm whose result is added to the residual stream (post-norm), which a device may run as one kernel, and
/// the norm of the sum. All results are outputs unless they are computed in place.
fn post_norm(name: &str, rows: u32, width: u32, sharing: Sharing) -> Case {
    let case = Case::new(name, |b| {
        let (x, y) = (b.input("x", rows, width)?, b.input("y", rows, width)?);
        let gamma = b.vector("gamma", width)?;
        let in_place = sharing == Sharing::InPlace;
        // Computed operands, so that they may be overwritten.
        let (update, stream) = if in_place { (b.add(x, y)?, b.add(y, y)?) } else { (x, y) };
        let normed = b.rms_norm(update, gamma, 1e-5)?;
        let sum = b.add(stream, normed)?;
        if !in_place {
            b.output("normed", normed)?;
        }
        b.output("sum", sum)?;
        let next = b.rms_norm(sum, gamma, 1e-5)?;
        b.output("next", next)
    });
    case.draw("gamma", Draw::GAIN).sharing(sharing)
}

fn mean_squares(name: &str, rows: u32, [a, b]: [u32; 2]) -> Case {
    Case::new(name, |builder| {
        let (x, y) = (builder.input("x", rows, a)?, builder.input("y", rows, b)?);
        let means = builder.mean_squares(x, y)?;
        builder.output("means", means)
    })
}

/// A norm of rows of which each of several ranks has a part, with the sum of their means.
fn rms_scale(name: &str, rows: u32, width: u32, ranks: u32, sharing: Sharing) -> Case {
    let case = Case::new(name, |b| {
        let (x, gamma) = (b.input("x", rows, width)?, b.vector("gamma", width)?);
        let (means, column) = (b.input("means", rows, 2)?, rows % 2);
        // A computed operand, so that the result may overwrite it.
        let x = if sharing == Sharing::InPlace { b.add(x, x)? } else { x };
        let y = b.rms_scale(x, (means, column), gamma, ranks, 1e-6)?;
        b.output("y", y)
    });
    let means = (0..2 * rows).map(|at| ranks as f32 * (0.7 + 0.01 * at as f32)).collect();
    case.draw("gamma", Draw::GAIN).draw("means", Draw::Floats(means)).sharing(sharing)
}

/// Both behind each other, as on one rank: the norms of queries and keys.
fn divided_norm(name: &str, rows: u32, [q, k]: [u32; 2]) -> Case {
    let case = Case::new(name, |b| {
        let (q, q_gamma) = (b.input("q", rows, q)?, b.vector("q_gamma", q)?);
        let (k, k_gamma) = (b.input("k", rows, k)?, b.vector("k_gamma", k)?);
        let means = b.mean_squares(q, k)?;
        let means = b.all_reduce(means, 1)?;
        let q = b.rms_scale(q, (means, 0), q_gamma, 1, 1e-6)?;
        let k = b.rms_scale(k, (means, 1), k_gamma, 1, 1e-6)?;
        b.output("q_normed", q)?;
        b.output("k_normed", k)
    });
    case.draw("q_gamma", Draw::GAIN).draw("k_gamma", Draw::GAIN)
}

fn divided(cases: &mut Vec<Case>) {
    for width in [1, 2, 3, 31, 255, 256, 257, 1024, 2560] {
        for rows in [1, 2, 5, 33] {
            let other = width / 2 + 1;
            cases.push(mean_squares(&format!("{rows}x{width}+{other}"), rows, [width, other]));
            cases.push(rms_scale(&format!("{rows}x{width}"), rows, width, 1 + rows % 4, Sharing::Never));
        }
        cases.push(divided_norm(&format!("divided/7x{width}"), 7, [width, width / 3 + 1]));
    }
    // OLMo 2 7B on two ranks.
    for rows in [1, 128] {
        cases.push(mean_squares(&format!("olmo2-7b/{rows}x2048+2048"), rows, [2048; 2]).timed());
        cases.push(rms_scale(&format!("olmo2-7b/{rows}x2048"), rows, 2048, 2, Sharing::Never).timed());
    }
    cases.push(mean_squares("0x64+32", 0, [64, 32]));
    cases.push(rms_scale("0x64", 0, 64, 2, Sharing::Never));
    cases.push(rms_scale("in_place/5x300", 5, 300, 2, Sharing::InPlace));
    let special = vec![(300, f32::NAN), (650, f32::INFINITY)];
    cases.push(mean_squares("special/4x300+4", 4, [300, 4]).draw("x", Draw::With(special.clone())));
    cases.push(rms_scale("special/4x300", 4, 300, 2, Sharing::Never).draw("x", Draw::With(special)));
    let means = vec![0.0, 0.0, f32::NAN, f32::NAN, f32::INFINITY, f32::INFINITY, 1.0, 1.0];
    cases.push(rms_scale("means/4x300", 4, 300, 2, Sharing::Never).draw("means", Draw::Floats(means)));
    cases.push(mean_squares("zeros/2x300+300", 2, [300; 2]).draw("x", Draw::Floats(vec![0.0; 600])));
}

pub(super) fn cases(cases: &mut Vec<Case>) {
    for width in [1, 2, 3, 31, 255, 256, 257, 576, 1024, 2048, 2560, 4096] {
        for rows in [1, 2, 5, 33] {
            cases.push(rms_norm(&format!("{rows}x{width}"), rows, width, width, 1e-6));
            cases.push(add_rms_norm(&format!("{rows}x{width}"), rows, width, Sharing::Never));
            cases.push(post_norm(&format!("post/{rows}x{width}"), rows, width, Sharing::Never));
        }
    }
    for model in &MODELS {
        for rows in [1, 128] {
            let name = format!("{}/{rows}x{}", model.name, model.hidden);
            cases.push(rms_norm(&name, rows, model.hidden, model.hidden, 1e-6).timed());
            cases.push(add_rms_norm(&name, rows, model.hidden, Sharing::Never).timed());
        }
        for rows in [1, 7] {
            let heads = model.heads;
            let name = format!("{}/heads/{rows}x{}x{}", model.name, heads.n_heads, heads.head_dim);
            cases.push(rms_norm(&name, rows, heads.q_width(), heads.head_dim, 1e-6));
        }
    }
    divided(cases);
    cases.push(rms_norm("heads/3x5x33", 3, 165, 33, 1e-5));
    cases.push(rms_norm("0x256", 0, 256, 256, 1e-6));
    cases.push(add_rms_norm("0x256", 0, 256, Sharing::Never));
    cases.push(rms_norm("epsilon_0/4x300", 4, 300, 300, 0.0));
    cases.push(rms_norm("epsilon_1/4x300", 4, 300, 300, 1.0));
    cases.push(rms_norm("zeros/2x300", 2, 300, 300, 1e-6).draw("x", Draw::Floats(vec![0.0; 600])));
    cases.push(rms_norm("small/2x300", 2, 300, 300, 0.0).draw("x", Draw::Normal(0.0, 1e-15)));
    cases.push(rms_norm("big/2x300", 2, 300, 300, 1e-6).draw("x", Draw::Normal(0.0, 1e15)));
    // The second row has a NaN, which must not affect the others.
    let nan = vec![(300, f32::NAN)];
    cases.push(rms_norm("nan_row/3x300", 3, 300, 300, 1e-6).draw("x", Draw::With(nan.clone())));
    cases.push(add_rms_norm("nan_row/3x300", 3, 300, Sharing::Never).draw("x", Draw::With(nan)));
    cases.push(add_rms_norm("in_place/5x300", 5, 300, Sharing::InPlace));
    cases.push(post_norm("post/in_place/5x300", 5, 300, Sharing::InPlace));
    cases.push(post_norm("post/wide/2x5000", 2, 5000, Sharing::Never));
    cases.push(post_norm("post/wide/2x4099", 2, 4099, Sharing::InPlace));
    let zeros = at(&[0.0; 16]);
    cases.push(add_rms_norm("zeros/1x16", 1, 16, Sharing::Never).draw("x", Draw::With(zeros)));
    let in_place = Case::new("in_place/5x300", |b| {
        let (x, gamma) = (b.input("x", 5, 300)?, b.vector("gamma", 100)?);
        let sum = b.add(x, x)?;
        let y = b.rms_norm(sum, gamma, 1e-6)?;
        b.output("y", y)
    });
    cases.push(in_place.sharing(Sharing::InPlace));
}
