//! Kernels along the rows of a matrix. A team of threads, up to a whole workgroup, takes a row; several rows share a
//! workgroup where they are short. A row that fits the team's registers is read once.

mod layer_norm;
mod rms_norm;
mod row_reduce;
mod softmax;

pub use layer_norm::layer_norm;
pub use rms_norm::rms_norm;
pub use row_reduce::row_reduce;
pub use softmax::softmax;

use super::{
    Elem, KernelError, Plan, Role,
    group::Group,
    plan::{alignment, kernel, padded, product, step, threads, window},
    storage::{Form, Lanes, declare, enable},
    template::expand,
};
use crate::kernel::{Access, Caps, StorageBinding};

/// A matrix whose rows a kernel takes one by one: input 0, and an output 0 of the same shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rows {
    /// The rows.
    pub rows: u64,
    /// Elements in a row.
    pub width: u64,
    /// The type of the input.
    pub input: Elem,
    /// The type of the output.
    pub output: Elem,
    /// The output is stored in the input's buffer, which is then bound once, as [`Role::Input`]; they have one type.
    pub in_place: bool,
}

/// A kernel along rows, but for the shape.
struct RowKernel<'a> {
    label: &'static str,
    /// The text of the work on one row, after `{{at}}` and `{{out}}` are known.
    body: &'a str,
    /// Functions that the body needs.
    functions: &'a str,
    /// The group functions that it calls.
    group: &'a [&'static str],
    /// Inputs of one row that all rows share: names and types. They are inputs 1, 2, …
    shared: &'a [(&'static str, Elem)],
    /// The members of `Params` after the kernel's own, and their words.
    params: &'a [(&'static str, u32)],
    /// One output for each row instead of a row of them.
    one_result: bool,
}

/// Vectors of a row that a thread keeps.
const KEPT: u64 = 8;

