//! The kernel for few rows of A and B as `[n, k]`: bound by the reading of B.

use super::head::{Ending, Job, Numbers, Store};
use super::text::lines;
use super::{Elem, PlanError};
use crate::kernel::{Launch, fold_grid};
use crate::kernels::template::expand;

/// Which threads share a row of B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Team {
    /// A subgroup. The width must be fixed: [`Caps::subgroups`](crate::kernel::Caps::subgroups) with both ends equal.
    Subgroup,
    /// The workgroup, by subgroup sums of any width and workgroup memory.
    Workgroup,
    /// That many threads (a power of two), by workgroup memory alone.
    Lanes(u32),
}

/// A choice of this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowsNk {
    /// Threads of a workgroup.
    pub threads: u32,
    /// Rows of B that a team takes at once.
    pub rows: u32,
    /// Loads from each of these rows before the first is used.
    pub unroll: u32,
    /// Which threads share a row.
    pub team: Team,
    /// Whether k is a constant of the text: one pipeline for each k, with loops that unroll.
    pub fixed_k: bool,
}

impl std::fmt::Display for RowsNk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { threads, rows, unroll, team, fixed_k } = self;
        let fixed = if *fixed_k { " fixed" } else { "" };
        write!(f, "rows_nk threads={threads} rows={rows} unroll={unroll} {team:?}{fixed}")
    }
}

const TEMPLATE: &str = include_str!("rows_nk.wgsl");

/// Rows of A in a text: few enough texts that they are compiled once, few enough idle rows.
pub(in crate::kernels) fn text_rows(m: u32) -> u32 {
    [1, 2, 3, 4, 6, 8, 12, 16].into_iter().find(|&r| r >= m).unwrap_or(m)
}

/// The names and counts that shape the text.
struct Text {
    /// Rows of A.
    m: u32,
    /// Rows of B in a team.
    rows: u32,
    /// Products (two in a pair).
    products: u32,
    /// Threads of a team.
    team: u32,
    /// Elements in a load.
    width: u32,
    /// Whether the sums are vectors.
    wide: bool,
}

impl RowsNk {
    /// The one launch of this kernel.
    pub(super) fn launch(&self, job: &Job<'_>) -> Result<Launch, PlanError> {
        let text = self.check(job)?;
        let teams = self.threads / text.team;
        let count = job.n().div_ceil(teams * self.rows);
        let workgroups = fold_grid(count.into(), job.caps.max_workgroups).ok_or(PlanError::Grid)?;
        let elem = job.shape.elem;
        let b = elem.element(text.width, job.caps);
        let a = Elem::F32.wgsl(text.width);
        let inputs = [("a", a), ("b0", b), ("b1", b)];
        let mut head = job.head(&inputs[..1 + text.products as usize], 1, Store::Output);
        for p in 0..text.products {
            head.text += &elem.getter(&format!("b{p}"), text.width, job.caps);
        }
        let bases = lines(self.rows, |r| format!("    let p{r} = min(row0 + {r}u, params.n - 1u) * kv;"))
            + &lines(text.m, |i| format!("    let q{i} = min({i}u, params.m - 1u) * kv;"));
        let subgroups = !matches!(self.team, Team::Lanes(_));
        let (lane, team) = match self.team {
            Team::Subgroup => ("lane_in_subgroup".to_owned(), "subgroup".to_owned()),
            Team::Workgroup => ("local".to_owned(), "0u".to_owned()),
            Team::Lanes(w) => (format!("local % {w}u"), format!("local / {w}u")),
        };
        let builtins = "    @builtin(subgroup_invocation_id) lane_in_subgroup: u32,\n    @builtin(subgroup_id) \
                        subgroup: u32,\n    @builtin(num_subgroups) subgroups: u32,\n";
        let ty = if text.wide { "vec4<f32>" } else { "f32" };
        let (shared, reduce) = self.reduce(&text, job);
        let main = expand(
            TEMPLATE,
            &[
                ("rows", &self.rows.to_string()),
                ("threads", &self.threads.to_string()),
                ("builtins", if subgroups { builtins } else { "" }),
                ("lane", &lane),
                ("team", &team),
                ("teams", &teams.to_string()),
                ("length", &self.length(&text, job)),
                ("bases", &bases),
                ("sums", &lines(text.sums(), |s| format!("    var s{s} = {ty}();"))),
                ("loop", &self.walk(&text, job)),
                ("shared", &shared),
                ("reduce", &reduce),
            ],
        );
        let label = format!("matmul {self} m={}", text.m);
        Ok(job.launch(label, head, &main, workgroups, Numbers { count, span: 0, slices: 1 }, Store::Output))
    }

