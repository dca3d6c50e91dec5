//! The kernel for many rows of A: register blocking over tiles in workgroup memory.

use super::head::{Job, Numbers, Store};
use super::text::lines;
use super::{Elem, Layout, PlanError, WeightType, slab};
use crate::kernel::{Launch, fold_grid};
use crate::kernels::template::expand;

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
    /// Rows of tiles that are walked together, column by column, so that workgroups that run at the same time share
    /// what they read.
    pub band: u32,
    /// Whether the groups of four rows in a slab change places with k, which keeps the stores of a transposed tile off
    /// each other's banks. Without, a little padding does part of that.
    pub swizzle: bool,
}

impl std::fmt::Display for Tiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { bm, bn, bk, tm, tn, stages, unroll, slices, band, swizzle } = self;
        write!(
            f,
            "tiled {bm}x{bn}x{bk} by {tm}x{tn} stages={stages} unroll={unroll} slices={slices} band={band}"
        )?;
        if *swizzle { Ok(()) } else { f.write_str(" padded") }
    }
}

const TEMPLATE: &str = include_str!("tiled.wgsl");

impl Tiled {
    /// Threads of a workgroup.
    pub const fn threads(&self) -> u32 {
        (self.bm / self.tm) * (self.bn / self.tn)
    }

    /// Bytes of workgroup memory.
    pub const fn workgroup_bytes(&self) -> u32 {
        self.stages * self.bk * (self.bm + self.bn + 2 * self.pad()) * 4
    }

