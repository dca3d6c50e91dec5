//! Collectives of a device alone, which is a group of one rank: the values as they are.

use fulmen_core::{BuildError, GraphBuilder, Sharing, Tensor};

use crate::case::{Case, Tolerance};
use crate::draw::Draw;

type Op = fn(&mut GraphBuilder, Tensor, u32) -> Result<Tensor, BuildError>;

const OPS: [Op; 2] = [GraphBuilder::all_reduce, GraphBuilder::all_gather];

fn case(op: Op, variant: &str, m: u32, n: u32) -> Case {
    let case = Case::new(format!("{variant}{m}x{n}"), |b| {
        let x = b.input("x", m, n)?;
        let x = b.silu(x)?;
        let y = op(b, x, 1)?;
        b.output("y", y)
    });
    case.tolerance(Tolerance::ELEMENT)
}

pub(super) fn cases(cases: &mut Vec<Case>) {
    for op in OPS {
        for (m, n) in [(0, 4), (1, 1), (1, 3), (3, 255), (2, 256), (5, 257), (33, 1024)] {
            cases.push(case(op, "", m, n));
        }
        cases.push(case(op, "in_place/", 3, 64).sharing(Sharing::InPlace));
    }
    for (m, n) in [(1, 1), (5, 64)] {
        let integers = Case::new(format!("integers/{m}x{n}"), |b| {
            let x = b.index_state("x", m, n)?;
            let y = b.all_gather(x, 1)?;
            b.output("y", y)
        });
        // The bits of NaN, infinities and denormal floats among them.
        let words = (0..m * n).map(|i| u32::MAX.wrapping_sub(i.wrapping_mul(0x0083_1fff)));
        cases.push(integers.draw("x", Draw::Ints(words.collect())).tolerance(Tolerance::Exact));
    }
}
