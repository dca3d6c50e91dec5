//! The second launch of a product whose k was split.

use super::head::{Job, Numbers, Store};
use super::text::lines;
use super::{Elem, PlanError};
use crate::kernel::{Launch, fold_grid};
use crate::kernels::template::expand;

/// Slices whose loads are under way at once.
const UNROLL: u32 = 4;

const TEMPLATE: &str = include_str!("reduce.wgsl");

/// Adds up `slices` slices and applies the epilogue. Binds scratch, output and the epilogue's inputs.
pub(in crate::kernels) fn launch(job: &Job<'_>, slices: u32) -> Result<Launch, PlanError> {
    let threads = job.caps.max_invocations.min(128);
    let width = job.n_width();
    let values = u64::from(job.shape.m) * u64::from(job.n() / width);
    let groups = values.div_ceil(threads.into());
    let workgroups = fold_grid(groups, job.caps.max_workgroups).ok_or(PlanError::Grid)?;
    let count = u32::try_from(groups).map_err(|_| PlanError::Grid)?;
    let head = job.head(&[("slices", Elem::F32.wgsl(width))], width, Store::Output);
    let main = expand(
        TEMPLATE,
        &[
            ("threads", &threads.to_string()),
            ("width", &width.to_string()),
            ("sums", &lines(job.products(), sum)),
            ("values", if job.products() == 2 { "v0, v1" } else { "v0" }),
            ("put", if width == 4 { "put4" } else { "put1" }),
        ],
    );
    let numbers = Numbers { count, span: 0, slices };
    Ok(job.launch(format!("matmul sum width={width}"), head, &main, workgroups, numbers, Store::Output))
}

/// `v0`, or in a pair also `v1`, whose slices lie behind those of the first.
fn sum(product: u32) -> String {
    let from = format!("f{product}");
    let terms =
        (0..UNROLL).map(|i| format!("slices[{from} + (s + {i}u) * total]")).collect::<Vec<_>>().join(" + ");
    format!(
        "    let {from} = at + {product}u * params.slices * total;
    var v{product} = slices[{from}];
    {{
        var s = 1u;
        for (; s + {last}u < params.slices; s += {UNROLL}u) {{ v{product} += {terms}; }}
        for (; s < params.slices; s++) {{ v{product} += slices[{from} + s * total]; }}
    }}",
        last = UNROLL - 1
    )
}
