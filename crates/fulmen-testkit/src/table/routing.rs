//! Mixture of experts: the choice of the experts of each row.

use fulmen_core::{ExpertGroups, ExpertPart, RouteSpec, RouterScores};

use crate::case::{Case, Tolerance};
use crate::draw::Draw;
use crate::reference::sigmoid;

/// The experts of a layer.
#[derive(Clone, Copy)]
pub(super) struct Experts {
    pub(super) count: u32,
    pub(super) top: u32,
}

/// What routers do with their logits.
pub(super) const SPECS: [(&str, RouteSpec); 5] = {
    let softmax = RouteSpec { renormalize: true, ..RouteSpec::new(1, RouterScores::Softmax) };
    [
        ("softmax", softmax),
        ("softmax_all", RouteSpec { renormalize: false, scale: 1.0, ..softmax }),
        ("sigmoid", RouteSpec { scores: RouterScores::Sigmoid, scale: 2.5, ..softmax }),
        ("sigmoid_all", RouteSpec { scores: RouterScores::Sigmoid, renormalize: false, ..softmax }),
        ("selected", RouteSpec { scores: RouterScores::SelectedSoftmax, renormalize: false, ..softmax }),
    ]
};

fn route(name: &str, m: u32, experts: Experts, spec: RouteSpec, bias: bool) -> Case {
    let Experts { count, top } = experts;
    let route = RouteSpec { top, ..spec };
    let case = Case::new(format!("{name}/m{m}/{top}of{count}"), |b| {
        let logits = b.input("logits", m, count)?;
        let bias = if bias { Some(b.vector("bias", count)?) } else { None };
        let routed = b.route(logits, bias, route)?;
        b.output("weights", routed.weights)?;
        b.output("ids", routed.ids)
    });
    // Sums of exponentials, as in softmax.
    case.draw("logits", Draw::Normal(0.0, 2.0)).tolerance(Tolerance::SOFTMAX)
}

/// Routing where only a part of the experts is here.
fn route_part(name: &str, m: u32, part: ExpertPart, spec: RouteSpec, bias: bool) -> Case {
    let (count, top) = (128, 8);
    let ExpertPart { first, count: held } = part;
    let case = Case::new(format!("part/{name}/m{m}/{top}of{count}/{held}from{first}"), |b| {
        let logits = b.input("logits", m, count)?;
        let bias = if bias { Some(b.vector("bias", count)?) } else { None };
        let routed = b.route_part(logits, bias, RouteSpec { top, ..spec }, part)?;
        b.output("weights", routed.weights)?;
        b.output("ids", routed.ids)
    });
    case.draw("logits", Draw::Normal(0.0, 2.0)).tolerance(Tolerance::SOFTMAX)
}

