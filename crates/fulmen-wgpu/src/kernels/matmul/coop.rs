//! The kernel for matrix units (cooperative matrices): 16-bit floats in, sums in f32.
//!
//! A is turned into 16 bits by a launch before (`halve.rs`), each row scaled by a power of two. B is 16-bit floats as it is,
//! or blocks that are decoded into 16 bits on the way into workgroup memory.
//!
//! The squares are multiplied by `coopMultiplyAdd`. [`Squares::Threads`] multiplies them by ordinary arithmetic instead,
//! with everything else the same: slow, and for tests of all but that call on devices without matrix units.

use super::head::{Job, Numbers, Store};
use super::text::lines;
use super::{Layout, PlanError, WeightType};
use crate::kernel::{Caps, Launch, fold_grid};
use crate::kernels::template::expand;

/// What multiplies squares of 16 by 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Squares {
    /// Matrix units.
    Units,
    /// The threads of a subgroup's size, by ordinary arithmetic.
    Threads,
}

/// A choice of this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Coop {
    /// Rows of a tile: a multiple of `wm`.
    pub bm: u32,
    /// Columns of a tile: a multiple of `wn`.
    pub bn: u32,
    /// Elements of k in a slab: 32 or 64.
    pub bk: u32,
    /// Rows of a subgroup: a multiple of 16.
    pub wm: u32,
    /// Columns of a subgroup: a multiple of 16.
    pub wn: u32,
    /// Slices of k, each a workgroup of its own.
    pub slices: u32,
    /// What multiplies.
    pub squares: Squares,
}

impl std::fmt::Display for Coop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { bm, bn, bk, wm, wn, slices, squares } = self;
        write!(f, "coop {bm}x{bn}x{bk} by {wm}x{wn} slices={slices}")?;
        if *squares == Squares::Units { Ok(()) } else { f.write_str(" without units") }
    }
}

/// The tiles that are worth trying, largest first.
pub const COOP_TILES: [Coop; 7] = [
    tile([128, 256, 32], [64, 64]),
    tile([128, 128, 32], [64, 64]),
    tile([128, 128, 32], [64, 32]),
    tile([64, 128, 32], [32, 32]),
    tile([64, 64, 64], [32, 32]),
    tile([32, 64, 64], [16, 32]),
    tile([16, 128, 64], [16, 32]),
];

const fn tile(b: [u32; 3], w: [u32; 2]) -> Coop {
    Coop { bm: b[0], bn: b[1], bk: b[2], wm: w[0], wn: w[1], slices: 1, squares: Squares::Units }
}

/// Where the tiles of B come from.
pub(in crate::kernels) struct Source {
    /// The name and the type of B's array in WGSL.
    pub(in crate::kernels) array: (&'static str, &'static str),
    /// `row_base(row)`, where a row begins; `fetch_b(base, k)`, what is to be loaded of its elements from `k` on; and
    /// `decode_b(raw, k, v)`, the `v`-th four of them.
    pub(in crate::kernels) functions: String,
    /// Vectors of four elements that are fetched at once.
    pub(in crate::kernels) per_unit: u32,
    /// The type of what is fetched.
    pub(in crate::kernels) raw: &'static str,
}

/// Subgroup width of matrix units here.
const WIDTH: u32 = 32;

const TEMPLATE: &str = include_str!("coop.wgsl");

impl Coop {
    /// Threads of a workgroup.
    pub const fn threads(&self) -> u32 {
        (self.bm / self.wm) * (self.bn / self.wn) * WIDTH
    }

    /// Vectors between rows of a slab.
    const fn ld(&self) -> u32 {
        self.bk / 4 + 2
    }

    /// Bytes of workgroup memory.
    pub const fn workgroup_bytes(&self) -> u32 {
        (self.bm + self.bn) * self.ld() * 8 + self.threads() / WIDTH * 1024
    }

    /// Whether a device can run it.
    pub fn fits(&self, caps: &Caps) -> bool {
        let units = caps.cooperative_matrix && caps.subgroups == Some((WIDTH, WIDTH));
        caps.f16
            && (units || self.squares == Squares::Threads)
            && self.threads() <= caps.max_invocations
            && self.workgroup_bytes() <= caps.workgroup_memory
    }

