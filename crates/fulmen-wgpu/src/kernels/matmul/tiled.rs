//! The kernel for many rows of A: register blocking over tiles in workgroup memory.

use super::head::{Job, Numbers, Store};
use super::text::{fill, lines};
use super::{Elem, Layout, PlanError};
use crate::kernel::{Launch, fold_grid};

/// A choice of this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiled {
    /// Rows of a tile: a multiple of `4 * tm`.
    pub bm: u32,
    /// Columns of a tile: a multiple of `8 * tn`.
    pub bn: u32,
    /// Elements of k in a slab: a multiple of 4.
    pub bk: u32,
    /// Rows of a thread: a multiple of 4.
    pub tm: u32,
    /// Columns of a thread: a multiple of 4.
    pub tn: u32,
    /// Slabs in workgroup memory: 1, or 2 for one barrier a slab instead of two.
    pub stages: u32,
    /// Steps of k that are written out in the text: a divisor of `bk`.
    pub unroll: u32,
    /// Slices of k, each a workgroup of its own.
    pub slices: u32,
}

impl std::fmt::Display for Tiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { bm, bn, bk, tm, tn, stages, unroll, slices } = self;
        write!(f, "tiled {bm}x{bn}x{bk} by {tm}x{tn} stages={stages} unroll={unroll} slices={slices}")
    }
}

const TEMPLATE: &str = include_str!("tiled.wgsl");

/// Rows of tiles that are worked on together.
const BAND: u32 = 8;

/// Words between the rows of a slab that keep stores of a transposed tile off each other's banks.
const PAD: u32 = 4;

impl Tiled {
    /// Threads of a workgroup.
    pub const fn threads(&self) -> u32 {
        (self.bm / self.tm) * (self.bn / self.tn)
    }

    /// Bytes of workgroup memory.
    pub const fn workgroup_bytes(&self) -> u32 {
        self.stages * self.bk * (self.bm + self.bn + 2 * PAD) * 4
    }

    /// Slabs of k.
    pub(super) fn slabs(&self, k: u32) -> u32 {
        k.div_ceil(self.bk)
    }

    /// Slabs in a slice.
    fn span(&self, k: u32) -> u32 {
        self.slabs(k).div_ceil(self.slices.max(1))
    }

    /// Slices that hold something.
    pub(super) fn used_slices(&self, k: u32) -> u32 {
        self.slabs(k).div_ceil(self.span(k))
    }

    fn check(&self, job: &Job<'_>) -> Result<(), PlanError> {
        let unfit = |why| Err(PlanError::Unfit { choice: self.to_string(), why });
        let Self { bm, bn, bk, tm, tn, stages, unroll, .. } = *self;
        let fours = tm >= 4 && tn >= 4 && bk >= 4 && [tm, tn, bk].iter().all(|n| n.is_multiple_of(4));
        if !fours || bm == 0 || bn == 0 || !bm.is_multiple_of(4 * tm) || !bn.is_multiple_of(8 * tn) {
            return unfit("the tile is not a number of threads");
        }
        if !(1..=2).contains(&stages) || unroll == 0 || !bk.is_multiple_of(unroll) {
            return unfit("stages or unrolling make no sense");
        }
        if self.threads() > job.caps.max_invocations {
            return unfit("the device's workgroups are smaller");
        }
        if self.workgroup_bytes() > job.caps.workgroup_memory {
            return unfit("workgroup memory is too small");
        }
        Ok(())
    }

