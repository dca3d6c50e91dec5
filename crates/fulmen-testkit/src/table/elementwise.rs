//! Element-wise ops and copies.

use fulmen_core::{BinaryKind, BuildError, GraphBuilder, Sharing, Tensor, UnaryKind};

use super::at;
use crate::case::{Case, Tolerance};
use crate::draw::Draw;

/// Rows and width: odd ones, empty, and those of real models.
const SHAPES: [(u32, u32); 16] = [
    (1, 1),
    (1, 3),
    (3, 1),
    (1, 255),
    (1, 256),
    (1, 257),
    (3, 257),
    (0, 256),
    (1, 576),
    (1, 2048),
    (1, 2560),
    (5, 2560),
    (64, 1536),
    (1, 9728),
    (17, 8192),
    (33, 9728),
];

/// The largest one-dimensional grid of workgroups of 256 threads.
const BEYOND_A_GRID: u32 = 65_535 * 256;

const INF: f32 = f32::INFINITY;
/// No value is subnormal, nor is any activation of one: an infinity times a value that a device flushes to
/// zero would be NaN.
const SPECIAL: [f32; 16] =
    [0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30, 1e38, -1e38, 80.0, -80.0, 1e4, -1e4, INF, -INF, f32::NAN, 0.5];

/// Values that are subnormal, or whose activations are.
const SMALL: [f32; 10] = [1e-45, -1e-45, 1e-40, -1e-40, 1e-38, -1e-38, -88.0, -95.0, -104.0, -1e30];

type Record = fn(&mut GraphBuilder, Tensor, Tensor) -> Result<Tensor, BuildError>;

/// Each op as a function of two tensors; unary ops ignore the second.
const OPS: &[(&str, Record)] = &[
    ("add", |b, x, y| b.add(x, y)),
    ("mul", |b, x, y| b.mul(x, y)),
    ("swiglu", |b, x, y| b.binary(BinaryKind::SwiGlu, x, y)),
    ("silu", |b, x, _| b.silu(x)),
    ("gelu", |b, x, _| b.unary(UnaryKind::Gelu, x)),
    ("gelu_tanh", |b, x, _| b.unary(UnaryKind::GeluTanh, x)),
    ("relu2", |b, x, _| b.relu2(x)),
    ("scale", |b, x, _| b.unary(UnaryKind::Scale(-0.37), x)),
    ("softcap", |b, x, _| b.soft_cap(x, 1.5)),
    ("copy", |b, x, _| b.copy(x)),
];

/// Those of [`OPS`] with these names.
fn named(names: &[&str]) -> impl Iterator<Item = (&'static str, Record)> {
    OPS.iter().copied().filter(|(name, _)| names.contains(name))
}

fn tolerance(op: &str) -> Tolerance {
    if op == "copy" { Tolerance::Exact } else { Tolerance::ELEMENT }
}

fn case(name: &str, record: Record, rows: u32, width: u32) -> Case {
    let case = Case::new(name, |b| {
        let (x, y) = (b.input("x", rows, width)?, b.input("y", rows, width)?);
        let z = record(b, x, y)?;
        b.output("z", z)
    });
    let tolerance = tolerance(case.op);
    case.tolerance(tolerance)
}

pub(super) fn cases(cases: &mut Vec<Case>) {
    for &(op, record) in OPS {
        for (rows, width) in SHAPES {
            let case = case(&format!("{rows}x{width}"), record, rows, width);
            let real = matches!((rows, width), (1, 2560) | (33, 9728));
            cases.push(if real { case.timed() } else { case });
        }
        cases.push(specials(op, record));
        let small = case("small", record, 1, SMALL.len() as u32);
        cases.push(small.draw("x", Draw::Floats(SMALL.to_vec())));
        cases.push(in_place(record));
    }
    for (name, record) in named(&["add", "silu", "scale", "copy"]) {
        let widths = if name == "add" { &[-1, 0, 1][..] } else { &[1] };
        for &by in widths {
            let width = BEYOND_A_GRID.saturating_add_signed(by);
            cases.push(case(&format!("1x{width}"), record, 1, width).large());
        }
    }
    for (_, record) in named(&["add", "mul", "scale"]) {
        cases.push(exact(record));
    }
    for (_, record) in named(&["add", "mul", "swiglu"]) {
        cases.push(same_operand(record));
    }
    // Caps of real models, and caps whose square overflows f32.
    for cap in [30.0, 50.0, 1e-30, 1e30] {
        cases.push(soft_cap(cap));
    }
}

/// Infinities, NaN, zeros and values at the ends of the range, every pair of them.
fn specials(op: &str, record: Record) -> Case {
    let n = SPECIAL.len();
    let x: Vec<f32> = (0..n * n).map(|i| SPECIAL[i / n]).collect();
    let y: Vec<f32> = (0..n * n).map(|i| SPECIAL[i % n]).collect();
    let case = Case::new("special", |b| {
        let (x, y) = (b.input("x", n as u32, n as u32)?, b.input("y", n as u32, n as u32)?);
        let z = record(b, x, y)?;
        b.output("z", z)
    });
    case.draw("x", Draw::Floats(x)).draw("y", Draw::Floats(y)).tolerance(tolerance(op))
}

/// Sums and products are rounded once from the exact result, and so is the reference: bit for bit, including
/// the signs of zeros. No subnormal values: devices may flush them.
fn exact(record: Record) -> Case {
    let mut special = at(&[0.0, -0.0, -0.0, 0.0, 1.5, -1.5, 3e38, -3e38, INF, -INF, INF]);
    special.extend([(20, 0.0), (21, -0.0)]);
    let case = Case::new("exact", |b| {
        let (x, y) = (b.input("x", 3, 100)?, b.input("y", 3, 100)?);
        let z = record(b, x, y)?;
        b.output("z", z)
    });
    let y = at(&[0.0, -0.0, 0.0, -0.0, -1.5, 1.5, 3e38, 3e38, INF, INF, -2.0]);
    case.draw("x", Draw::With(special)).draw("y", Draw::With(y)).tolerance(Tolerance::Exact)
}

/// Inputs below and above the cap, and its limits.
fn soft_cap(cap: f32) -> Case {
    let case = Case::new(format!("cap{cap:e}/3x257"), |b| {
        let x = b.input("x", 3, 257)?;
        let z = b.soft_cap(x, cap)?;
        b.output("z", z)
    });
    let special = [INF, -INF, f32::NAN, 0.0, -0.0];
    let x = (0..3 * 257).map(|i| special.get(i).copied().unwrap_or((i as f32 - 400.0) / 100.0 * cap));
    case.draw("x", Draw::Floats(x.collect()))
}

/// One tensor as both operands.
fn same_operand(record: Record) -> Case {
    Case::new("same_operand", |b| {
        let x = b.input("x", 3, 257)?;
        let z = record(b, x, x)?;
        b.output("z", z)
    })
}

/// The op overwrites its first operand.
fn in_place(record: Record) -> Case {
    let case = Case::new("in_place", |b| {
        let (x, y) = (b.input("x", 5, 300)?, b.input("y", 5, 300)?);
        let sum = b.add(x, y)?;
        let z = record(b, sum, y)?;
        b.output("z", z)
    });
    case.sharing(Sharing::InPlace)
}
