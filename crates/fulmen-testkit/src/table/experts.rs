//! Mixture of experts: gate-up and down by expert id, and behind a router.

use fulmen_core::{
    DType, ExpertGroups, ExpertLinear, ExpertPart, GatedActivation, NO_EXPERT, RouteSpec, Routed,
    RouterScores, Sharing,
};

use super::matmul::{chained_tolerance, tolerance};
use super::routing::{Experts, SPECS};
use super::{BLOCKS_32, FLOATS, at, fits, weight_types};
use crate::case::{Case, Tolerance};
use crate::draw::Draw;

/// Ids of `m` rows: different ones in each row, spread over all experts but the first `unused`.
fn ids(m: u32, experts: Experts, unused: u32) -> Draw {
    let (range, mut ids) = (experts.count - unused, Vec::new());
    for row in 0..m {
        let first = ((u64::from(row) * 0x9e37_79b9) >> 7) as u32 % range;
        // Steps that have no factor in common with the range visit every expert once.
        let step = (1 + row % 7..).find(|step| gcd(*step, range) == 1).unwrap_or(1);
        ids.extend((0..experts.top).map(|slot| unused + (first + slot * step) % range));
    }
    Draw::Ints(ids)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// All rows have the same experts, the last ones.
fn same_ids(m: u32, experts: Experts) -> Draw {
    let row = (0..experts.top).map(|slot| experts.count - 1 - slot);
    Draw::Ints((0..m).flat_map(|_| row.clone()).collect())
}

/// Ids of rows where a device has some of the experts only: every third pair has none, and so has the whole
/// second row, if there are several.
fn some_ids(m: u32, experts: Experts) -> Draw {
    let Draw::Ints(mut ids) = ids(m, experts, 0) else { unreachable!("ids are integers") };
    for (pair, id) in (0u32..).zip(&mut ids) {
        if pair % 3 == 1 || pair / experts.top == 1 {
            *id = NO_EXPERT;
        }
    }
    Draw::Ints(ids)
}

fn routed(
    b: &mut fulmen_core::GraphBuilder,
    m: u32,
    experts: Experts,
) -> Result<Routed, fulmen_core::BuildError> {
    let ids = b.index_state("ids", m, experts.top)?;
    let weights = b.input("weights", m, experts.top)?;
    Ok(Routed { weights, ids, n_experts: experts.count })
}

#[derive(Clone, Copy)]
struct Shape {
    experts: Experts,
    n: u32,
    k: u32,
}

const fn shape(count: u32, top: u32, n: u32, k: u32) -> Shape {
    Shape { experts: Experts { count, top }, n, k }
}

impl Shape {
    fn name(self, m: u32) -> String {
        let Shape { experts: Experts { count, top }, n, k } = self;
        format!("m{m}/{top}of{count}/{n}x{k}")
    }
}

fn looser(types: [DType; 2]) -> Tolerance {
    let quantized = types.iter().any(|dtype| tolerance(*dtype) == Tolerance::QUANTIZED_MATMUL);
    if quantized { Tolerance::QUANTIZED_MATMUL } else { Tolerance::FLOAT_MATMUL }
}

fn gate_up(
    name: &str,
    types: [DType; 2],
    m: u32,
    shape: Shape,
    bias: bool,
    activation: GatedActivation,
) -> Case {
    let Shape { experts, n, k } = shape;
    let rows = experts.count * n;
    let case = Case::new(format!("{name}{}", shape.name(m)), |b| {
        let (x, routed) = (b.input("x", m, k)?, routed(b, m, experts)?);
        let mut linears = Vec::new();
        for (name, dtype) in ["gate", "up"].into_iter().zip(types) {
            let weight = b.weight(name, dtype, rows, k)?;
            let bias = if bias {
                Some(b.weight(&format!("{name}.bias"), DType::F32, experts.count, n)?)
            } else {
                None
            };
            linears.push(ExpertLinear { weight, bias });
        }
        let y = b.expert_gate_up(x, routed, [linears[0], linears[1]], activation)?;
        b.output("y", y)
    });
    // Ordinary magnitudes, so that the gate is not saturated.
    let case = case.draw("x", Draw::Normal(0.0, 1.5 / (k.max(1) as f32).sqrt()));
    case.draw("ids", ids(m, experts, 0)).dtype(types[0]).tolerance(looser(types))
}

/// What a down projection adds.
#[derive(Clone, Copy, PartialEq)]
enum Added {
    Nothing,
    BiasAndResidual,
    ResidualInPlace,
}

fn down(name: &str, dtype: DType, m: u32, shape: Shape, added: Added) -> Case {
    let Shape { experts, n, k } = shape;
    let case = Case::new(format!("{name}{}", shape.name(m)), |b| {
        let (x, routed) = (b.input("x", m, experts.top * k)?, routed(b, m, experts)?);
        let weight = b.weight("down", dtype, experts.count * n, k)?;
        let bias = match added {
            Added::BiasAndResidual => Some(b.weight("bias", DType::F32, experts.count, n)?),
            _ => None,
        };
        let residual = match added {
            Added::Nothing => None,
            Added::BiasAndResidual => Some(b.input("residual", m, n)?),
            Added::ResidualInPlace => {
                let residual = b.input("residual", m, n)?;
                Some(b.add(residual, residual)?)
            }
        };
        let y = b.expert_down(x, routed, ExpertLinear { weight, bias }, residual)?;
        b.output("y", y)
    });
    let sharing = if added == Added::ResidualInPlace { Sharing::InPlace } else { Sharing::Never };
    case.draw("ids", ids(m, experts, 0)).dtype(dtype).tolerance(tolerance(dtype)).sharing(sharing)
}

/// A whole mixture of experts: route, gate-up, down, in place of the residual.
fn mixture(name: &str, types: [DType; 2], m: u32, shape: Shape) -> Case {
    mixture_of(name, types, m, shape, ExpertPart { first: 0, count: shape.experts.count })
}

/// The same where only a part of the experts is here.
fn mixture_of(name: &str, [first, last]: [DType; 2], m: u32, shape: Shape, part: ExpertPart) -> Case {
    let (Shape { experts, n, k }, held) = (shape, part.count);
    let route = RouteSpec { top: experts.top, ..SPECS[0].1 };
    let case = Case::new(format!("{name}{}", shape.name(m)), |b| {
        let (x, logits) = (b.input("x", m, k)?, b.input("logits", m, experts.count)?);
        let residual = b.add(x, x)?;
        let routed = match held == experts.count {
            true => b.route(logits, None, route)?,
            false => b.route_part(logits, None, route, part)?,
        };
        let [gate, up] = [b.weight("gate", first, held * n, k)?, b.weight("up", first, held * n, k)?];
        let inner = b.expert_gate_up(x, routed, [gate.into(), up.into()], GatedActivation::SwiGlu)?;
        let down = b.weight("down", last, held * k, n)?;
        let y = b.expert_down(inner, routed, down.into(), Some(residual))?;
        b.output("y", y)
    });
    let case = case.draw("x", Draw::Normal(0.0, 1.5 / (k.max(1) as f32).sqrt()));
    let case = case.draw("logits", Draw::Normal(0.0, 2.0)).dtype(first);
    case.tolerance(chained_tolerance([first, last])).sharing(Sharing::InPlace)
}

/// The second half of a layer: norm, router with a bias, selection, experts with biases and a clamped
/// activation, residual.
fn layer(name: &str, router: DType, experts: DType, m: u32, shape: Shape, scores: RouterScores) -> Case {
    layer_in_groups(name, router, experts, m, shape, scores, None)
}

/// The same with experts in groups.
fn layer_in_groups(
    name: &str,
    router: DType,
    experts: DType,
    m: u32,
    shape: Shape,
    scores: RouterScores,
    groups: Option<ExpertGroups>,
) -> Case {
    let Shape { experts: Experts { count, top }, n, k } = shape;
    let route = RouteSpec { top, scores, groups, ..SPECS[0].1 };
    let case = Case::new(format!("{name}{}", shape.name(m)), |b| {
        let (x, gain) = (b.input("x", m, k)?, b.vector("gain", k)?);
        let h = b.rms_norm(x, gain, 1e-6)?;
        let (weight, bias) = (b.weight("router", router, count, k)?, b.vector("router_bias", count)?);
        let logits = b.linear(h, weight, Some(bias), None)?;
        let routed = b.route(logits, None, route)?;
        let mut linear = |name: &str, rows: u32, k: u32| -> Result<ExpertLinear, fulmen_core::BuildError> {
            let weight = b.weight(name, experts, count * rows, k)?;
            let bias = b.weight(&format!("{name}_bias"), DType::F32, count, rows)?;
            Ok(ExpertLinear { weight, bias: Some(bias) })
        };
        let (gate, up, down) = (linear("gate", n, k)?, linear("up", n, k)?, linear("down", k, n)?);
        let inner = b.expert_gate_up(h, routed, [gate, up], ACTIVATIONS[1].1)?;
        let y = b.expert_down(inner, routed, down, Some(x))?;
        b.output("y", y)
    });
    let case = case.draw("router", Draw::Normal(0.0, 2.0 / (k as f32).sqrt())).draw("gain", Draw::GAIN);
    let small = Draw::Normal(0.0, 1.0 / (k as f32).sqrt());
    let case = case.draw("gate", small.clone()).draw("up", small.clone()).draw("down", small);
    case.dtype(experts).tolerance(Tolerance::CHAINED_MATMULS).sharing(Sharing::InPlace)
}

const ACTIVATIONS: [(&str, GatedActivation); 2] = [
    ("geglu/", GatedActivation::GeGlu),
    ("clamped/", GatedActivation::ClampedSwiGlu { alpha: 1.702, limit: 0.6 }),
];

pub(super) fn cases(cases: &mut Vec<Case>) {
    for dtype in weight_types() {
        matmuls(cases, dtype);
    }
    let swiglu = GatedActivation::SwiGlu;
    for m in [1, 3, 17, 40] {
        cases.push(gate_up("mixed/", [DType::Q4_K, DType::Q6_K], m, shape(7, 3, 33, 512), false, swiglu));
        cases.push(gate_up("mixed/", [DType::Q8_0, DType::F16], m, shape(5, 2, 67, 96), true, swiglu));
        // Small enough for the reference to compute every column, which the next op reads.
        cases.push(mixture("mixture/", [DType::Q4_K, DType::Q6_K], m, shape(12, 4, 256, 256)));
        cases.push(mixture("mixture/", [DType::F32, DType::F32], m, shape(9, 3, 96, 64)));
        for (name, first) in [("first", 0), ("last", 6)] {
            let part = ExpertPart { first, count: 6 };
            for types in [[DType::Q4_K, DType::Q6_K], [DType::Q8_0; 2], [DType::F16, DType::F32]] {
                let name = format!("mixture/part/{name}/{}/", types[0]);
                cases.push(mixture_of(&name, types, m, shape(12, 4, 256, 256), part));
            }
        }
    }
    for m in [1, 2] {
        let scores = RouterScores::SelectedSoftmax;
        cases.push(layer("layer/", DType::F32, DType::Q8_0, m, shape(32, 4, 64, 128), scores));
        cases.push(layer("layer/f16/", DType::F16, DType::MXFP4, m, shape(20, 3, 128, 96), scores));
        cases.push(layer("layer/bf16/", DType::BF16, DType::Q4_K, m, shape(9, 2, 256, 256), scores));
        let (shape, scores) = (shape(130, 8, 64, 64), RouterScores::Softmax);
        cases.push(layer("layer/softmax/", DType::F32, DType::Q8_0, m, shape, scores));
        cases.push(layer("layer/sigmoid/", DType::F32, DType::Q8_0, m, shape, RouterScores::Sigmoid));
        let shape = super::experts::shape(96, 6, 64, 64);
        for (name, groups) in
            [("8of12", ExpertGroups { count: 12, used: 8 }), ("1of8", ExpertGroups { count: 8, used: 1 })]
        {
            for (scores_of, scores) in
                [("softmax", RouterScores::Softmax), ("sigmoid", RouterScores::Sigmoid)]
            {
                let name = format!("layer/groups/{name}/{scores_of}/");
                let case = layer_in_groups(&name, DType::F32, DType::Q8_0, m, shape, scores, Some(groups));
                cases.push(case);
            }
        }
    }
    // Unused experts are not read: theirs are NaN.
    for dtype in [DType::F32, DType::F16] {
        for m in [1, 4, 40] {
            let (shape, nan) = (shape(6, 2, 5, 32), at(&[f32::NAN; 5 * 32]));
            let case = gate_up("unused/", [dtype; 2], m, shape, false, swiglu);
            let case = case.draw("gate", Draw::With(nan.clone())).draw("up", Draw::With(nan.clone()));
            cases.push(case.draw("ids", ids(m, shape.experts, 1)));
            let case = down("unused/", dtype, m, shape, Added::Nothing).draw("down", Draw::With(nan));
            cases.push(case.draw("ids", ids(m, shape.experts, 1)));
        }
    }
    for dtype in [DType::Q4_K, DType::Q6_K, DType::Q8_0, DType::F16] {
        for m in [1, 16, 200] {
            // 64 of its 128 experts.
            let (up, last) = (shape(64, 8, 768, 2048), shape(64, 8, 2048, 768));
            let case = gate_up("qwen3-30b-a3b/", [dtype; 2], m, up, false, swiglu).large();
            cases.push(if m == 1 { case.timed() } else { case });
            let case = down("qwen3-30b-a3b/", dtype, m, last, Added::Nothing).large();
            cases.push(if m == 1 { case.timed() } else { case });
        }
    }
}

fn matmuls(cases: &mut Vec<Case>, dtype: DType) {
    let swiglu = GatedActivation::SwiGlu;
    let shapes = [shape(4, 2, 67, 768), shape(8, 3, 33, 256), shape(1, 1, 16, 512), shape(6, 6, 1, 256)];
    let small = [shape(5, 2, 3, 32), shape(16, 8, 65, 96)];
    let odd = [shape(3, 2, 1, 1), shape(5, 4, 7, 31), shape(4, 1, 33, 257)];
    for m in [1, 2, 3, 5, 8, 17, 33, 70] {
        for shape in shapes.into_iter().chain(small).chain(odd) {
            let divides = fits(dtype, shape.k);
            let is_small = FLOATS.contains(&dtype) || BLOCKS_32.contains(&dtype);
            if divides && (is_small || shape.k.is_multiple_of(256)) {
                cases.push(gate_up("", [dtype; 2], m, shape, false, swiglu));
                cases.push(down("", dtype, m, shape, Added::Nothing));
            }
        }
    }
    for m in [1, 4, 19, 45] {
        let shape = shape(7, 4, 66, 512);
        cases.push(gate_up("bias/", [dtype; 2], m, shape, true, swiglu));
        cases.push(down("bias_residual/", dtype, m, shape, Added::BiasAndResidual));
        cases.push(down("residual_in_place/", dtype, m, shape, Added::ResidualInPlace));
        for (name, activation) in ACTIVATIONS {
            cases.push(gate_up(name, [dtype; 2], m, shape, true, activation));
        }
        for added in [Added::Nothing, Added::BiasAndResidual] {
            let name = if added == Added::Nothing { "some/" } else { "some_bias_residual/" };
            cases.push(down(name, dtype, m, shape, added).draw("ids", some_ids(m, shape.experts)));
        }
        let case = gate_up("same/", [dtype; 2], m, shape, false, swiglu);
        cases.push(case.draw("ids", same_ids(m, shape.experts)));
        cases.push(down("same/", dtype, m, shape, Added::Nothing).draw("ids", same_ids(m, shape.experts)));
    }
    let shape = shape(4, 2, 8, 256);
    cases.push(gate_up("", [dtype; 2], 0, shape, false, swiglu));
    cases.push(down("", dtype, 0, shape, Added::Nothing));
    // A row with a NaN does not affect the others; nor does a NaN weight.
    for m in [3, 40] {
        let nan = vec![(256 + 100, f32::NAN)];
        cases.push(gate_up("nan_row/", [dtype; 2], m, shape, false, swiglu).draw("x", Draw::With(nan)));
        let nan = vec![(512 + 100, f32::NAN)];
        cases.push(down("nan_row/", dtype, m, shape, Added::Nothing).draw("x", Draw::With(nan)));
        let nan = down("nan_weight/", dtype, m, shape, Added::Nothing);
        cases.push(nan.draw("weights", Draw::With(vec![(3, f32::NAN)])));
        for (name, deviation) in [("tiny", 1e-20), ("huge", 1e20)] {
            let case = down(&format!("{name}/"), dtype, m, shape, Added::Nothing);
            cases.push(case.draw("x", Draw::Normal(0.0, deviation)));
        }
    }
}