    fn check(&self, job: &Job<'_>) -> Result<Text, PlanError> {
        let unfit = |why| PlanError::Unfit { choice: self.to_string(), why };
        let team = match (self.team, job.caps.subgroups) {
            (Team::Subgroup, Some((min, max))) if min == max => min,
            (Team::Subgroup, _) => return Err(unfit("subgroups have no fixed width here")),
            (Team::Workgroup, None) => return Err(unfit("there are no subgroups here")),
            (Team::Workgroup, Some(_)) => self.threads,
            (Team::Lanes(width), _) => width,
        };
        if team == 0 || !self.threads.is_multiple_of(team) || !team.is_power_of_two() {
            return Err(unfit("the workgroup is not a number of teams"));
        }
        if self.threads > job.caps.max_invocations {
            return Err(unfit("the device's workgroups are smaller"));
        }
        let products = if let Ending::Pair(_) = job.ending { 2 } else { 1 };
        let m = text_rows(job.shape.m);
        let sums = m * self.rows * products;
        if m > 16 || sums > 128 || sums == 0 || self.unroll == 0 {
            return Err(unfit("too many sums for the registers"));
        }
        let width = job.k_width();
        let wide = width == 4 && sums <= 8;
        let text = Text { m, rows: self.rows, products, team, width, wide };
        if self.shared_words(&text, job) * 4 > job.caps.workgroup_memory {
            return Err(unfit("workgroup memory is too small"));
        }
        Ok(text)
    }

    /// Loads that a row takes: `kv`.
    fn length(&self, text: &Text, job: &Job<'_>) -> String {
        match self.fixed_k {
            true => format!("    const kv = {}u;", job.shape.k / text.width),
            false => format!("    let kv = params.k / {}u;", text.width),
        }
    }

    /// The walk along k.
    fn walk(&self, text: &Text, job: &Job<'_>) -> String {
        let Self { unroll, .. } = *self;
        let (stride, last) = (unroll * text.team, (unroll - 1) * text.team);
        let (all, one) = (text.step(unroll), text.step(1));
        let kv = job.shape.k / text.width;
        if self.fixed_k && kv.is_multiple_of(stride) {
            let steps = kv / stride;
            return format!(
                "    for (var step = 0u; step < {steps}u; step++) {{\n    let i = lane + step * {stride}u;\n{all}    }}\n"
            );
        }
        let rest = if unroll == 1 {
            String::new()
        } else {
            format!("    for (; i < kv; i += {}u) {{\n{one}    }}\n", text.team)
        };
        format!("    var i = lane;\n    for (; i + {last}u < kv; i += {stride}u) {{\n{all}    }}\n{rest}")
    }

    fn shared_words(&self, text: &Text, job: &Job<'_>) -> u32 {
        match (self.team, job.caps.subgroups) {
            (Team::Subgroup, _) => 0,
            (Team::Workgroup, Some((min, _))) => text.sums() * self.threads.div_ceil(min),
            _ => self.threads,
        }
    }

    /// The declaration of workgroup memory, and the text that adds up the lanes' sums and stores them.
    fn reduce(&self, text: &Text, job: &Job<'_>) -> (String, String) {
        let scalar = |s: u32| match text.wide {
            true => format!("((s{s}.x + s{s}.y) + (s{s}.z + s{s}.w))"),
            false => format!("s{s}"),
        };
        let words = self.shared_words(text, job);
        let shared = match words {
            0 => String::new(),
            words => format!("var<workgroup> shared_sums: array<f32, {words}>;"),
        };
        let sums = text.sums();
        let reduce = match self.team {
            Team::Subgroup => {
                lines(sums, |s| format!("    let t{s} = subgroupAdd({});", scalar(s)))
                    + &text.store_from_lanes()
            }
            Team::Lanes(width) => lines(sums, |s| tree(s, &scalar(s), width)) + &text.store_from_lanes(),
            Team::Workgroup => {
                let slots = words / sums;
                let write = lines(sums, |s| {
                    let at = format!("shared_sums[{}u + subgroup]", s * slots);
                    format!(
                        "    let t{s} = subgroupAdd({});\n    if (lane_in_subgroup == 0u) {{ {at} = t{s}; }}",
                        scalar(s)
                    )
                });
                write + &text.store_from_memory(slots)
            }
        };
        (shared, reduce)
    }
}

