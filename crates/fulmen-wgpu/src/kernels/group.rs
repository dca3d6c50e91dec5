//! Sums and maxima over the threads of a workgroup.

use super::template::expand;
use crate::kernel::Caps;

/// The text of `group_sum(f32)`, `group_max(f32)` and `group_max_key(u32)` over each `team` of the workgroup's
/// `threads`, and of the variables that they use, which `main` sets first. They must be called by all threads
/// together, and give each of them the result.
pub(super) struct Group {
    /// The functions.
    pub(super) functions: String,
    /// The arguments of `main` that it needs, each with a comma after it.
    pub(super) arguments: &'static str,
    /// The lines with which `main` begins.
    pub(super) begin: &'static str,
}

/// What is reduced, in the order of the functions' names.
const FUNCTIONS: [[&str; 5]; 3] = [
    ["group_sum", "f32", "a + b", "subgroupAdd", "0.0"],
    ["group_max", "f32", "max(a, b)", "subgroupMax", "-3.4028234e38"],
    ["group_max_key", "u32", "max(a, b)", "subgroupMax", "0u"],
];

impl Group {
    /// The functions named, for teams of a power of two of threads.
    pub(super) fn new(names: &[&str], threads: u32, team: u32, caps: &Caps) -> Self {
        // Smaller teams may lie across subgroups in ways that differ among devices.
        let subgroups = caps.subgroups.is_some() && team == threads && team > 1;
        let template = match (team, subgroups) {
            (1, _) => "fn {{name}}(value: {{type}}) -> {{type}} { return value; }\n",
            (_, true) => include_str!("group_subgroups.wgsl"),
            (_, false) => include_str!("group_plain.wgsl"),
        };
        let (team, threads) = (team.to_string(), threads.to_string());
        let functions = FUNCTIONS.iter().filter(|[name, ..]| names.contains(name));
        let functions = functions.map(|[name, of, combine, subgroup, none]| {
            expand(
                template,
                &[
                    ("name", name),
                    ("type", of),
                    ("combine", combine),
                    ("subgroup", subgroup),
                    ("none", none),
                    ("team", &team),
                    ("threads", &threads),
                ],
            )
        });
        let variables = if subgroups {
            "var<private> group_thread: u32;\nvar<private> group_lane: u32;\n\
             var<private> group_part: u32;\nvar<private> group_parts: u32;\n"
        } else {
            "var<private> group_thread: u32;\n"
        };
        let functions = format!("{variables}{}", functions.collect::<String>());
        if subgroups {
            Self {
                functions,
                arguments: "    @builtin(subgroup_invocation_id) lane: u32,\n    @builtin(subgroup_id) part: u32,\n    \
                            @builtin(num_subgroups) parts: u32,\n",
                begin: "    group_thread = thread;\n    group_lane = lane;\n    group_part = part;\n    \
                        group_parts = parts;\n",
            }
        } else {
            Self { functions, arguments: "", begin: "    group_thread = thread;\n" }
        }
    }
}
