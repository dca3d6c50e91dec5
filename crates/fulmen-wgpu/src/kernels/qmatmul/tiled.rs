//! The kernel for many rows of A as int8 codes: tiles in workgroup memory, bound by arithmetic.

use super::format::Format;
use crate::kernel::{Launch, fold_grid};
use crate::kernels::matmul::PlanError;
use crate::kernels::matmul::head::{Job, Numbers, Store};
use crate::kernels::{matmul::text::lines, template::expand};

/// A choice of this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodeTiles {
    /// Rows of a tile: a multiple of `tm`.
    pub bm: u32,
    /// Columns of a tile: a multiple of `tn`.
    pub bn: u32,
    /// Rows of a thread.
    pub tm: u32,
    /// Columns of a thread.
    pub tn: u32,
    /// Items of 32 elements of k in a slab.
    pub depth: u32,
    /// Slices of k, each a workgroup of its own.
    pub slices: u32,
}

impl std::fmt::Display for CodeTiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { bm, bn, tm, tn, depth, slices } = self;
        write!(f, "tiles Int8 {bm}x{bn} by {tm}x{tn} depth={depth} slices={slices}")
    }
}

const TEMPLATE: &str = include_str!("tiled.wgsl");

impl CodeTiles {
    /// Threads of a workgroup.
    pub const fn threads(&self) -> u32 {
        (self.bm / self.tm) * (self.bn / self.tn)
    }

    /// Bytes of workgroup memory.
    pub const fn workgroup_bytes(&self) -> u32 {
        // Codes of 32 bytes an item, padded by one row or column; two floats an item.
        self.depth * (32 * (self.bm + 1 + self.bn + 1) + 8 * (self.bm + self.bn))
    }

    /// Items in a slice: whole slabs.
    fn span(&self, k: u32) -> u32 {
        (k / 32).div_ceil(self.slices.max(1)).next_multiple_of(self.depth.max(1))
    }

    /// Slices that hold something.
    pub(super) fn used_slices(&self, k: u32) -> u32 {
        (k / 32).div_ceil(self.span(k))
    }

    fn check(&self, job: &Job<'_>) -> Result<(), PlanError> {
        let unfit = |why| Err(PlanError::Unfit { choice: self.to_string(), why });
        let Self { bm, bn, tm, tn, depth, .. } = *self;
        if tm == 0 || tn == 0 || depth == 0 || bm == 0 || bn == 0 {
            return unfit("a size is 0");
        }
        if !bm.is_multiple_of(tm) || !bn.is_multiple_of(tn) {
            return unfit("the tile is not a number of threads");
        }
        if tm * tn > 64 {
            return unfit("too many sums for the registers");
        }
        if self.threads() > job.caps.max_invocations {
            return unfit("the device's workgroups are smaller");
        }
        if self.workgroup_bytes() > job.caps.workgroup_memory {
            return unfit("workgroup memory is too small");
        }
        Ok(())
    }

    /// The launch that multiplies; with more than one slice it stores slices. Binds A's codes, W, and the output or the
    /// slices.
    pub(super) fn launch(&self, format: Format, job: &Job<'_>) -> Result<Launch, PlanError> {
        self.check(job)?;
        let Self { bm, bn, tm, tn, depth, .. } = *self;
        let shape = job.shape;
        let slices = self.used_slices(shape.k);
        let store = if slices > 1 { Store::Slice } else { Store::Output };
        let tiles = u64::from(shape.m.div_ceil(bm)) * u64::from(job.n().div_ceil(bn)) * u64::from(slices);
        let count = u32::try_from(tiles).map_err(|_| PlanError::Grid)?;
        let workgroups = fold_grid(tiles, job.caps.max_workgroups).ok_or(PlanError::Grid)?;
        let mut head = job.head(&[("a", "vec4<u32>"), ("w", "vec4<u32>")], 1, store);
        head.text += &format.text();
        let number = |n: u32| n.to_string();
        let (lda, ldb) = (bm + 1, bn + 1);
        let main = expand(
            TEMPLATE,
            &[
                ("bm", &number(bm)),
                ("bn", &number(bn)),
                ("tm", &number(tm)),
                ("tn", &number(tn)),
                ("tx", &number(bn / tn)),
                ("ty", &number(bm / tm)),
                ("depth", &number(depth)),
                ("threads", &number(self.threads())),
                ("lda", &number(lda)),
                ("ldb", &number(ldb)),
                ("words_a", &number(2 * depth * lda)),
                ("words_b", &number(2 * depth * ldb)),
                ("more_a", &number(depth * bm)),
                ("more_b", &number(depth * bn)),
                ("kept", format.signed()),
                ("more", if format.halves_differ() { "item.s" } else { "vec2<f32>(item.s.x, item.o.x)" }),
                ("sums", &lines(tm * tn, |s| format!("    var s{s} = 0.0;"))),
                ("multiply", &self.multiply(format)),
                ("store", &self.store()),
            ],
        );
        let label = format!("qmatmul {self} {format:?}");
        let numbers = Numbers { count, span: self.span(shape.k), slices };
        Ok(job.launch(label, head, &main, workgroups, numbers, store))
    }

    /// The products of one item, `t`.
    fn multiply(&self, format: Format) -> String {
        let Self { tm, tn, .. } = *self;
        let load_a = |half: u32| {
            lines(tm, |i| {
                format!("            let a{half}_{i} = codes_a[(2u * t + {half}u) * LDA + ty + {i}u * TY];")
            })
        };
        let mut text = load_a(0) + &load_a(1);
        text += &lines(tm, |i| format!("            let m{i} = more_a[t * BM + ty + {i}u * TY];"));
        for j in 0..tn {
            text += &format!(
                "            {{
            let b0 = codes_b[2u * t * LDB + tx + {j}u * TX];
            let b1 = codes_b[(2u * t + 1u) * LDB + tx + {j}u * TX];
            let n = more_b[t * BN + tx + {j}u * TX];\n"
            );
            text += &lines(tm, |i| {
                let s = i * tn + j;
                match format.halves_differ() {
                    true => format!(
                        "            s{s} = fma(m{i}.x, fma(n.x, f32(dot16(a0_{i}, b0)), n.y * f32(dot16(a1_{i}, b1))), s{s});"
                    ),
                    false => format!(
                        "            s{s} = fma(m{i}.x * n.x, f32(dot16(a0_{i}, b0) + dot16(a1_{i}, b1)), fma(m{i}.y, n.y, s{s}));"
                    ),
                }
            });
            text += "            }\n";
        }
        text
    }

    fn store(&self) -> String {
        let Self { tm, tn, .. } = *self;
        let mut text = String::new();
        for i in 0..tm {
            text += &format!(
                "    {{\n        let row = row0 + ty + {i}u * TY;\n        if (row < params.m) {{\n"
            );
            text += &lines(tn, |j| {
                let s = i * tn + j;
                format!(
                    "            if (col0 + tx + {j}u * TX < params.n) {{ put1(s{s}, slice, row, col0 + tx + {j}u * TX); }}"
                )
            });
            text += "        }\n    }\n";
        }
        text
    }
}