    fn slabs(&self, k: u32) -> u32 {
        k.div_ceil(self.bk)
    }

    fn span(&self, k: u32) -> u32 {
        self.slabs(k).div_ceil(self.slices.max(1))
    }

    /// Slices that hold something.
    pub(in crate::kernels) fn used_slices(&self, k: u32) -> u32 {
        self.slabs(k).div_ceil(self.span(k))
    }

    fn check(&self, job: &Job<'_>) -> Result<(), PlanError> {
        let unfit = |why| Err(PlanError::Unfit { choice: self.to_string(), why });
        let Self { bm, bn, bk, wm, wn, .. } = *self;
        let squares = wm >= 16 && wn >= 16 && wm.is_multiple_of(16) && wn.is_multiple_of(16);
        if !squares || bm == 0 || bn == 0 || !bm.is_multiple_of(wm) || !bn.is_multiple_of(wn) {
            return unfit("the tile is not a number of squares");
        }
        if ![32, 64].contains(&bk) {
            return unfit("slabs have 32 or 64 elements");
        }
        if wm * wn > 64 * 64 {
            return unfit("too many sums for the registers");
        }
        if job.shape.b != Layout::Nk {
            return unfit("B lies the other way");
        }
        if !job.caps.f16 {
            return unfit("the device has no 16-bit floats");
        }
        if !self.fits(job.caps) {
            return unfit("the device has no such matrix units, or its workgroups are smaller");
        }
        Ok(())
    }

    /// The launch that multiplies; with more than one slice it stores slices. Binds A in 16 bits, B, the scales of A's
    /// rows, and the output or the slices.
    pub(in crate::kernels) fn launch(&self, job: &Job<'_>, source: &Source) -> Result<Launch, PlanError> {
        self.check(job)?;
        let Self { bm, bn, bk, wm, wn, .. } = *self;
        let shape = job.shape;
        let slices = self.used_slices(shape.k);
        let store = if slices > 1 { Store::Slice } else { Store::Output };
        let tiles = u64::from(shape.m.div_ceil(bm)) * u64::from(job.n().div_ceil(bn)) * u64::from(slices);
        let count = u32::try_from(tiles).map_err(|_| PlanError::Grid)?;
        let workgroups = fold_grid(tiles, job.caps.max_workgroups).ok_or(PlanError::Grid)?;
        let inputs = [("a", "vec4<f16>"), source.array, ("scales", "f32")];
        let mut head = job.head(&inputs, job.n_width(), store);
        if self.squares == Squares::Units {
            head.text.insert_str(0, "enable wgpu_cooperative_matrix;\n");
        }
        let number = |n: u32| n.to_string();
        let (builtins, who) = match self.squares {
            Squares::Units => (
                "    @builtin(subgroup_id) team: u32,\n    @builtin(subgroup_invocation_id) lane: u32,\n",
                "",
            ),
            Squares::Threads => ("", "    let team = local / 32u;\n    let lane = local % 32u;"),
        };
        let main = expand(
            TEMPLATE,
            &[
                ("bm", &number(bm)),
                ("bn", &number(bn)),
                ("bk", &number(bk)),
                ("wm", &number(wm)),
                ("wn", &number(wn)),
                ("threads", &number(self.threads())),
                ("ld", &number(self.ld())),
                ("words_a", &number(bm * self.ld())),
                ("words_b", &number(bn * self.ld())),
                ("squares", &number(self.threads() / WIDTH * 64)),
                ("functions", &source.functions),
                ("builtins", builtins),
                ("band", "8"),
                ("who", who),
                ("teams_n", &number(bn / wn)),
                ("places", &self.places(source)),
                ("registers", &self.registers(source)),
                ("sums", &self.sums()),
                ("fetch_first", &self.fetch(source, "slab")),
                ("fetch_next", &self.fetch(source, "slab + 1u")),
                ("put", &self.put(source)),
                ("multiply", &self.multiply()),
                ("store", &self.store(job)),
            ],
        );
        let label = format!("matmul {self}");
        let numbers = Numbers { count, span: self.span(shape.k), slices };
        Ok(job.launch(label, head, &main, workgroups, numbers, store))
    }