fn routes(cases: &mut Vec<Case>) {
    const SHAPES: [(u32, u32); 9] =
        [(1, 1), (3, 2), (8, 8), (31, 4), (33, 5), (128, 8), (257, 10), (512, 10), (1024, 32)];
    for (name, spec) in SPECS {
        for (count, top) in SHAPES {
            for m in [1, 3, 33] {
                cases.push(route(name, m, Experts { count, top }, spec, false));
            }
            cases.push(route(&format!("{name}_bias"), 5, Experts { count, top }, spec, true));
        }
        let experts = Experts { count: 128, top: 8 };
        cases.push(route(name, 0, experts, spec, false));
        for (first, count) in [(0, 128), (0, 64), (64, 64), (127, 1)] {
            let part = ExpertPart { first, count };
            cases.push(route_part(name, 5, part, spec, false));
            cases.push(route_part(&format!("{name}_bias"), 1, part, spec, true));
            let nan = route_part(&format!("{name}_nan"), 3, part, spec, false);
            cases.push(nan.draw("logits", Draw::With(vec![(128 + 77, f32::NAN)])));
        }
        // Values in the second of three rows; the others are not affected.
        for (special, value) in [("nan", f32::NAN), ("inf", f32::INFINITY), ("minus_inf", f32::NEG_INFINITY)]
        {
            let case = route(&format!("{name}_{special}"), 3, experts, spec, false);
            cases.push(case.draw("logits", Draw::With(vec![(128 + 77, value)])));
            let case = route(&format!("{name}_bias_{special}"), 3, experts, spec, true);
            cases.push(case.draw("bias", Draw::With(vec![(77, value)])));
        }
        for (special, value) in [("ties", 0.25), ("zeros", 0.0), ("large", 80.0), ("small", -80.0)] {
            let case = route(&format!("{name}_{special}"), 2, experts, spec, false);
            cases.push(case.draw("logits", Draw::Floats(vec![value; 256])));
        }
        // Only the last ones differ from the rest.
        let mut last = vec![-3.0; 2 * 128];
        (last[127], last[128 + 120]) = (1.5, 2.5);
        cases
            .push(route(&format!("{name}_last"), 2, experts, spec, false).draw("logits", Draw::Floats(last)));
    }
    for m in [1, 16, 512] {
        let experts = Experts { count: 128, top: 8 };
        let case = route("qwen3-30b-a3b", m, experts, SPECS[0].1, false);
        cases.push(if m == 1 { case.timed() } else { case });
    }
}

/// Logits and selection biases of rows that are routed among groups. Scores that are nearly the same, or sums
/// of two, would be rounded to another order than that of the reference, so rows with such are drawn anew.
fn decided(m: u32, experts: Experts, spec: &RouteSpec, groups: ExpertGroups) -> [Vec<f32>; 2] {
    let seed = [m, experts.count, experts.top, groups.count]
        .into_iter()
        .fold(7, |seed, n| seed * 1031 + u64::from(n));
    let mut random = fastrand::Rng::with_seed(seed);
    let mut draw = || -> Vec<f32> {
        // About normal, with a deviation of 1.
        (0..experts.count).map(|_| (0..12).map(|_| random.f32()).sum::<f32>() - 6.0).collect()
    };
    let (bias, mut rows) = (draw(), Vec::new());
    for _ in 0..m {
        let row = std::iter::repeat_with(&mut draw).find(|row| {
            let biased =
                scores(row, spec).into_iter().zip(&bias).map(|(score, bias)| score + f64::from(*bias));
            is_decided(&scores(row, spec), experts.top, groups)
                && is_decided(&biased.collect::<Vec<_>>(), experts.top, groups)
        });
        rows.extend(row.expect("an endless sequence"));
    }
    [rows, bias]
}

fn scores(logits: &[f32], spec: &RouteSpec) -> Vec<f64> {
    let logits = || logits.iter().map(|&x| f64::from(x));
    match spec.scores {
        RouterScores::Sigmoid => logits().map(sigmoid).collect(),
        RouterScores::SelectedSoftmax => logits().collect(),
        RouterScores::Softmax => {
            let sum: f64 = logits().map(f64::exp).sum();
            logits().map(|x| x.exp() / sum).collect()
        }
    }
}

/// Whether the best groups, and the largest keys in them, are clearly larger than the next.
fn is_decided(keys: &[f64], top: u32, groups: ExpertGroups) -> bool {
    let descending = |mut values: Vec<f64>| -> Vec<f64> {
        values.sort_by(|a, b| b.total_cmp(a));
        values
    };
    let clear = |larger: f64, next: f64| larger - next > 1e-5 * larger.abs().max(next.abs());
    let groups_of: Vec<Vec<f64>> =
        keys.chunks(keys.len() / groups.count as usize).map(|group| descending(group.to_vec())).collect();
    let sums = descending(groups_of.iter().map(|group| group[0] + group[1]).collect());
    let used = groups.used as usize;
    let kept = groups_of.into_iter().filter(|group| group[0] + group[1] >= sums[used - 1]).flatten();
    let kept = descending(kept.collect());
    sums.get(used).is_none_or(|next| clear(sums[used - 1], *next))
        && kept.windows(2).take(top as usize).all(|pair| clear(pair[0], pair[1]))
}