impl RowKernel<'_> {
    fn plan(&self, matrix: &Rows, caps: &Caps) -> Result<Plan, KernelError> {
        let Rows { rows, width, input, output, in_place } = *matrix;
        let op = || self.label.to_owned();
        let invalid = |reason: &str| KernelError::Invalid { op: op(), reason: reason.to_owned() };
        let bytes = product(self.label, "the number of bytes", &[rows, width, 4])?;
        if in_place && (input != output || self.one_result) {
            return Err(invalid("in place, the input and the output have one type and shape"));
        }
        let out_width = if self.one_result { 1 } else { width };
        if output.form(caps) == Form::PackedF16 && out_width % 4 != 0 {
            return Err(invalid(
                "without 16-bit floats in kernels, stored ones need rows of a multiple of 4",
            ));
        }
        let mut plan = Plan::default();
        if rows == 0 || bytes == 0 && !self.one_result {
            return Ok(plan);
        }
        let text = self.text(matrix, caps);
        let widest = self.shared.iter().map(|(_, elem)| elem.bytes()).max().unwrap_or(0);
        let row_bytes = width * widest.max(input.bytes()).max(output.bytes());
        let most = if padded(rows * row_bytes) <= caps.max_binding {
            rows
        } else {
            // A binding may begin early, by less than the alignment.
            caps.max_binding.saturating_sub(alignment(caps) + 16) / row_bytes
        };
        if most == 0 {
            let (bytes, limit) = (row_bytes + alignment(caps) + 16, caps.max_binding);
            return Err(KernelError::TooLarge { op: op(), what: "a row", bytes, limit });
        }
        let mut start = 0;
        while start < rows {
            let count = most.min(rows - start);
            let (x, early) =
                window(Role::Input(0), start * width, (count * width).max(1), input.bytes(), caps);
            let mut bindings = vec![x];
            for (i, (_, elem)) in self.shared.iter().enumerate() {
                bindings.push(window(Role::Input(i + 1), 0, width, elem.bytes(), caps).0);
            }
            let mut out_early = early;
            if !in_place {
                let (out, by) =
                    window(Role::Output(0), start * out_width, count * out_width, output.bytes(), caps);
                bindings.push(out);
                out_early = by;
            }
            let lanes = text.lanes.count();
            let out_lanes = if self.one_result { 1 } else { lanes };
            // A binding has less than 2^32 elements.
            let own = [count, width / lanes, early / lanes, out_early / out_lanes];
            let mut params: Vec<u32> = own.iter().map(|&word| word as u32).collect();
            params.push((width as f32).to_bits());
            params.extend(self.params.iter().map(|(_, word)| word));
            let groups = count.div_ceil(u64::from(text.threads / text.team));
            plan.steps.push(step(text.kernel.clone(), params, groups, bindings, caps)?);
            start += count;
        }
        Ok(plan)
    }

    fn text(&self, matrix: &Rows, caps: &Caps) -> RowText {
        let Rows { width, input, output, in_place, .. } = *matrix;
        let lanes = if width % 4 == 0 { Lanes::Four } else { Lanes::One };
        let units = width / lanes.count();
        let threads = threads(if units >= 4096 { 1024 } else { 256 }, caps);
        // A power of two within `threads`.
        let team = units.max(1).next_power_of_two().min(threads.into()) as u32;
        let per_thread = units.div_ceil(team.into());
        let kept = per_thread <= KEPT;

        let x_access = if in_place { Access::ReadWrite } else { Access::Read };
        let mut bindings = Vec::new();
        let mut buffers = declare(&mut bindings, "x", input.form(caps), lanes, x_access);
        let mut forms = vec![input.form(caps), output.form(caps)];
        for (name, elem) in self.shared {
            buffers += &declare(&mut bindings, name, elem.form(caps), lanes, Access::Read);
            forms.push(elem.form(caps));
        }
        if !in_place {
            let out_lanes = if self.one_result { Lanes::One } else { lanes };
            if out_lanes == lanes {
                buffers += &declare(&mut bindings, "out", output.form(caps), lanes, Access::ReadWrite);
            } else {
                bindings.push(StorageBinding::read_write("out", "f32"));
                buffers += "fn store_out(i: u32, v: f32) { out[i] = v; }\n";
            }
        }
        let group = Group::new(self.group, threads, team, caps);
        let params: String = self.params.iter().map(|(name, _)| format!("    {name}: f32,\n")).collect();
        let (keep, each, value) = if kept {
            (
                format!(
                    "    var kept: array<EwF, {per_thread}>;\n    \
                     for (var k = 0u; k < {per_thread}u; k += 1u) {{\n        \
                     let i = place + k * {team}u;\n        if (i < units) {{ kept[k] = load_x(at + i); }}\n    }}\n"
                ),
                format!(
                    "for (var k = 0u; k < {per_thread}u; k += 1u) {{\n        let i = place + k * {team}u;\n        \
                     if (i >= units) {{ break; }}"
                ),
                "kept[k]",
            )
        } else {
            let each = format!("for (var i = place; i < units; i += {team}u) {{");
            (String::new(), each, "load_x(at + i)")
        };
        let wgsl = expand(
            include_str!("rows.wgsl"),
            &[
                ("enable", enable(&forms)),
                ("label", self.label),
                ("params", &params),
                ("aliases", lanes.aliases()),
                ("buffers", &buffers),
                ("functions", &[&group.functions, self.functions].concat()),
                ("arguments", group.arguments),
                ("begin", group.begin),
                ("keep", &keep),
                ("body", self.body),
                ("each", &each),
                ("value", value),
                ("store", if in_place { "store_x" } else { "store_out" }),
                ("threads", &threads.to_string()),
                ("team", &team.to_string()),
            ],
        );
        let words = 5 + self.params.len() as u32;
        RowText { kernel: kernel(self.label, wgsl, bindings, words), lanes, threads, team }
    }
}

struct RowText {
    kernel: crate::kernel::Kernel,
    lanes: Lanes,
    threads: u32,
    team: u32,
}
