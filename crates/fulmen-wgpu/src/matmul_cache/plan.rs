//! The launches of one product: its kernels over the parts of the weight, and over the rows of the input where those do
//! not fit a binding.

use std::ops::Range;

use super::{
    GpuMatmulCache,
    weight::{Kind, Weight},
};
use crate::{
    error::GpuError,
    kernel::{Caps, Launch},
    kernels::{
        matmul::{self, EpilogueSource, Layout, MatmulShape, Role},
        qmatmul,
    },
};

/// A launch and what it binds.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) launch: Launch,
    pub(super) roles: Vec<Role>,
    /// The part of the weight.
    pub(super) part: usize,
    /// Rows of the input and of the result.
    pub(super) rows: Range<u32>,
}

/// The launches of a product, and bytes of each scratch buffer.
#[derive(Debug, Default)]
pub(super) struct ProductPlan {
    pub(super) launches: Vec<Planned>,
    pub(super) scratch: Vec<u64>,
}

impl GpuMatmulCache {
    /// Chooses kernels for `m` rows of input.
    pub(super) fn plan(&self, call: &'static str, weight: &Weight, m: u32) -> Result<ProductPlan, GpuError> {
        let caps = self.gpu.caps();
        let mut plan = ProductPlan::default();
        for rows in row_ranges(call, weight, m, &caps)? {
            for (number, part) in weight.parts.iter().enumerate() {
                let of_part = self.kernels_of(weight, rows.end - rows.start, part.rows.clone());
                let matmul::Plan { steps, scratch } = of_part.map_err(|error| GpuError::Argument {
                    call,
                    what: "the product".to_owned(),
                    expected: "one that this device can run".to_owned(),
                    got: error,
                })?;
                for (index, bytes) in scratch.into_iter().enumerate() {
                    match plan.scratch.get_mut(index) {
                        Some(held) => *held = bytes.max(*held),
                        None => plan.scratch.push(bytes),
                    }
                }
                plan.launches.extend(steps.into_iter().map(|step| Planned {
                    launch: step.launch,
                    roles: step.buffers,
                    part: number,
                    rows: rows.clone(),
                }));
            }
        }
        Ok(plan)
    }

    /// The kernels for `m` rows of input and some rows of the weight.
    fn kernels_of(&self, weight: &Weight, m: u32, columns: Range<u32>) -> Result<matmul::Plan, String> {
        let (caps, none) = (self.gpu.caps(), EpilogueSource::none());
        let Weight { n, k, .. } = *weight;
        match weight.kind {
            Kind::Plain(elem) => {
                let shape = MatmulShape { m, k, n, b: Layout::Nk, elem };
                matmul::plan_columns(shape, columns, &none, &caps).map_err(|error| error.to_string())
            }
            Kind::Blocks(blocks) => {
                qmatmul::plan_columns(m, blocks, columns, &none, &caps).map_err(|error| error.to_string())
            }
        }
    }
}

/// The rows of the input in ranges of which each can be bound, and so can its result.
fn row_ranges(call: &'static str, weight: &Weight, m: u32, caps: &Caps) -> Result<Vec<Range<u32>>, GpuError> {
    let row = u64::from(weight.k.max(weight.n)) * 4;
    if row * u64::from(m) <= caps.max_binding {
        return Ok(std::iter::once(0..m).collect());
    }
    // So many rows of whole words are a multiple of the alignment, whatever their length.
    let step = u64::from(caps.binding_alignment.max(16)) / 4;
    let rows = caps.max_binding / row / step * step;
    if rows == 0 {
        let what = format!("{step} rows of the input or of the result, in bytes,");
        return Err(GpuError::TooLarge { call, what, needed: step * row, limit: caps.max_binding });
    }
    // Fewer than `m`, which is a u32.
    let rows = rows as u32;
    Ok((0..m).step_by(rows as usize).map(|from| from..m.min(from.saturating_add(rows))).collect())
}