    /// The launch that multiplies; with more than one slice it stores slices.
    pub(super) fn launch(&self, job: &Job<'_>) -> Result<Launch, PlanError> {
        self.check(job)?;
        let Self { bm, bn, bk, tm, tn, stages, .. } = *self;
        let shape = job.shape;
        let slices = self.used_slices(shape.k);
        let store = if slices > 1 { Store::Slice } else { Store::Output };
        let tiles = u64::from(shape.m.div_ceil(bm)) * u64::from(job.n().div_ceil(bn)) * u64::from(slices);
        let count = u32::try_from(tiles).map_err(|_| PlanError::Grid)?;
        let workgroups = fold_grid(tiles, job.caps.max_workgroups).ok_or(PlanError::Grid)?;
        let b_width = if shape.b == Layout::Nk { job.k_width() } else { job.n_width() };
        let b = match job.packed {
            Some(_) => ("w", "vec4<u32>"),
            None => ("b", shape.elem.wgsl(b_width)),
        };
        let inputs = [("a", Elem::F32.wgsl(job.k_width())), b];
        let head = job.head(&inputs, job.n_width(), store);
        let (lda, ldb) = ((bm + PAD) / 4, (bn + PAD) / 4);
        let number = |n: u32| n.to_string();
        let main = fill(
            TEMPLATE,
            &[
                ("bm", &number(bm)),
                ("bn", &number(bn)),
                ("bk", &number(bk)),
                ("tm", &number(tm)),
                ("tn", &number(tn)),
                ("lda", &number(lda)),
                ("ldb", &number(ldb)),
                ("sa", &number(bk * lda)),
                ("sb", &number(bk * ldb)),
                ("words_a", &number(stages * bk * lda)),
                ("words_b", &number(stages * bk * ldb)),
                ("threads", &number(self.threads())),
                ("band", &number(BAND)),
                ("units_n", &number(bn / (8 * tn))),
                ("wm4", &number(tm)),
                ("wn4", &number(2 * tn)),
                ("loads", &self.loads(job)),
                ("places", &self.places(job)),
                ("registers", &self.registers()),
                ("sums", &self.sums()),
                ("walk", &self.walk(job)),
                ("store", &self.store()),
            ],
        );
        let label = match job.packed {
            Some(packed) => format!("matmul {self} {}", packed.name),
            None => format!("matmul {self} {:?}", shape.b),
        };
        let numbers = Numbers { count, span: self.span(shape.k), slices };
        Ok(job.launch(label, head, &main, workgroups, numbers, store))
    }

    /// Loads of A and of B that a thread does for a slab.
    fn load_counts(&self) -> (u32, u32) {
        let each = |b: u32| (b * self.bk / 4).div_ceil(self.threads());
        (each(self.bm), each(self.bn))
    }

    /// Whether every thread has the last of its loads.
    fn all_load(&self, b: u32) -> bool {
        (b * self.bk / 4).is_multiple_of(self.threads())
    }

    /// `load_a(base, k)`, and `load_b(base, k)` or, for `[k, n]`, `load_b(k, column)`: four values, zero past k.
    fn loads(&self, job: &Job<'_>) -> String {
        let even = job.shape.k.is_multiple_of(self.bk);
        let along_k = |name: &str, width: u32| match (width, even) {
            (4, true) => format!(
                "fn load_{name}(base: u32, k: u32) -> vec4<f32> {{ return vec4<f32>({name}[base + k / 4u]); }}\n"
            ),
            (4, false) => format!(
                "fn load_{name}(base: u32, k: u32) -> vec4<f32> {{\n    let v = vec4<f32>({name}[base + min(k, params.k \
                 - 4u) / 4u]);\n    return select(vec4<f32>(), v, k < params.k);\n}}\n"
            ),
            _ => format!(
                "fn one_{name}(base: u32, k: u32) -> f32 {{\n    return select(0.0, f32({name}[base + min(k, params.k - \
                 1u)]), k < params.k);\n}}\nfn load_{name}(base: u32, k: u32) -> vec4<f32> {{\n    return \
                 vec4<f32>(one_{name}(base, k), one_{name}(base, k + 1u), one_{name}(base, k + 2u), one_{name}(base, k + \
                 3u));\n}}\n"
            ),
        };
        if let Some(packed) = job.packed {
            return along_k("a", job.k_width()) + &packed.text;
        }
        let b = match (job.shape.b, job.n_width()) {
            (Layout::Nk, _) => along_k("b", job.k_width()),
            (Layout::Kn, 4) if even => "fn load_b(k: u32, col: u32) -> vec4<f32> { return vec4<f32>(b[(k * params.n + \
                                        col) / 4u]); }\n"
                .to_owned(),
            (Layout::Kn, 4) => "fn load_b(k: u32, col: u32) -> vec4<f32> {\n    let v = vec4<f32>(b[(min(k, params.k - \
                                1u) * params.n + col) / 4u]);\n    return select(vec4<f32>(), v, k < params.k);\n}\n"
                .to_owned(),
            (Layout::Kn, _) => "fn one_b(row: u32, col: u32) -> f32 { return f32(b[row + min(col, params.n - 1u)]); \
                                }\nfn load_b(k: u32, col: u32) -> vec4<f32> {\n    let row = min(k, params.k - 1u) * \
                                params.n;\n    let v = vec4<f32>(one_b(row, col), one_b(row, col + 1u), one_b(row, col + \
                                2u), one_b(row, col + 3u));\n    return select(vec4<f32>(), v, k < params.k);\n}\n"
                .to_owned(),
        };
        along_k("a", job.k_width()) + &b
    }