/// Routing among the best groups.
fn grouped_routes(cases: &mut Vec<Case>) {
    // Experts, of which top, and groups, of which used: sizes and counts that are no powers of two, groups of
    // two experts, one group, all groups of a row, and as many as there can be.
    const SHAPES: [[u32; 4]; 9] = [
        [16, 3, 4, 2],
        [64, 8, 8, 4],
        [96, 8, 3, 2],
        [64, 2, 32, 1],
        [8, 4, 1, 1],
        [12, 4, 2, 2],
        [256, 8, 8, 4],
        [465, 9, 31, 3],
        [1024, 32, 32, 5],
    ];
    for (scores, spec) in SPECS {
        for [count, top, groups, used] in SHAPES {
            let (experts, groups) = (Experts { count, top }, ExpertGroups { count: groups, used });
            let name = format!("groups/{used}of{}/{scores}", groups.count);
            let spec = RouteSpec { groups: Some(groups), ..spec };
            for m in [1, 3, 33] {
                let [logits, bias] = decided(m, experts, &spec, groups).map(Draw::Floats);
                let case = route(&name, m, experts, spec, false);
                cases.push(case.draw("logits", logits.clone()));
                let case = route(&format!("{name}_bias"), m, experts, spec, true);
                cases.push(case.draw("logits", logits).draw("bias", bias));
            }
        }
        let groups = ExpertGroups { count: 8, used: 3 };
        let (spec, experts) = (RouteSpec { groups: Some(groups), ..spec }, Experts { count: 128, top: 8 });
        let [logits, bias] = decided(5, experts, &spec, groups);
        let name = format!("groups/{scores}");
        for (first, count) in [(0, 64), (40, 33)] {
            let case = route_part(&name, 5, ExpertPart { first, count }, spec, true);
            let case = case.draw("logits", Draw::Floats(logits.clone()));
            cases.push(case.draw("bias", Draw::Floats(bias.clone())));
        }
        for (special, value) in [("nan", f32::NAN), ("inf", f32::INFINITY), ("minus_inf", f32::NEG_INFINITY)]
        {
            let mut logits = logits.clone();
            logits[128 + 77] = value;
            let case = route(&format!("{name}_{special}"), 5, experts, spec, true);
            cases.push(case.draw("logits", Draw::Floats(logits)).draw("bias", Draw::Floats(bias.clone())));
        }
        for (special, value) in [("ties", 0.25), ("zeros", 0.0), ("large", 80.0), ("small", -80.0)] {
            let case = route(&format!("{name}_{special}"), 2, experts, spec, false);
            cases.push(case.draw("logits", Draw::Floats(vec![value; 256])));
        }
        // The keys of all experts are below 0.
        let case =
            route(&format!("{name}_negative"), 5, experts, spec, true).draw("logits", Draw::Floats(logits));
        cases.push(case.draw("bias", Draw::Floats(bias.iter().map(|bias| bias - 9.0).collect())));
    }
    for m in [1, 16, 512] {
        let (experts, groups) = (Experts { count: 256, top: 8 }, ExpertGroups { count: 8, used: 4 });
        let spec = RouteSpec { groups: Some(groups), ..SPECS[2].1 };
        let [logits, bias] = decided(m, experts, &spec, groups).map(Draw::Floats);
        let case = route("groups/deepseek-v3", m, experts, spec, true);
        let case = case.draw("logits", logits).draw("bias", bias);
        cases.push(if m == 1 { case.timed() } else { case });
    }
}

pub(super) fn cases(cases: &mut Vec<Case>) {
    routes(cases);
    grouped_routes(cases);
}
