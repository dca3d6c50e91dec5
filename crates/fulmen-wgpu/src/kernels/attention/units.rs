//! Many rows, by matrix units (cooperative matrices): queries, keys, weights and values in 16 bits, scores and sums in f32.
//!
//! Weights are made with the highest score of a row that is known so far, or one that is up to 2^8 lower: so sums, which only
//! go through workgroup memory to be multiplied, are multiplied when a row's scores have risen by more, which is seldom.
//!
//! What a NaN among the values reaches is as in [`tiles`](super::tiles). Keys and values of `Q8_0` above 65504, which a cache of f16
//! does not hold either, are infinite here.

use fulmen_core::DType;

use super::{OP, Shape, Source, read, tiles};
use crate::kernel::Caps;
use crate::kernels::{
    KernelError, Plan, Role,
    bind::{Bind, invalid},
    matmul::{FragmentOps, text::lines},
};

/// Threads of a team, which is a subgroup where there are matrix units.
const WIDTH: u32 = 32;

/// Rows of a workgroup, and keys at a time.
const ROWS: u32 = tiles::ROWS;
const KEYS: u32 = 32;
const TEAMS: u32 = ROWS / 16;
const THREADS: u32 = TEAMS * WIDTH;

/// Vectors between rows of weights (of 4 halves) and of scores (of 4 floats).
const WEIGHTS_LD: u32 = KEYS / 4 + 2;
const SCORES_LD: u32 = KEYS / 4 + 1;

/// Whether the kernel takes such heads on such a device.
pub(super) fn fits(shape: &Shape, squares: FragmentOps, caps: &Caps) -> bool {
    let dtype = match shape.source {
        Source::Rows => DType::F32,
        Source::Cache { cache, .. } => cache.dtype,
    };
    let units = caps.cooperative_matrix && caps.subgroups == Some((WIDTH, WIDTH));
    let text = Text::new(shape, squares);
    matches!(dtype, DType::F16 | DType::Q8_0)
        && caps.f16
        && (units || squares == FragmentOps::Emulated)
        && text.head_dim.is_multiple_of(16)
        && text.head_dim <= 128
        && THREADS <= caps.max_invocations
        && text.workgroup_bytes() <= caps.workgroup_memory
}

pub(super) fn plan(shape: &Shape, squares: FragmentOps, caps: &Caps) -> Result<Plan, KernelError> {
    if !fits(shape, squares, caps) {
        let dim = shape.heads.head_dim;
        return Err(invalid(
            OP,
            format!("the device has no matrix units for heads of {dim} in such a cache"),
        ));
    }
    let text = Text::new(shape, squares);
    let mut bind = Bind::new("attention units", caps);
    bind.read("q", Role::Input(0), "vec4<f32>", shape.q_bytes)?;
    let (element, loads) = match text.halves {
        true => ("vec4<f16>", String::new()),
        false => ("u32", read::loads(shape)),
    };
    bind.read("k", Role::Input(1), element, shape.kv_bytes)?;
    bind.read("v", Role::Input(2), element, shape.kv_bytes)?;
    read::bind_places(shape, &mut bind, true)?;
    bind.write("out", Role::Output(0), "vec4<f32>", shape.q_bytes)?;
    let n_heads = shape.heads.n_heads;
    let row_tiles = shape.m.div_ceil(ROWS);
    let groups = u64::from(row_tiles) * u64::from(n_heads);
    let groups_word = u32::try_from(groups).map_err(|_| invalid(OP, "more than 2^32 tiles"))?;
    let functions = [&*read::places(shape, true), &loads].concat();
    let mut params = read::params(shape).to_vec();
    params.extend([shape.m, row_tiles, groups_word, shape.scale.to_bits()]);
    let several = shape.sequences();
    let (enable, builtins, who) = match squares {
        FragmentOps::CooperativeMatrix => (
            "enable f16;\nenable wgpu_cooperative_matrix;\n",
            "    @builtin(subgroup_id) team: u32,\n    @builtin(subgroup_invocation_id) lane: u32,\n",
            "    let thread = team * 32u + lane;",
        ),
        FragmentOps::Emulated => (
            "enable f16;\n",
            "",
            "    let thread = local;\n    let team = local / 32u;\n    let lane = local % 32u;",
        ),
    };
    let mut plan = Plan::default();
    bind.launch(
        &mut plan,
        include_str!("units.wgsl"),
        &[
            ("enable", enable),
            ("builtins", builtins),
            ("who", who),
            ("functions", &functions),
            ("sequence_array", if several { tiles::SEQUENCE_ARRAY } else { "" }),
            ("keep_sequence", if several { tiles::KEEP_SEQUENCE } else { "" }),
            ("sequences_begin", if several { tiles::SEVERAL } else { tiles::ONE }),
            ("sequences_end", if several { "    }\n" } else { "" }),
            (
                "seen",
                match several {
                    true => "select(0u, row_seen[mine], row_sequence[mine] == sequence)",
                    false => "row_seen[mine]",
                },
            ),
            ("queries", &text.queries()),
            ("sums", &text.zeros("    ", "o", text.squares_of_a_row())),
            ("places", &text.places()),
            ("registers", &text.registers()),
            ("fetch_keys", &text.fetch("k")),
            ("fetch_values", &text.fetch("v")),
            ("put_keys", &text.put("k")),
            ("put_values", &text.put("v")),
            ("multiply_keys", &text.multiply_keys()),
            ("own_scores", &text.own_scores()),
            ("highest", &text.highest()),
            ("new_top", text.new_top()),
            ("own_weights", &text.own_weights()),
            ("shrink", &text.shrink()),
            ("multiply_values", &text.multiply_values()),
            ("results", &text.results(n_heads)),
            ("n_heads", &n_heads.to_string()),
            ("group", &shape.group.to_string()),
            ("units", &text.units().to_string()),
            ("ld", &text.ld().to_string()),
            ("q_ld", &text.q_ld().to_string()),
            ("weights_ld", &WEIGHTS_LD.to_string()),
            ("scores_ld", &SCORES_LD.to_string()),
            ("slab", &text.slab().to_string()),
            ("scores", &(ROWS * SCORES_LD).to_string()),
            ("weights", &(ROWS * WEIGHTS_LD).to_string()),
            ("rows", &ROWS.to_string()),
            ("keys", &KEYS.to_string()),
            ("half", &(KEYS / 2).to_string()),
            ("threads", &THREADS.to_string()),
        ],
        params,
        groups,
    )?;
    Ok(plan)
}

