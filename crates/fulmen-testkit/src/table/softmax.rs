//! Softmax over rows.

use fulmen_core::Sharing;

use crate::case::{Case, Tolerance};
use crate::draw::Draw;

fn softmax(name: &str, rows: u32, width: u32, scale: f32) -> Case {
    let case = Case::new(name, |b| {
        let x = b.input("x", rows, width)?;
        let y = b.softmax(x, scale)?;
        b.output("y", y)
    });
    case.tolerance(Tolerance::SOFTMAX)
}

pub(super) fn cases(cases: &mut Vec<Case>) {
    for width in [1, 2, 3, 31, 255, 256, 257, 1000, 2048, 4097] {
        for rows in [1, 3, 32] {
            cases.push(softmax(&format!("{rows}x{width}"), rows, width, 1.0));
        }
    }
    cases.push(softmax("0x256", 0, 256, 1.0));
    cases.push(softmax("scores/32x2048", 32, 2048, 0.088_388_35).timed());
    cases.push(softmax("1x151936", 1, 151_936, 1.0).timed());
    for scale in [0.0, 0.125, -2.0, 30.0] {
        cases.push(softmax(&format!("scale_{scale}/3x300"), 3, 300, scale));
    }
    cases.push(softmax("large_spread/3x300", 3, 300, 1.0).draw("x", Draw::Normal(0.0, 1000.0)));
    cases.push(softmax("large/3x300", 3, 300, 1.0).draw("x", Draw::Normal(1e30, 1.0)));

    // Masked elements get 0, a fully masked row is zero, and a NaN affects only its own row.
    let mask = f32::NEG_INFINITY;
    let mut rows = vec![0.25; 4 * 70];
    rows[3] = mask;
    rows[69] = mask;
    rows[70..140].fill(mask);
    rows[150] = f32::NAN;
    cases.push(softmax("special/4x70", 4, 70, 1.0).draw("x", Draw::Floats(rows)));
    let one = (0..2 * 257).map(|i| if i == 100 || i == 257 + 256 { 3.0 } else { mask }).collect();
    cases.push(softmax("all_but_one/2x257", 2, 257, 1.0).draw("x", Draw::Floats(one)));

    let in_place = Case::new("in_place/5x300", |b| {
        let x = b.input("x", 5, 300)?;
        let sum = b.add(x, x)?;
        let y = b.softmax(sum, 0.5)?;
        b.output("y", y)
    });
    cases.push(in_place.tolerance(Tolerance::SOFTMAX).sharing(Sharing::InPlace));
}