    /// Where a thread loads from and where it puts that: `base`, the offset `k` in the slab, and the place in it.
    fn places(&self, job: &Job<'_>) -> String {
        let Self { bk, bn, .. } = *self;
        let (quads, threads) = (bk / 4, self.threads());
        let kv = if job.k_width() == 4 { "(params.k / 4u)" } else { "params.k" };
        let (loads_a, loads_b) = self.load_counts();
        let along_k = |name: &str, count: u32, limit: &str, first: &str, kv: &str| {
            lines(count, |l| {
                let at = format!("(local + {}u)", l * threads);
                format!(
                    "    let r{name}{l} = {at} / {quads}u;\n    let k{name}{l} = ({at} % {quads}u) * 4u;\n    let \
                     p{name}{l} = min({first} + r{name}{l}, {limit} - 1u) * {kv};"
                )
            })
        };
        let b = match job.shape.b {
            Layout::Nk => {
                let row = if job.packed.is_some() { "row_length()" } else { kv };
                along_k("b", loads_b, "params.n", "col0", row)
            }
            Layout::Kn => {
                // A thread without a load of its own must not read past the slab.
                let last = bk - 1;
                let (per_row, limit) =
                    (bn / 4, if job.n_width() == 4 { "params.n - 4u" } else { "params.n - 1u" });
                lines(loads_b, |l| {
                    let at = format!("(local + {}u)", l * threads);
                    format!(
                        "    let kb{l} = min({at} / {per_row}u, {last}u);\n    let rb{l} = {at} % {per_row}u;\n    let pb{l} = \
                         min(col0 + rb{l} * 4u, {limit});"
                    )
                })
            }
        };
        along_k("a", loads_a, "params.m", "row0", kv) + &b
    }

    fn registers(&self) -> String {
        let (loads_a, loads_b) = self.load_counts();
        lines(loads_a, |l| format!("    var ra_{l} = vec4<f32>();"))
            + &lines(loads_b, |l| format!("    var rb_{l} = vec4<f32>();"))
    }

    fn sums(&self) -> String {
        lines(self.tm, |i| lines(self.tn / 4, |j| format!("    var s{i}_{j} = vec4<f32>();")))
    }

    /// From memory into registers, for slab `slab`.
    fn fetch(&self, job: &Job<'_>, slab: &str) -> String {
        let (loads_a, loads_b) = self.load_counts();
        let bk = self.bk;
        let b = |l: u32| match job.shape.b {
            Layout::Nk => format!("        rb_{l} = load_b(pb{l}, ({slab}) * {bk}u + kb{l});"),
            Layout::Kn => format!("        rb_{l} = load_b(({slab}) * {bk}u + kb{l}, pb{l});"),
        };
        lines(loads_a, |l| format!("        ra_{l} = load_a(pa{l}, ({slab}) * {bk}u + ka{l});"))
            + &lines(loads_b, b)
    }