/// The parts of the text that depend on the heads, and on what multiplies squares.
///
/// A square is a cooperative matrix, or `array<f32, 8>`: eight values of row `lane / 2` from column `lane % 2 * 8` on.
struct Text {
    head_dim: u32,
    /// The cache is 16-bit floats.
    halves: bool,
    squares: FragmentOps,
}

impl Text {
    fn new(shape: &Shape, squares: FragmentOps) -> Self {
        let halves = matches!(shape.source, Source::Cache { cache, .. } if cache.dtype == DType::F16);
        Self { head_dim: shape.heads.head_dim, halves, squares }
    }

    /// Vectors of a head.
    fn units(&self) -> u32 {
        self.head_dim / 4
    }

    /// Vectors between rows of the slab.
    fn ld(&self) -> u32 {
        self.units() + 2
    }

    /// Squares of a row of queries that are in the slab at once, and vectors between its rows then.
    fn q_squares(&self) -> u32 {
        self.squares_of_a_row().div_ceil(2)
    }

    fn q_ld(&self) -> u32 {
        4 * self.q_squares() + 2
    }

    fn slab(&self) -> u32 {
        (KEYS * self.ld()).max(ROWS * self.q_ld())
    }

    fn squares_of_a_row(&self) -> u32 {
        self.head_dim / 16
    }

    fn workgroup_bytes(&self) -> u32 {
        self.slab() * 8 + ROWS * (SCORES_LD * 16 + WEIGHTS_LD * 8 + 12) + 16
    }

    fn zeros(&self, indent: &str, name: &str, count: u32) -> String {
        let zero = match self.squares {
            FragmentOps::CooperativeMatrix => "coop_mat16x16<f32, C>()",
            FragmentOps::Emulated => "array<f32, 8>()",
        };
        lines(count, |i| format!("{indent}var {name}{i} = {zero};"))
    }

    /// The team's queries, for good: through the slab in two parts.
    fn queries(&self) -> String {
        let (all, part) = (self.squares_of_a_row(), self.q_squares());
        let mut text = match self.squares {
            FragmentOps::CooperativeMatrix => String::new(),
            FragmentOps::Emulated => format!("    var own_q: array<vec4<f16>, {}>;\n", self.units()),
        };
        for first in (0..all).step_by(part as usize) {
            let count = part.min(all - first);
            text += &format!(
                "    for (var u = side; u < {}u; u += 2u) {{\n        slab[mine * QLD + u] = \
                 vec4<f16>(select(q[query + {}u + u] * power, vec4<f32>(), strange));\n    }}\n    workgroupBarrier();\n",
                4 * count,
                4 * first
            );
            text += &match self.squares {
                FragmentOps::CooperativeMatrix => lines(count, |i| {
                    format!(
                        "    let q{} = coopLoadT<coop_mat16x16<f16, A>>(&slab[team * 16u * QLD + {}u], QLD);",
                        first + i,
                        4 * i
                    )
                }),
                FragmentOps::Emulated => format!(
                    "    for (var u = 0u; u < {}u; u += 1u) {{ own_q[{}u + u] = slab[mine * QLD + u]; }}\n",
                    4 * count,
                    4 * first
                ),
            };
            text += "    workgroupBarrier();\n";
        }
        text
    }

