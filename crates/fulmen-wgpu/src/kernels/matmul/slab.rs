//! How a tile's slabs get from memory into workgroup memory, as text.

use super::head::Job;
use super::text::lines;
use super::{Layout, Tiled};

/// Loads of A and of B that a thread does for a slab.
pub(super) fn load_counts(tile: &Tiled) -> (u32, u32) {
    let each = |b: u32| (b * tile.bk / 4).div_ceil(tile.threads());
    (each(tile.bm), each(tile.bn))
}

/// Whether every thread has the last of its loads.
fn all_load(tile: &Tiled, b: u32) -> bool {
    (b * tile.bk / 4).is_multiple_of(tile.threads())
}

/// Where the group `group` of four rows lies in a slab's row of `b` values, for the `quad`-th four of its k.
///
/// Threads that transpose store to the same group of rows for all quads at once, or to as many groups as there are
/// eights in their number; the steps of `quad` are such that all of them hit other banks.
pub(super) fn column(tile: &Tiled, b: u32, group: &str, quad: &str) -> String {
    let groups = b / 4;
    let mask = (1 << groups.trailing_zeros().min(3)) - 1;
    let step = (32 / tile.bk).max(1);
    match tile.swizzle && tile.bk > 4 && mask > 0 {
        true => format!("({group} ^ (({quad} * {step}u) & {mask}u))"),
        false => group.to_owned(),
    }
}

/// `load_a(base, k)`, and for each product `load_b0(base, k)` or, for `[k, n]`, `load_b0(k, column)`: four values, zero
/// past k.
pub(super) fn loads(tile: &Tiled, job: &Job<'_>) -> String {
    let even = job.shape.k.is_multiple_of(tile.bk);
    let b = |name: &str| match job.shape.b {
        Layout::Nk => along_k(name, job.k_width(), even),
        Layout::Kn => along_n(name, job.n_width(), even),
    };
    let mut text = along_k("a", job.k_width(), even) + &b("b0");
    if job.products() == 2 {
        text += &b("b1");
    }
    text
}

fn along_k(name: &str, width: u32, even: bool) -> String {
    match (width, even) {
        (4, true) => format!(
            "fn load_{name}(base: u32, k: u32) -> vec4<f32> {{ return get_{name}(base + k / 4u); }}\n"
        ),
        (4, false) => format!(
            "fn load_{name}(base: u32, k: u32) -> vec4<f32> {{
    let v = get_{name}(base + min(k, params.k - 4u) / 4u);
    return select(vec4<f32>(), v, k < params.k);
}}
"
        ),
        _ => format!(
            "fn one_{name}(base: u32, k: u32) -> f32 {{
    return select(0.0, get_{name}(base + min(k, params.k - 1u)), k < params.k);
}}
fn load_{name}(base: u32, k: u32) -> vec4<f32> {{
    return vec4<f32>(one_{name}(base, k), one_{name}(base, k + 1u), one_{name}(base, k + 2u), one_{name}(base, k + 3u));
}}
"
        ),
    }
}

fn along_n(name: &str, width: u32, even: bool) -> String {
    match (width, even) {
        (4, true) => format!(
            "fn load_{name}(k: u32, col: u32) -> vec4<f32> {{ return get_{name}((k * params.n + col) / 4u); }}\n"
        ),
        (4, false) => format!(
            "fn load_{name}(k: u32, col: u32) -> vec4<f32> {{
    let v = get_{name}((min(k, params.k - 1u) * params.n + col) / 4u);
    return select(vec4<f32>(), v, k < params.k);
}}
"
        ),
        _ => format!(
            "fn one_{name}(row: u32, col: u32) -> f32 {{ return get_{name}(row + min(col, params.n - 1u)); }}
fn load_{name}(k: u32, col: u32) -> vec4<f32> {{
    let row = min(k, params.k - 1u) * params.n;
    let v = vec4<f32>(one_{name}(row, col), one_{name}(row, col + 1u), one_{name}(row, col + 2u), one_{name}(row, col + 3u));
    return select(vec4<f32>(), v, k < params.k);
}}
"
        ),
    }
}

/// The product of a pair from which a thread's load number `l` of B comes, or `None` where threads differ.
fn product(tile: &Tiled, job: &Job<'_>, l: u32) -> Option<u32> {
    let half = match (job.products(), job.shape.b) {
        (1, _) => return Some(0),
        (_, Layout::Kn) => return None,
        (_, Layout::Nk) => tile.bn / 2,
    };
    let quads = tile.bk / 4;
    let (first, last) = (l * tile.threads() / quads, ((l + 1) * tile.threads() - 1) / quads);
    (first / half == last.min(tile.bn - 1) / half).then_some(first / half)
}