    /// Units of B in a row of a slab.
    fn units(&self, source: &Source) -> u32 {
        self.bk / 4 / source.per_unit
    }

    /// Loads of A (vectors) and of B (units) that a thread does for a slab, and whether all threads do the last.
    fn loads(&self, source: &Source) -> [(u32, bool); 2] {
        let each = |all: u32| (all.div_ceil(self.threads()), all.is_multiple_of(self.threads()));
        [each(self.bm * self.bk / 4), each(self.bn * self.units(source))]
    }

    fn places(&self, source: &Source) -> String {
        let [(loads_a, _), (loads_b, _)] = self.loads(source);
        let (vectors, units, threads) = (self.bk / 4, self.units(source), self.threads());
        let a = lines(loads_a, |l| {
            format!(
                "    let ra{l} = (local + {at}u) / {vectors}u;
    let ka{l} = (local + {at}u) % {vectors}u;
    let pa{l} = min(row0 + ra{l}, params.m - 1u) * A_ROW;",
                at = l * threads
            )
        });
        let b = lines(loads_b, |l| {
            format!(
                "    let rb{l} = (local + {at}u) / {units}u;
    let kb{l} = (local + {at}u) % {units}u;
    let pb{l} = row_base(min(col0 + rb{l}, params.n - 1u));",
                at = l * threads
            )
        });
        // The rows of A are padded to whole slabs of 64.
        format!("    let A_ROW = (params.k + 63u) / 64u * 16u;\n{}", a + &b)
    }

    fn registers(&self, source: &Source) -> String {
        let [(loads_a, _), (loads_b, _)] = self.loads(source);
        lines(loads_a, |l| format!("    var va{l} = vec4<f16>();"))
            + &lines(loads_b, |l| format!("    var vb{l} = {}();", source.raw))
    }

    fn fetch(&self, source: &Source, slab: &str) -> String {
        let [(loads_a, _), (loads_b, _)] = self.loads(source);
        let (vectors, unit) = (self.bk / 4, source.per_unit * 4);
        lines(loads_a, |l| format!("            va{l} = a[pa{l} + ({slab}) * {vectors}u + ka{l}];"))
            + &lines(loads_b, |l| {
                format!("            vb{l} = fetch_b(pb{l}, ({slab}) * {}u + kb{l} * {unit}u);", self.bk)
            })
    }

    fn put(&self, source: &Source) -> String {
        let [(loads_a, all_a), (loads_b, all_b)] = self.loads(source);
        let threads = self.threads();
        let guard = |last: bool, l: u32, all: u32, text: String| match last {
            false => text,
            true => format!("        if (local + {}u < {all}u) {{\n{text}\n        }}", l * threads),
        };
        let per = source.per_unit;
        lines(loads_a, |l| {
            let text = format!("        slab_a[ra{l} * LD + ka{l}] = va{l};");
            guard(l + 1 == loads_a && !all_a, l, self.bm * self.bk / 4, text)
        }) + &lines(loads_b, |l| {
            let k = format!("slab * {}u + kb{l} * {}u", self.bk, per * 4);
            let text = lines(per, |v| {
                format!("        slab_b[rb{l} * LD + kb{l} * {per}u + {v}u] = decode_b(vb{l}, {k}, {v}u);")
            });
            guard(l + 1 == loads_b && !all_b, l, self.bn * self.units(source), text)
        })
    }

    fn squares_of(&self) -> (u32, u32) {
        (self.wm / 16, self.wn / 16)
    }

    fn sums(&self) -> String {
        let (rows, cols) = self.squares_of();
        let zero = match self.squares {
            Squares::Units => "coop_mat16x16<f32, C>()",
            Squares::Threads => "array<f32, 8>()",
        };
        lines(rows * cols, |s| format!("    var s{s} = {zero};"))
    }