    /// Vectors of keys, and as many of values, that a thread brings. Heads are multiples of 16, so all threads bring as many.
    fn loads(&self) -> u32 {
        KEYS * self.units() / THREADS
    }

    fn places(&self) -> String {
        let units = self.units();
        lines(self.loads(), |l| {
            format!(
                "    let key{l} = (thread + {at}u) / {units}u;\n    let unit{l} = (thread + {at}u) % {units}u;",
                at = l * THREADS
            )
        })
    }

    fn registers(&self) -> String {
        lines(self.loads(), |l| format!("    var k{l} = vec4<f16>();\n    var v{l} = vec4<f16>();"))
    }

    /// Keys or values from `next` on, into registers.
    fn fetch(&self, name: &str) -> String {
        let units = self.units();
        lines(self.loads(), |l| {
            let row = format!("base + min(next + key{l}, limit - 1u)");
            match self.halves {
                true => format!("            {name}{l} = {name}[({row}) * {units}u + unit{l}];"),
                false => format!("            {name}{l} = vec4<f16>(load_{name}({row}, unit{l}));"),
            }
        })
    }

    /// The keys or the values in registers, into the slab.
    fn put(&self, name: &str) -> String {
        lines(self.loads(), |l| format!("        slab[key{l} * LD + unit{l}] = {name}{l};"))
    }

    /// Scores of the block's keys.
    fn multiply_keys(&self) -> String {
        let across = KEYS / 16;
        let mut text = self.zeros("            ", "s", across);
        match self.squares {
            FragmentOps::CooperativeMatrix => {
                for (i, j) in (0..self.squares_of_a_row()).flat_map(|i| (0..across).map(move |j| (i, j))) {
                    text += &format!(
                        "            let b{i}_{j} = coopLoad<coop_mat16x16<f16, B>>(&slab[{}u * LD + {}u], LD);\n            \
                         s{j} = coopMultiplyAdd(q{i}, b{i}_{j}, s{j});\n",
                        16 * j,
                        4 * i
                    );
                }
            }
            FragmentOps::Emulated => {
                text += &lines(across, |j| {
                    format!(
                        "            for (var e = 0u; e < 8u; e += 1u) {{\n                \
                         for (var u = 0u; u < {units}u; u += 1u) {{\n                    \
                         let x = vec4<f32>(slab[({first}u + lane % 2u * 8u + e) * LD + u]);\n                    \
                         s{j}[e] += dot(vec4<f32>(own_q[u]), x);\n                }}\n            }}",
                        units = self.units(),
                        first = 16 * j
                    )
                });
            }
        }
        text + &(0..across).map(|j| self.put_square("s", j, j)).collect::<String>()
    }

    /// A square into `scores`, at the left or at the right.
    fn put_square(&self, name: &str, i: u32, at: u32) -> String {
        match self.squares {
            FragmentOps::CooperativeMatrix => {
                format!("            coopStoreT({name}{i}, &scores[team * 16u * SLD + {}u], SLD);\n", 4 * at)
            }
            FragmentOps::Emulated => format!(
                "            for (var e = 0u; e < 8u; e += 1u) {{ \
                 scores[mine * SLD + {}u + lane % 2u * 2u + e / 4u][e % 4u] = {name}{i}[e]; }}\n",
                4 * at
            ),
        }
    }

    /// What [`put_square`](Self::put_square) put.
    fn take_square(&self, name: &str, i: u32, at: u32) -> String {
        match self.squares {
            FragmentOps::CooperativeMatrix => format!(
                "            {name}{i} = coopLoadT<coop_mat16x16<f32, C>>(&scores[team * 16u * SLD + {}u], SLD);\n",
                4 * at
            ),
            FragmentOps::Emulated => format!(
                "            for (var e = 0u; e < 8u; e += 1u) {{ \
                 {name}{i}[e] = scores[mine * SLD + {}u + lane % 2u * 2u + e / 4u][e % 4u]; }}\n",
                4 * at
            ),
        }
    }

    /// The scores of the thread's half of a row, as exponents of two.
    fn own_scores(&self) -> String {
        lines(KEYS / 8, |i| {
            format!(
                "        let there{i} = vec4<u32>({}u, {}u, {}u, {}u) < vec4<u32>(left);\n        \
                 let score{i} = select(vec4<f32>(-3.4028234e38), \
                 scores[mine * SLD + side * {}u + {i}u] * scale, there{i});",
                4 * i,
                4 * i + 1,
                4 * i + 2,
                4 * i + 3,
                KEYS / 8
            )
        })
    }