/// The sum of `value` over the lanes of a team, as `t{s}`, by halving in workgroup memory.
pub(in crate::kernels) fn tree(s: u32, value: &str, width: u32) -> String {
    let mut text = format!("    shared_sums[local] = {value};\n    workgroupBarrier();\n");
    let mut half = width / 2;
    while half > 0 {
        text.push_str(&format!(
            "    if (lane < {half}u) {{ shared_sums[local] += shared_sums[local + {half}u]; }}\n    workgroupBarrier();\n"
        ));
        half /= 2;
    }
    text + &format!("    let t{s} = shared_sums[local - lane];\n    workgroupBarrier();")
}

impl Text {
    fn sums(&self) -> u32 {
        self.m * self.rows * self.products
    }

    /// The number of the sum of row `i` of A, row `r` of B and product `p`.
    fn sum(&self, i: u32, r: u32, p: u32) -> u32 {
        (p * self.m + i) * self.rows + r
    }

    /// `count` loads from each row, then their use.
    fn step(&self, count: u32) -> String {
        let mut text = String::new();
        for u in 0..count {
            for r in 0..self.rows {
                for p in 0..self.products {
                    let at = u * self.team;
                    text += &format!("        let w{p}_{r}_{u} = get_b{p}(p{r} + i + {at}u);\n");
                }
            }
        }
        for u in 0..count {
            for i in 0..self.m {
                text += &format!("        let a{i}_{u} = a[q{i} + i + {}u];\n", u * self.team);
                for r in 0..self.rows {
                    for p in 0..self.products {
                        let (s, w, a) = (self.sum(i, r, p), format!("w{p}_{r}_{u}"), format!("a{i}_{u}"));
                        text += &match self.width == 4 && !self.wide {
                            false => format!("        s{s} = fma({w}, {a}, s{s});\n"),
                            true => ["x", "y", "z", "w"]
                                .map(|c| format!("        s{s} = fma({w}.{c}, {a}.{c}, s{s});\n"))
                                .concat(),
                        };
                    }
                }
            }
        }
        text
    }

    /// Every lane has every `t`: each lane stores its own.
    fn store_from_lanes(&self) -> String {
        let outputs = self.m * self.rows;
        let mut text = String::new();
        for first in (0..outputs).step_by(self.team as usize) {
            let here = self.team.min(outputs - first);
            text += "    {\n";
            for p in 0..self.products {
                text += &format!("        var v{p} = t{};\n", p * outputs + first);
                for lane in 1..here {
                    let t = p * outputs + first + lane;
                    text += &format!("        if (lane == {lane}u) {{ v{p} = t{t}; }}\n");
                }
            }
            text += &self.store(&format!("lane < {here}u"), &format!("(lane + {first}u)"));
            text += "    }\n";
        }
        text
    }

    /// Thread `local` adds up what the subgroups left of output `local`, and stores it.
    fn store_from_memory(&self, slots: u32) -> String {
        let outputs = self.m * self.rows;
        let mut text = format!(
            "    workgroupBarrier();\n    for (var q = local; q < {outputs}u; q += {}u) {{\n",
            self.team
        );
        for p in 0..self.products {
            text += &format!(
                "        var v{p} = 0.0;\n        for (var g = 0u; g < subgroups; g++) {{ v{p} += \
                 shared_sums[(q + {}u) * {slots}u + g]; }}\n",
                p * outputs
            );
        }
        text + &self.store("true", "q") + "    }\n"
    }

    /// Stores `v0` (and `v1`) as output number `q` where `condition` holds.
    fn store(&self, condition: &str, q: &str) -> String {
        let rows = self.rows;
        let values = if self.products == 2 { "v0, v1" } else { "v0" };
        format!(
            "        let out_row = {q} / {rows}u;\n        let out_col = row0 + {q} % {rows}u;\n        if ({condition} && \
             out_row < params.m && out_col < params.n) {{ put1({values}, 0u, out_row, out_col); }}\n"
        )
    }
}