    /// The products of one slab.
    fn multiply(&self) -> String {
        let (rows, cols) = self.squares_of();
        let mut text = String::new();
        for k in (0..self.bk / 4).step_by(4) {
            text += "        {\n";
            let at =
                |name: &str, first: &str, i: u32| format!("slab_{name}[({first} + {}u) * LD + {k}u]", i * 16);
            match self.squares {
                Squares::Units => {
                    text += &lines(rows, |i| {
                        let from = at("a", "mine_m", i);
                        format!("        let a{i} = coopLoadT<coop_mat16x16<f16, A>>(&{from}, LD);")
                    });
                    for j in 0..cols {
                        let from = at("b", "mine_n", j);
                        text +=
                            &format!("        let b{j} = coopLoad<coop_mat16x16<f16, B>>(&{from}, LD);\n");
                        text += &lines(rows, |i| {
                            let s = i * cols + j;
                            format!("        s{s} = coopMultiplyAdd(a{i}, b{j}, s{s});")
                        });
                    }
                }
                Squares::Threads => {
                    for s in 0..rows * cols {
                        let (i, j) = (s / cols * 16, s % cols * 16);
                        text += &format!(
                            "        for (var e = 0u; e < 8u; e++) {{
            for (var q = 0u; q < 4u; q++) {{
                let x = vec4<f32>(slab_a[(mine_m + {i}u + lane / 2u) * LD + {k}u + q]);
                let y = vec4<f32>(slab_b[(mine_n + {j}u + (lane % 2u) * 8u + e) * LD + {k}u + q]);
                s{s}[e] += dot(x, y);
            }}
        }}\n"
                        );
                    }
                }
            }
            text += "        }\n";
        }
        text
    }

    /// Each square through workgroup memory into the output or a slice.
    fn store(&self, job: &Job<'_>) -> String {
        let (rows, cols) = self.squares_of();
        let mut text = String::new();
        for s in 0..rows * cols {
            let (i, j) = (s / cols * 16, s % cols * 16);
            text += &match self.squares {
                Squares::Units => format!("    coopStoreT(s{s}, &square[team * 64u], 4u);\n"),
                Squares::Threads => format!(
                    "    for (var e = 0u; e < 8u; e++) {{ square[team * 64u + lane * 2u + e / 4u][e % 4u] = s{s}[e]; }}\n"
                ),
            };
            text += &format!(
                "    workgroupBarrier();
    for (var half = 0u; half < 16u; half += 8u) {{
        let row = row0 + mine_m + {i}u + at_row + half;
        if (row < params.m) {{
            let four = square[team * 64u + (at_row + half) * 4u + lane % 4u];
            put4(four * scales[row], slice, row, col0 + mine_n + {j}u + at_col);
        }}
    }}
    workgroupBarrier();\n"
            );
        }
        debug_assert_eq!(job.products(), 1);
        text
    }
}

/// B as 16-bit floats.
pub(super) fn plain(job: &Job<'_>) -> Result<Source, PlanError> {
    if job.shape.elem != WeightType::F16 {
        let why = "B is not 16-bit floats";
        return Err(PlanError::Unfit { choice: "coop".to_owned(), why });
    }
    let width = job.k_width();
    let fetch = match width {
        4 => {
            "fn fetch_b(base: u32, k: u32) -> vec4<f16> { return b[base + min(k, params.k - 4u) / 4u]; }\n\
             fn row_base(row: u32) -> u32 { return row * (params.k / 4u); }\n"
        }
        _ => {
            "fn one_b(base: u32, k: u32) -> f16 { return b[base + min(k, params.k - 1u)]; }\n\
             fn fetch_b(base: u32, k: u32) -> vec4<f16> {\n    \
             return vec4<f16>(one_b(base, k), one_b(base, k + 1u), one_b(base, k + 2u), one_b(base, k + 3u));\n}\n\
             fn row_base(row: u32) -> u32 { return row * params.k; }\n"
        }
    };
    // What lies past k counts for nothing: A is zero there, but B may be infinite.
    let decode = "fn decode_b(v: vec4<f16>, k: u32, part: u32) -> vec4<f16> {\n    \
                  let there = vec4<u32>(k, k + 1u, k + 2u, k + 3u) < vec4<u32>(params.k);\n    \
                  return select(vec4<f16>(), v, there);\n}\n";
    Ok(Source {
        array: ("b", WeightType::F16.element(width, job.caps)),
        functions: format!("{fetch}{decode}"),
        per_unit: 1,
        raw: "vec4<f16>",
    })
}