    /// The highest of them; where threads cannot ask each other, of the other half, too.
    fn highest(&self) -> String {
        let mut text = lines(KEYS / 8, |i| format!("        highest = max(highest, score{i});"));
        if self.squares == FragmentOps::Emulated {
            text += &format!(
                "        for (var i = 0u; i < {half}u; i += 1u) {{\n            \
                 let seen_there = start + (1u - side) * {half}u + i < seen;\n            \
                 let score = scores[mine * SLD + (1u - side) * {}u + i / 4u][i % 4u] * scale;\n            \
                 highest.x = max(highest.x, select(-3.4028234e38, score, seen_there));\n        }}\n",
                KEYS / 8,
                half = KEYS / 2
            );
        }
        text
    }

    /// The highest of the row.
    fn new_top(&self) -> &'static str {
        match self.squares {
            FragmentOps::CooperativeMatrix => "max(own_top, subgroupShuffleXor(own_top, 1u))",
            FragmentOps::Emulated => "own_top",
        }
    }

    fn own_weights(&self) -> String {
        lines(KEYS / 8, |i| {
            format!(
                "        let weight{i} = vec4<f16>(select(vec4<f32>(), exp2(score{i} - top), there{i}));\n        \
                 weights[mine * WLD + side * {}u + {i}u] = weight{i};\n        \
                 sum += dot(vec4<f32>(weight{i}), vec4<f32>(1.0));",
                KEYS / 8
            )
        })
    }

    /// The sums, two squares at a time, times the factors of their rows.
    fn shrink(&self) -> String {
        let across = self.squares_of_a_row();
        let mut text = "            let less = factors[mine];\n".to_owned();
        for first in (0..across).step_by(2) {
            let two = first..across.min(first + 2);
            text += &two.clone().map(|i| self.put_square("o", i, i - first)).collect::<String>();
            text += "            workgroupBarrier();\n";
            text += &lines(4, |i| format!("            scores[mine * SLD + side * 4u + {i}u] *= less;"));
            text += "            workgroupBarrier();\n";
            text += &two.map(|i| self.take_square("o", i, i - first)).collect::<String>();
            text += "            workgroupBarrier();\n";
        }
        text
    }

    /// What the block's values add to the sums.
    fn multiply_values(&self) -> String {
        let across = self.squares_of_a_row();
        match self.squares {
            FragmentOps::CooperativeMatrix => {
                let mut text = String::new();
                for k in 0..KEYS / 16 {
                    text += &format!(
                        "            let w{k} = coopLoadT<coop_mat16x16<f16, A>>(&weights[team * 16u * WLD + {}u], WLD);\n",
                        4 * k
                    );
                    text += &lines(across, |j| {
                        format!(
                            "            let y{k}_{j} = coopLoadT<coop_mat16x16<f16, B>>(&slab[{}u * LD + {}u], LD);\n            \
                             o{j} = coopMultiplyAdd(w{k}, y{k}_{j}, o{j});",
                            16 * k,
                            4 * j
                        )
                    });
                }
                text
            }
            FragmentOps::Emulated => lines(across, |j| {
                format!(
                    "            for (var e = 0u; e < 8u; e += 1u) {{\n                \
                     let column = {first}u + lane % 2u * 8u + e;\n                \
                     for (var key = 0u; key < {KEYS}u; key += 1u) {{\n                    \
                     o{j}[e] += f32(weights[mine * WLD + key / 4u][key % 4u]) \
                     * f32(slab[key * LD + column / 4u][column % 4u]);\n                }}\n            }}",
                    first = 16 * j
                )
            }),
        }
    }

    /// The sums, two squares at a time, as shares. A row with a query that is not finite is NaN.
    fn results(&self, n_heads: u32) -> String {
        let (across, units) = (self.squares_of_a_row(), self.units());
        let mut text = "    let there = row0 + mine < params.m;\n    \
                        let nan = select(vec4<u32>(), vec4<u32>(0x7fc00000u), strange && row_seen[mine] > 0u);\n"
            .to_owned();
        text += &format!("    let to = ((row0 + mine) * {n_heads}u + head) * {units}u + side * 4u;\n");
        for first in (0..across).step_by(2) {
            let two = first..across.min(first + 2);
            let whole = two.len() == 2;
            text += &two.map(|i| self.put_square("o", i, i - first)).collect::<String>();
            text += "    workgroupBarrier();\n";
            text += if whole { "    if (there) {\n" } else { "    if (there && side == 0u) {\n" };
            text += &lines(4, |i| {
                format!(
                    "        out[to + {}u] = bitcast<vec4<f32>>(\
                     bitcast<vec4<u32>>(scores[mine * SLD + side * 4u + {i}u] * share) | nan);",
                    4 * first + i
                )
            });
            text += "    }\n    workgroupBarrier();\n";
        }
        text
    }
}