/// Where a thread loads from and where it puts that: base `p`, the offset `k` in the slab, the column `c` there, and for
/// A and `[n, k]` the row `r`; in a pair, where threads differ, `second` says which product.
pub(super) fn places(tile: &Tiled, job: &Job<'_>) -> String {
    let Tiled { bm, bn, bk, .. } = *tile;
    let (quads, threads) = (bk / 4, tile.threads());
    let kv = if job.k_width() == 4 { "(params.k / 4u)" } else { "params.k" };
    let (loads_a, loads_b) = load_counts(tile);
    let at = |l: u32| format!("(local + {}u)", l * threads);
    let along_k = |name: &str, b: u32, l: u32, row: &str| {
        let at = at(l);
        let column = column(tile, b, &format!("(r{name}{l} / 4u)"), &format!("({at} % {quads}u)"));
        format!(
            "    let r{name}{l} = {at} / {quads}u;
    let k{name}{l} = ({at} % {quads}u) * 4u;
    let c{name}{l} = {column};
    let p{name}{l} = {row} * {kv};"
        )
    };
    let second = |l: u32, half: u32| match product(tile, job, l) {
        None => format!("\n    let second{l} = rb{l} >= {half}u;"),
        Some(_) => String::new(),
    };
    let half = bn / job.products();
    let b = |l: u32| match job.shape.b {
        Layout::Nk => {
            let row = format!("min(col0 + rb{l} % {half}u, params.n - 1u)");
            along_k("b", bn, l, &row) + &second(l, half)
        }
        Layout::Kn => {
            let (at, per_row, half) = (at(l), bn / 4, half / 4);
            let limit = if job.n_width() == 4 { "params.n - 4u" } else { "params.n - 1u" };
            // A thread without a load of its own must not read past the slab.
            let last = bk - 1;
            let column = column(tile, bn, &format!("rb{l}"), &format!("(kb{l} / 4u)"));
            format!(
                "    let kb{l} = min({at} / {per_row}u, {last}u);
    let rb{l} = {at} % {per_row}u;
    let cb{l} = {column};
    let pb{l} = min(col0 + (rb{l} % {half}u) * 4u, {limit});{}",
                second(l, half)
            )
        }
    };
    lines(loads_a, |l| along_k("a", bm, l, &format!("min(row0 + ra{l}, params.m - 1u)"))) + &lines(loads_b, b)
}

/// From memory into registers, for slab `slab`.
pub(super) fn fetch(tile: &Tiled, job: &Job<'_>, slab: &str) -> String {
    let (loads_a, loads_b) = load_counts(tile);
    let bk = tile.bk;
    let b = |l: u32| {
        let args = match job.shape.b {
            Layout::Nk => format!("(pb{l}, ({slab}) * {bk}u + kb{l})"),
            Layout::Kn => format!("(({slab}) * {bk}u + kb{l}, pb{l})"),
        };
        match product(tile, job, l) {
            Some(p) => format!("        rb_{l} = load_b{p}{args};"),
            None => format!(
                "        if (second{l}) {{ rb_{l} = load_b1{args}; }} else {{ rb_{l} = load_b0{args}; }}"
            ),
        }
    };
    lines(loads_a, |l| format!("        ra_{l} = load_a(pa{l}, ({slab}) * {bk}u + ka{l});"))
        + &lines(loads_b, b)
}

/// From registers into the slab that starts at `at_a` and `at_b`.
pub(super) fn put(tile: &Tiled, job: &Job<'_>, at_a: &str, at_b: &str) -> String {
    let (loads_a, loads_b) = load_counts(tile);
    let threads = tile.threads();
    let guard = |b: u32, l: u32, count: u32, text: String| {
        if l + 1 < count || all_load(tile, b) {
            return text;
        }
        format!("        if (local + {}u < {}u) {{\n{text}        }}", l * threads, b * tile.bk / 4)
    };
    let turned = |name: &str, l: u32, at: &str, ld: &str| {
        ["x", "y", "z", "w"]
            .iter()
            .enumerate()
            .map(|(i, c)| {
                format!(
                    "        slab_{name}[{at} + (k{name}{l} + {i}u) * {ld} + c{name}{l}][r{name}{l} % 4u] = \
                     r{name}_{l}.{c};\n"
                )
            })
            .collect::<String>()
    };
    lines(loads_a, |l| guard(tile.bm, l, loads_a, turned("a", l, at_a, "LA")))
        + &lines(loads_b, |l| {
            let text = match job.shape.b {
                Layout::Nk => turned("b", l, at_b, "LB"),
                Layout::Kn => format!("        slab_b[{at_b} + kb{l} * LB + cb{l}] = rb_{l};\n"),
            };
            guard(tile.bn, l, loads_b, text)
        })
}