    /// From registers into the slab that starts at `at_a` and `at_b`.
    fn put(&self, job: &Job<'_>, at_a: &str, at_b: &str) -> String {
        let (loads_a, loads_b) = self.load_counts();
        let threads = self.threads();
        let guard = |b: u32, l: u32, count: u32, text: String| {
            if l + 1 < count || self.all_load(b) {
                return text;
            }
            format!("        if (local + {}u < {}u) {{\n{text}        }}", l * threads, b * self.bk / 4)
        };
        let turned = |name: &str, l: u32, at: &str, ld: &str| {
            ["x", "y", "z", "w"]
                .iter()
                .enumerate()
                .map(|(i, c)| {
                    format!(
                        "        slab_{name}[{at} + (k{name}{l} + {i}u) * {ld} + r{name}{l} / 4u][r{name}{l} % 4u] = \
                         r{name}_{l}.{c};\n"
                    )
                })
                .collect::<String>()
        };
        lines(loads_a, |l| guard(self.bm, l, loads_a, turned("a", l, at_a, "LA")))
            + &lines(loads_b, |l| {
                let text = match job.shape.b {
                    Layout::Nk => turned("b", l, at_b, "LB"),
                    Layout::Kn => format!("        slab_b[{at_b} + kb{l} * LB + rb{l}] = rb_{l};\n"),
                };
                guard(self.bn, l, loads_b, text)
            })
    }

    /// The products of one slab.
    fn multiply(&self, at_a: &str, at_b: &str) -> String {
        let (fa, fb) = (self.tm / 4, self.tn / 4);
        let step = |kk: &str| {
            let mut text = String::from("        {\n");
            text += &lines(fa, |i| {
                format!("        let a{i} = slab_a[{at_a} + ({kk}) * LA + mine_a + {}u];", i * 4)
            });
            text += &lines(fb, |j| {
                format!("        let b{j} = slab_b[{at_b} + ({kk}) * LB + mine_b + {}u];", j * 8)
            });
            for i in 0..self.tm {
                let a = format!("a{}.{}", i / 4, ["x", "y", "z", "w"][i as usize % 4]);
                text += &lines(fb, |j| format!("        s{i}_{j} = fma(vec4<f32>({a}), b{j}, s{i}_{j});"));
            }
            text + "        }\n"
        };
        if self.unroll == self.bk {
            return (0..self.bk).map(|kk| step(&format!("{kk}u"))).collect();
        }
        let body: String = (0..self.unroll).map(|u| step(&format!("kk + {u}u"))).collect();
        format!("        for (var kk = 0u; kk < {}u; kk += {}u) {{\n{body}        }}\n", self.bk, self.unroll)
    }

    /// The walk over the slabs.
    fn walk(&self, job: &Job<'_>) -> String {
        let first = self.fetch(job, "slab");
        let next = self.fetch(job, "slab + 1u");
        if self.stages == 1 {
            let (put, multiply) = (self.put(job, "0u", "0u"), self.multiply("0u", "0u"));
            return format!(
                "{first}    for (; slab < end; slab++) {{\n{put}        workgroupBarrier();\n        if (slab + 1u < end) \
                 {{\n{next}        }}\n{multiply}        workgroupBarrier();\n    }}\n"
            );
        }
        let (put, multiply) = (self.put(job, "to_a", "to_b"), self.multiply("from_a", "from_b"));
        let start = self.put(job, "0u", "0u");
        format!(
            "{first}{start}    workgroupBarrier();\n    var from_a = 0u;\n    var from_b = 0u;\n    for (; slab < end; \
             slab++) {{\n        let to_a = SA - from_a;\n        let to_b = SB - from_b;\n        let more = slab + 1u < \
             end;\n        if (more) {{\n{next}        }}\n{multiply}        if (more) {{\n{put}        }}\n        \
             workgroupBarrier();\n        from_a = to_a;\n        from_b = to_b;\n    }}\n"
        )
    }

    /// The sums into the output or a slice.
    fn store(&self) -> String {
        let mut text = String::new();
        for i in 0..self.tm {
            let at = (i / 4) * 16 + i % 4;
            text += &format!(
                "    {{\n        let row = row0 + mine_a * 4u + {at}u;\n        if (row < params.m) {{\n"
            );
            text += &lines(self.tn / 4, |j| {
                format!("            put4(s{i}_{j}, slice, row, col0 + mine_b * 4u + {}u);", j * 32)
            });
            text += "        }\n    }\n";
        }
        text
    }
}