    /// Words between the rows of a slab.
    const fn pad(&self) -> u32 {
        if self.swizzle { 0 } else { 4 }
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
        if job.products() == 2 && !tn.is_multiple_of(8) {
            return unfit("a thread has columns of one product only");
        }
        if !(1..=2).contains(&stages) || unroll == 0 || !bk.is_multiple_of(unroll) || self.band == 0 {
            return unfit("stages, unrolling or bands make no sense");
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
        let products = job.products();
        let cols = bn / products;
        let tiles = u64::from(shape.m.div_ceil(bm)) * u64::from(job.n().div_ceil(cols)) * u64::from(slices);
        let count = u32::try_from(tiles).map_err(|_| PlanError::Grid)?;
        let workgroups = fold_grid(tiles, job.caps.max_workgroups).ok_or(PlanError::Grid)?;
        let b_width = if shape.b == Layout::Nk { job.k_width() } else { job.n_width() };
        let b = shape.elem.element(b_width, job.caps);
        let inputs = [("a", Elem::F32.wgsl(job.k_width())), ("b0", b), ("b1", b)];
        let mut head = job.head(&inputs[..1 + products as usize], job.n_width(), store);
        head.text += &WeightType::F32.getter("a", job.k_width(), job.caps);
        for p in 0..products {
            head.text += &shape.elem.getter(&format!("b{p}"), b_width, job.caps);
        }
        let (lda, ldb) = ((bm + self.pad()) / 4, (bn + self.pad()) / 4);
        let number = |n: u32| n.to_string();
        let main = expand(
            TEMPLATE,
            &[
                ("bm", &number(bm)),
                ("cols", &number(cols)),
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
                ("band", &number(self.band)),
                ("units_n", &number(bn / (8 * tn))),
                ("wm4", &number(tm)),
                ("wn4", &number(2 * tn / products)),
                ("loads", &slab::loads(self, job)),
                ("places", &slab::places(self, job)),
                ("registers", &self.registers()),
                ("sums", &self.sums()),
                ("walk", &self.walk(job)),
                ("store", &self.store(job, store)),
            ],
        );
        let numbers = Numbers { count, span: self.span(shape.k), slices };
        Ok(job.launch(
            format!("matmul {self} {:?}{}", shape.b, if products == 2 { " pair" } else { "" }),
            head,
            &main,
            workgroups,
            numbers,
            store,
        ))
    }

    fn registers(&self) -> String {
        let (loads_a, loads_b) = slab::load_counts(self);
        lines(loads_a, |l| format!("    var ra_{l} = vec4<f32>();"))
            + &lines(loads_b, |l| format!("    var rb_{l} = vec4<f32>();"))
    }

    fn sums(&self) -> String {
        lines(self.tm, |i| lines(self.tn / 4, |j| format!("    var s{i}_{j} = vec4<f32>();")))
    }

    /// The products of one slab.
    fn multiply(&self, job: &Job<'_>, at_a: &str, at_b: &str) -> String {
        let (fa, fb) = (self.tm / 4, self.tn / 4);
        let here = fb / job.products();
        let step = |kk: &str, quad: &str| {
            let mut text = String::from("        {\n");
            text += &lines(fa, |i| {
                let column = slab::column(self, self.bm, &format!("(mine_a + {}u)", i * 4), quad);
                format!("        let a{i} = slab_a[{at_a} + ({kk}) * LA + {column}];")
            });
            text += &lines(fb, |j| {
                // The columns of the second product of a pair are the second half of the slab.
                let at = j % here * 8 + j / here * (self.bn / 8);
                let column = slab::column(self, self.bn, "mine_b", quad);
                format!("        let b{j} = slab_b[{at_b} + ({kk}) * LB + {column} + {at}u];")
            });
            for i in 0..self.tm {
                let a = format!("a{}.{}", i / 4, ["x", "y", "z", "w"][i as usize % 4]);
                text += &lines(fb, |j| format!("        s{i}_{j} = fma(vec4<f32>({a}), b{j}, s{i}_{j});"));
            }
            text + "        }\n"
        };
        if self.unroll == self.bk {
            return (0..self.bk).map(|kk| step(&format!("{kk}u"), &format!("{}u", kk / 4))).collect();
        }
        let quad = |u: u32| match self.unroll.is_multiple_of(4) {
            true => format!("(kk / 4u + {}u)", u / 4),
            false => format!("((kk + {u}u) / 4u)"),
        };
        let body: String = (0..self.unroll).map(|u| step(&format!("kk + {u}u"), &quad(u))).collect();
        format!("        for (var kk = 0u; kk < {}u; kk += {}u) {{\n{body}        }}\n", self.bk, self.unroll)
    }

    /// The walk over the slabs.
    fn walk(&self, job: &Job<'_>) -> String {
        let first = slab::fetch(self, job, "slab");
        let next = slab::fetch(self, job, "slab + 1u");
        if self.stages == 1 {
            let (put, multiply) = (slab::put(self, job, "0u", "0u"), self.multiply(job, "0u", "0u"));
            return format!(
                "{first}    for (; slab < end; slab++) {{\n{put}        workgroupBarrier();\n        if (slab + 1u < end) \
                 {{\n{next}        }}\n{multiply}        workgroupBarrier();\n    }}\n"
            );
        }
        let (put, multiply) = (slab::put(self, job, "to_a", "to_b"), self.multiply(job, "from_a", "from_b"));
        let start = slab::put(self, job, "0u", "0u");
        format!(
            "{first}{start}    workgroupBarrier();\n    var from_a = 0u;\n    var from_b = 0u;\n    for (; slab < end; \
             slab++) {{\n        let to_a = SA - from_a;\n        let to_b = SB - from_b;\n        let more = slab + 1u < \
             end;\n        if (more) {{\n{next}        }}\n{multiply}        if (more) {{\n{put}        }}\n        \
             workgroupBarrier();\n        from_a = to_a;\n        from_b = to_b;\n    }}\n"
        )
    }

    /// The sums into the output or a slice.
    fn store(&self, job: &Job<'_>, store: Store) -> String {
        let here = self.tn / 4 / job.products();
        let mut text = String::new();
        for i in 0..self.tm {
            let at = (i / 4) * 16 + i % 4;
            text += &format!(
                "    {{\n        let row = row0 + mine_a * 4u + {at}u;\n        if (row < params.m) {{\n"
            );
            text += &lines(here, |j| {
                let place = format!("row, col0 + mine_b * 4u + {}u", j * 32);
                let (v0, v1) = (format!("s{i}_{j}"), format!("s{i}_{}", j + here));
                match (job.products(), store) {
                    (1, _) => format!("            put4({v0}, slice, {place});"),
                    (_, Store::Output) => format!("            put4({v0}, {v1}, slice, {place});"),
                    (_, Store::Slice) => format!(
                        "            put4({v0}, slice, {place});\n            put4({v1}, params.slices + slice, {place});"
                    ),
                }
            });
            text += "        }\n    }\n";
        }
        text
    }
}
