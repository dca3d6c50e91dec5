//! The kernel for few rows of A: bound by the reading of W.

use super::format::Format;
use super::quantize;
use crate::kernel::{Launch, fold_grid};
use crate::kernels::matmul::PlanError;
use crate::kernels::matmul::head::{Job, Numbers, Store};
use crate::kernels::matmul::rows_nk::{text_rows, tree};
use crate::kernels::{matmul::text::lines, template::expand};

/// What A is multiplied as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Values {
    /// int8 codes with a scale for every 32, made by a launch before the product.
    Int8,
    /// f32, as it is.
    Float,
}

/// How the lanes of a team add up their sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Team {
    /// By shuffles. No subgroup may have fewer threads than the team.
    Shuffle,
    /// By workgroup memory.
    Memory,
}

/// A choice of this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    /// What A is multiplied as.
    pub values: Values,
    /// Threads of a workgroup.
    pub threads: u32,
    /// Threads that share rows of W: 8, 16, 32 or a larger power of two.
    pub lanes: u32,
    /// Rows of W that a team takes at once.
    pub rows: u32,
    /// Items of each of these rows that are loaded before the first is used.
    pub unroll: u32,
    /// How a team adds up.
    pub team: Team,
}

impl std::fmt::Display for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { values, threads, lanes, rows, unroll, team } = self;
        write!(f, "rows {values:?} threads={threads} lanes={lanes} rows={rows} unroll={unroll} {team:?}")
    }
}

const TEMPLATE: &str = include_str!("rows.wgsl");

impl Rows {
    /// The launch of the product; binds A (or its codes), W, the output and the epilogue's inputs.
    pub(super) fn launch(&self, format: Format, job: &Job<'_>) -> Result<Launch, PlanError> {
        self.check(job)?;
        let m = text_rows(job.shape.m);
        let (teams, k) = (self.threads / self.lanes, job.shape.k);
        let count = job.n().div_ceil(teams * self.rows);
        let workgroups = fold_grid(count.into(), job.caps.max_workgroups).ok_or(PlanError::Grid)?;
        let (a, stride, dot) = match self.values {
            Values::Int8 => ("vec4<u32>", quantize::stride(k), include_str!("dot_int8.wgsl")),
            Values::Float => ("vec4<f32>", k / 4, include_str!("dot_float.wgsl")),
        };
        let mut head = job.head(&[("a", a), ("w", "vec4<u32>")], 1, Store::Output);
        head.text += &format.text();
        head.text += &expand(dot, &[("add", format.add()), ("unpack", format.unpack())]);
        // A row of A has `span` vectors.
        let bases =
            lines(self.rows, |r| format!("    let p{r} = min(row0 + {r}u, params.n - 1u) * row_of_w;"))
                + &lines(m, |i| format!("    let q{i} = min({i}u, params.m - 1u) * params.span;"));
        let rest = match self.unroll {
            1 => String::new(),
            _ => format!("    for (; it < items; it += {}u) {{\n{}    }}\n", self.lanes, self.step(m, 1)),
        };
        let shuffle = self.team == Team::Shuffle;
        let builtins = "    @builtin(subgroup_invocation_id) lane_in_subgroup: u32,\n    \
                        @builtin(subgroup_id) subgroup: u32,\n    \
                        @builtin(subgroup_size) width: u32,\n";
        let main = expand(
            TEMPLATE,
            &[
                ("team", &self.lanes.to_string()),
                ("teams", &teams.to_string()),
                ("rows", &self.rows.to_string()),
                ("threads", &self.threads.to_string()),
                ("builtins", if shuffle { builtins } else { "" }),
                ("thread", if shuffle { "subgroup * width + lane_in_subgroup" } else { "local" }),
                ("shared", &self.shared()),
                ("bases", &bases),
                ("sums", &lines(m * self.rows, |s| format!("    var s{s} = 0.0;"))),
                ("last", &((self.unroll - 1) * self.lanes).to_string()),
                ("stride", &(self.unroll * self.lanes).to_string()),
                ("all", &self.step(m, self.unroll)),
                ("rest", &rest),
                ("reduce", &self.reduce(m)),
            ],
        );
        let label = format!("qmatmul {format:?} {self} m={m}");
        let numbers = Numbers { count, span: stride, slices: 1 };
        Ok(job.launch(label, head, &main, workgroups, numbers, Store::Output))
    }

