//! The launches of one product by a weight: its kernels over the parts of the weight, and over the rows of the input where
//! those do not fit a binding. The matmul cache and the graph dispatcher plan theirs here.

use std::ops::Range;

use crate::{
    device::GpuDevice,
    error::GpuError,
    kernel::{Caps, Launch},
    kernels::{
        matmul::{self, EpilogueSource, KernelChoice, Layout, MatmulShape, Role},
        qmatmul::{self, Choice, QuantWeight, Values},
    },
    tune::{Key, blocks_key, plain_key},
    weight::{DeviceWeight, Kind},
};

/// A launch and what it binds.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) launch: Launch,
    pub(crate) roles: Vec<Role>,
    /// The part of the weight.
    pub(crate) part: usize,
    /// Rows of the input and of the result.
    pub(crate) rows: Range<u32>,
}

/// The launches of a product, and bytes of each scratch buffer.
#[derive(Debug, Default)]
pub(crate) struct ProductPlan {
    pub(crate) launches: Vec<Planned>,
    pub(crate) scratch: Vec<u64>,
}

/// How kernels for a weight are chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chooser<'a> {
    pub(crate) gpu: &'a GpuDevice,
    pub(crate) weight: &'a DeviceWeight,
    /// Activations are multiplied as they are.
    pub(crate) exact: bool,
    /// The name of the kernel that is being measured.
    pub(crate) forced: Option<&'a str>,
}

impl Chooser<'_> {
    /// The launches for `m` rows of input.
    pub(crate) fn plan(
        &self,
        call: &'static str,
        m: u32,
        epilogue: &EpilogueSource,
    ) -> Result<ProductPlan, GpuError> {
        let caps = self.gpu.caps();
        let mut plan = ProductPlan::default();
        for rows in row_ranges(call, self.weight, m, &caps)? {
            for (number, part) in self.weight.parts.iter().enumerate() {
                let count = rows.end - rows.start;
                let of_part = self
                    .choose(count, &part.rows)
                    .and_then(|chosen| chosen.plan(self.weight, count, part.rows.clone(), epilogue, &caps));
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

    /// The kernel for `m` rows of input and some rows of the weight: the one that is being measured, that was measured, or
    /// that the tables name.
    fn choose(&self, m: u32, columns: &Range<u32>) -> Result<Chosen, String> {
        if let Some(name) = self.forced {
            let all = self.all_choices(m, columns);
            return all
                .into_iter()
                .find(|choice| choice.name() == *name)
                .ok_or_else(|| format!("no kernel {name}"));
        }
        let (caps, tuned) = (self.gpu.caps(), self.gpu.tuned());
        let chosen = match self.product(m, columns) {
            Of::Plain(shape) => tuned.choose(shape, self.half(), &caps).map(Chosen::Plain),
            Of::Blocks(blocks) => {
                tuned.choose_blocks(m, blocks, self.values(), &self.caps()).map(Chosen::Blocks)
            }
        };
        chosen.ok_or_else(|| matmul::PlanError::NoKernel.to_string())
    }

    /// Every kernel that could be taken, the table's own first.
    pub(crate) fn all_choices(&self, m: u32, columns: &Range<u32>) -> Vec<Chosen> {
        match self.product(m, columns) {
            Of::Plain(shape) => {
                let all = matmul::candidates(shape, self.half(), &self.gpu.caps());
                all.into_iter().map(Chosen::Plain).collect()
            }
            Of::Blocks(blocks) => {
                let all = qmatmul::candidates(m, blocks, self.values(), &self.caps());
                all.into_iter().map(Chosen::Blocks).collect()
            }
        }
    }

    /// What measurements of the product are remembered by.
    pub(crate) fn key(&self, m: u32, columns: &Range<u32>) -> Key {
        match self.product(m, columns) {
            Of::Plain(shape) => plain_key(shape, self.half()),
            Of::Blocks(blocks) => blocks_key(m, blocks, self.values()),
        }
    }

    fn product(&self, m: u32, columns: &Range<u32>) -> Of {
        let n = columns.end - columns.start;
        match self.weight.kind {
            Kind::Plain(elem) => Of::Plain(MatmulShape { m, k: self.weight.k, n, b: Layout::Nk, elem }),
            Kind::Blocks(blocks) => Of::Blocks(QuantWeight { n, ..blocks }),
        }
    }

    /// Whether activations may be rounded to 16 bits for this weight.
    fn half(&self) -> bool {
        !self.exact && self.weight.half
    }

    fn values(&self) -> Values {
        if self.exact { Values::Float } else { Values::Int8 }
    }

    /// The device as this weight may use it.
    fn caps(&self) -> Caps {
        let caps = self.gpu.caps();
        Caps { cooperative_matrix: caps.cooperative_matrix && self.half(), ..caps }
    }
}

/// A product as the tables see it.
enum Of {
    Plain(MatmulShape),
    Blocks(QuantWeight),
}

/// A kernel that was chosen.
pub(crate) enum Chosen {
    Plain(KernelChoice),
    Blocks(Choice),
}

impl Chosen {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Plain(choice) => choice.to_string(),
            Self::Blocks(choice) => choice.to_string(),
        }
    }

    pub(crate) fn uses_tensor_cores(&self) -> bool {
        matches!(self, Self::Plain(KernelChoice::Coop(_)) | Self::Blocks(Choice::Coop(_)))
    }

    pub(crate) fn plan(
        &self,
        weight: &DeviceWeight,
        m: u32,
        columns: Range<u32>,
        epilogue: &EpilogueSource,
        caps: &Caps,
    ) -> Result<matmul::Plan, String> {
        match (self, weight.kind) {
            (Self::Plain(choice), Kind::Plain(elem)) => {
                let shape = MatmulShape { m, k: weight.k, n: weight.n, b: Layout::Nk, elem };
                matmul::plan_with(*choice, shape, columns, epilogue, caps).map_err(|error| error.to_string())
            }
            (Self::Blocks(choice), Kind::Blocks(blocks)) => {
                qmatmul::plan_with(*choice, m, blocks, columns, epilogue, caps)
                    .map_err(|error| error.to_string())
            }
            _ => Err("a kernel for another kind of weight".to_owned()),
        }
    }
}

/// The rows of the input in ranges of which each can be bound, and so can its result.
fn row_ranges(
    call: &'static str,
    weight: &DeviceWeight,
    m: u32,
    caps: &Caps,
) -> Result<Vec<Range<u32>>, GpuError> {
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
