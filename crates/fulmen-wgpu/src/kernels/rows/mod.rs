//! Row-wise kernels. A team of threads, up to a whole workgroup, takes a row; short rows share a
//! workgroup. A row that fits in the team's registers is read once.

mod divided_norm;
mod layer_norm;
mod rms_norm;
mod row_reduce;
mod softmax;

pub use divided_norm::{RmsScale, mean_squares, rms_scale};
pub use layer_norm::layer_norm;
pub use rms_norm::rms_norm;
pub use row_reduce::row_reduce;
pub use softmax::softmax;

use super::{
    Elem, KernelError, LaunchList, Role,
    launch_list::{alignment, kernel, kernel_launch, padded, product, threads, window},
    preprocess::{render, values},
    storage::{Form, Lanes, declare},
    workgroup::{WorkgroupOp, WorkgroupReduce},
};
use crate::kernel::{Access, Caps, StorageBinding};

/// The matrix of a row-wise op: input 0, and output 0 of the same shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rows {
    /// Number of rows.
    pub rows: u64,
    /// Elements per row.
    pub width: u64,
    /// The type of the input.
    pub input: Elem,
    /// The type of the output.
    pub output: Elem,
    /// The output is stored in the input's buffer, which is then bound once, as [`Role::Input`]; both
    /// have the same type.
    pub in_place: bool,
}

/// A row-wise op.
struct RowKernel<'a> {
    label: &'static str,
    /// The file `rows/<body>.wgsl`.
    body: &'static str,
    /// The reductions that the body calls.
    reductions: &'a [WorkgroupOp],
    /// Inputs of one row that all rows share, with their types: inputs 1, 2, …
    shared: &'a [(&'static str, Elem)],
    /// The epsilon of a norm.
    eps: Option<f32>,
    /// `"-"` for a minimum, which is computed as a maximum of negated values.
    sign: &'static str,
    /// One result per row instead of a row of them.
    one_result: bool,
}

/// The most vectors of a row that a thread keeps in registers.
const MAX_KEPT: u64 = 8;

impl RowKernel<'_> {
    fn launch_list(&self, matrix: &Rows, caps: &Caps) -> Result<LaunchList, KernelError> {
        let Rows { rows, width, input, output, in_place } = *matrix;
        let op = || self.label.to_owned();
        let invalid = |reason: &str| KernelError::Invalid { op: op(), reason: reason.to_owned() };
        let bytes = product(self.label, "the number of bytes", &[rows, width, 4])?;
        if in_place && (input != output || self.one_result) {
            return Err(invalid("in place, input and output must have the same type and shape"));
        }
        let out_width = if self.one_result { 1 } else { width };
        if output.form(caps) == Form::PackedF16 && out_width % 4 != 0 {
            return Err(invalid("without f16 in kernels, stored f16 rows need a multiple of 4 elements"));
        }
        let mut list = LaunchList::default();
        if rows == 0 || bytes == 0 && !self.one_result {
            return Ok(list);
        }
        let rendered = self.render(matrix, caps);
        let widest = self.shared.iter().map(|(_, elem)| elem.bytes()).max().unwrap_or(0);
        let row_bytes = width * widest.max(input.bytes()).max(output.bytes());
        let most = if padded(rows * row_bytes) <= caps.max_binding {
            rows
        } else {
            // A binding may start before the first row, by less than the alignment.
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
            let lanes = rendered.lanes.count();
            let out_lanes = if self.one_result { 1 } else { lanes };
            // A binding has less than 2^32 elements.
            let own = [count, width / lanes, early / lanes, out_early / out_lanes];
            let mut params: Vec<u32> = own.iter().map(|&word| word as u32).collect();
            params.push((width as f32).to_bits());
            params.extend(self.eps.map(f32::to_bits));
            let groups = count.div_ceil(u64::from(rendered.threads / rendered.team));
            list.launches.push(kernel_launch(rendered.kernel.clone(), params, groups, bindings, caps)?);
            start += count;
        }
        Ok(list)
    }

    fn render(&self, matrix: &Rows, caps: &Caps) -> RenderedRows {
        let Rows { width, input, output, in_place, .. } = *matrix;
        let lanes = if width % 4 == 0 { Lanes::Four } else { Lanes::One };
        let vecs = width / lanes.count();
        let threads = threads(if vecs >= 4096 { 1024 } else { 256 }, caps);
        // A power of two within `threads`.
        let team = vecs.max(1).next_power_of_two().min(threads.into()) as u32;
        let per_thread = vecs.div_ceil(team.into());
        let kept = per_thread <= MAX_KEPT;

        let x_access = if in_place { Access::ReadWrite } else { Access::Read };
        let mut bindings = Vec::new();
        let mut accessors = declare(&mut bindings, "x", input.form(caps), lanes, x_access);
        let mut forms = vec![input.form(caps), output.form(caps)];
        for (name, elem) in self.shared {
            accessors += &declare(&mut bindings, name, elem.form(caps), lanes, Access::Read);
            forms.push(elem.form(caps));
        }
        if !in_place {
            let out_lanes = if self.one_result { Lanes::One } else { lanes };
            if out_lanes == lanes {
                accessors += &declare(&mut bindings, "out", output.form(caps), lanes, Access::ReadWrite);
            } else {
                bindings.push(StorageBinding::read_write("out", "f32"));
                accessors += "fn store_out(i: u32, v: f32) { out[i] = v; }\n";
            }
        }
        let mut values = WorkgroupReduce::new(self.reductions, threads, team, caps).values().to_vec();
        values.extend(values![
            kept,
            in_place,
            accessors,
            f16: forms.contains(&Form::F16),
            lanes: lanes.count() as u32,
            per_thread: per_thread as usize,
            body: self.body,
            has_eps: self.eps.is_some(),
            sign: self.sign,
        ]);
        let wgsl = render("rows/rows.wgsl", &values);
        let words = 5 + u32::from(self.eps.is_some());
        RenderedRows { kernel: kernel(self.label, wgsl, bindings, words), lanes, threads, team }
    }
}

/// A rendered kernel, and how it is launched.
struct RenderedRows {
    kernel: crate::kernel::Kernel,
    lanes: Lanes,
    threads: u32,
    team: u32,
}