    fn check(&self, job: &Job<'_>) -> Result<(), PlanError> {
        let unfit = |why| Err(PlanError::Unfit { choice: self.to_string(), why });
        let Self { threads, lanes, rows, unroll, .. } = *self;
        if lanes < 8 || !lanes.is_power_of_two() || threads == 0 || !threads.is_multiple_of(lanes) {
            return unfit("the workgroup is not a number of teams");
        }
        if threads > job.caps.max_invocations {
            return unfit("the device's workgroups are smaller");
        }
        if self.team == Team::Memory && threads * 4 > job.caps.workgroup_memory {
            return unfit("workgroup memory is too small");
        }
        match (self.team, job.caps.subgroups) {
            (Team::Shuffle, None) => return unfit("there are no subgroups here"),
            (Team::Shuffle, Some((min, max))) if min < lanes || !threads.is_multiple_of(max) => {
                return unfit("the subgroups are of other widths");
            }
            _ => {}
        }
        if rows == 0 || unroll == 0 || job.shape.m > 8 || text_rows(job.shape.m) * rows > 32 {
            return unfit("too many sums for the registers");
        }
        Ok(())
    }

    /// `count` items of each row.
    fn step(&self, m: u32, count: u32) -> String {
        let mut text = String::new();
        for u in 0..count {
            let at = u * self.lanes;
            text += &lines(self.rows, |r| format!("        let x{r}_{u} = fetch(p{r}, it + {at}u);"));
        }
        for u in 0..count {
            let at = u * self.lanes;
            text += &lines(self.rows, |r| format!("        let w{r}_{u} = decode(x{r}_{u}, it + {at}u);"));
            for i in 0..m {
                text += &format!("        let v{i}_{u} = values(q{i}, it + {at}u);\n");
                text += &lines(self.rows, |r| {
                    let s = i * self.rows + r;
                    format!("        s{s} = add(s{s}, w{r}_{u}, v{i}_{u});")
                });
            }
        }
        text
    }

    fn shared(&self) -> String {
        match self.team {
            Team::Shuffle => String::new(),
            Team::Memory => format!("var<workgroup> shared_sums: array<f32, {}>;", self.threads),
        }
    }

    /// Adds up the lanes' sums; each lane stores its own outputs.
    fn reduce(&self, m: u32) -> String {
        let outputs = m * self.rows;
        let mut text = lines(outputs, |s| match self.team {
            Team::Memory => tree(s, &format!("s{s}"), self.lanes),
            Team::Shuffle => {
                let halves =
                    std::iter::successors(Some(self.lanes / 2), |h| Some(h / 2)).take_while(|h| *h > 0);
                let adds = halves.map(|h| format!("    t{s} += subgroupShuffleXor(t{s}, {h}u);\n"));
                format!("    var t{s} = s{s};\n{}", adds.collect::<String>())
            }
        });
        for first in (0..outputs).step_by(self.lanes as usize) {
            let here = self.lanes.min(outputs - first);
            text += &format!("    {{\n        var v = t{first};\n");
            text += &lines(here - 1, |i| {
                let lane = i + 1;
                format!("        if (lane == {lane}u) {{ v = t{}; }}", first + lane)
            });
            text += &format!(
                "        let row = (lane + {first}u) / {r}u;\n        \
                 let col = row0 + (lane + {first}u) % {r}u;\n        \
                 if (lane < {here}u && row < params.m && col < params.n) {{ \
                 put1(v, 0u, row, col); }}\n    }}\n",
                r = self.rows
            );
        }
        text
    }
}
