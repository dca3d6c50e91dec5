//! The launches of one product: its kernels over the parts of the weight, and over the rows of the input where those do
//! not fit a binding.

use std::ops::Range;

use super::{
    GpuMatmulCache,
    run::rows,
    weight::{Kind, Weight},
};
use crate::{
    error::GpuError,
    kernel::{Caps, Kernel, Launch},
    kernels::{
        matmul::{self, EpilogueSource, KernelChoice, Layout, MatmulShape, Role},
        qmatmul::{self, Choice, QuantWeight, Values},
    },
    tune::{blocks_key, plain_key},
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

    /// The kernels for `m` rows of input and some rows of the weight: those that are being measured, that were measured, or
    /// that the tables name.
    fn kernels_of(&self, weight: &Weight, m: u32, columns: Range<u32>) -> Result<matmul::Plan, String> {
        self.choose(weight, m, &columns)?.plan(weight, m, columns, &self.gpu.caps())
    }

    fn choose(&self, weight: &Weight, m: u32, columns: &Range<u32>) -> Result<Chosen, String> {
        if let Some(name) = self.forced.get(&(weight.number, m)) {
            let all = self.all_choices(weight, m, columns);
            return all
                .into_iter()
                .find(|choice| choice.name() == *name)
                .ok_or_else(|| format!("no kernel {name}"));
        }
        let (caps, tuned) = (self.gpu.caps(), self.gpu.tuned());
        let chosen = match self.product(weight, m, columns) {
            Of::Plain(shape) => tuned.choose(shape, self.half(weight), &caps).map(Chosen::Plain),
            Of::Blocks(blocks) => {
                tuned.choose_blocks(m, blocks, self.values(), &self.caps_for(weight)).map(Chosen::Blocks)
            }
        };
        chosen.ok_or_else(|| matmul::PlanError::NoKernel.to_string())
    }

    /// Every kernel that could be taken, the table's own first.
    fn all_choices(&self, weight: &Weight, m: u32, columns: &Range<u32>) -> Vec<Chosen> {
        match self.product(weight, m, columns) {
            Of::Plain(shape) => {
                let all = matmul::candidates(shape, self.half(weight), &self.gpu.caps());
                all.into_iter().map(Chosen::Plain).collect()
            }
            Of::Blocks(blocks) => {
                let all = qmatmul::candidates(m, blocks, self.values(), &self.caps_for(weight));
                all.into_iter().map(Chosen::Blocks).collect()
            }
        }
    }

    fn product(&self, weight: &Weight, m: u32, columns: &Range<u32>) -> Of {
        let n = columns.end - columns.start;
        match weight.kind {
            Kind::Plain(elem) => Of::Plain(MatmulShape { m, k: weight.k, n, b: Layout::Nk, elem }),
            Kind::Blocks(blocks) => Of::Blocks(QuantWeight { n, ..blocks }),
        }
    }

    /// Whether activations may be rounded to 16 bits for this weight.
    fn half(&self, weight: &Weight) -> bool {
        !self.options.exact_activations && weight.half
    }

    fn values(&self) -> Values {
        if self.options.exact_activations { Values::Float } else { Values::Int8 }
    }

    /// The device as this weight may use it.
    fn caps_for(&self, weight: &Weight) -> Caps {
        let caps = self.gpu.caps();
        Caps { cooperative_matrix: caps.cooperative_matrix && self.half(weight), ..caps }
    }

    /// The names of all kernels that could multiply `m` rows by a weight, the table's own first. Some may not fit the
    /// device after all.
    ///
    /// # Errors
    /// [`GpuError::UnknownWeight`], [`GpuError::Argument`] where `m` is 0.
    pub fn candidates(&self, weight_name: &str, m: usize) -> Result<Vec<String>, GpuError> {
        const CALL: &str = "candidates";
        let weight = self.weights.get(weight_name).ok_or_else(|| self.unknown(CALL, weight_name))?;
        let m = rows(CALL, m)?;
        let columns = weight.parts.first().map_or(0..weight.n, |part| part.rows.clone());
        Ok(self.all_choices(weight, m, &columns).iter().map(Chosen::name).collect())
    }

    /// The kernels that a candidate needs; none if it does not fit.
    pub(crate) fn kernels_by(&self, name: &str, m: usize, candidate: &str) -> Vec<Kernel> {
        let (Some(weight), Ok(m)) = (self.weights.get(name), rows("tune", m)) else { return Vec::new() };
        let Some(part) = weight.parts.first() else { return Vec::new() };
        let all = self.all_choices(weight, m, &part.rows);
        let chosen = all.into_iter().find(|choice| choice.name() == candidate);
        let plan = chosen.and_then(|chosen| chosen.plan(weight, m, part.rows.clone(), &self.gpu.caps()).ok());
        plan.map_or(Vec::new(), |plan| plan.steps.into_iter().map(|step| step.launch.kernel).collect())
    }

    /// Has products of `m` rows by a weight computed by one of its [`candidates`](Self::candidates), for measurements; by
    /// the usual kernel again with `None`. A name that is no candidate makes those products fail.
    ///
    /// # Errors
    /// [`GpuError::UnknownWeight`], [`GpuError::Argument`] where `m` is 0.
    pub fn set_kernel(&mut self, weight_name: &str, m: usize, kernel: Option<&str>) -> Result<(), GpuError> {
        const CALL: &str = "set_kernel";
        let number = self.weights.get(weight_name).ok_or_else(|| self.unknown(CALL, weight_name))?.number;
        let key = (number, rows(CALL, m)?);
        match kernel {
            Some(kernel) => self.forced.insert(key, kernel.to_owned()),
            None => self.forced.remove(&key),
        };
        self.runs.forget(number);
        Ok(())
    }

    /// Remembers the fastest kernel of a product.
    pub(crate) fn remember(
        &mut self,
        name: &str,
        m: usize,
        kernel: &str,
        micros: f64,
    ) -> Result<(), GpuError> {
        let weight = self.weights.get(name).ok_or_else(|| self.unknown("tune", name))?;
        let m = rows("tune", m)?;
        let columns = weight.parts.first().map_or(0..weight.n, |part| part.rows.clone());
        let key = match self.product(weight, m, &columns) {
            Of::Plain(shape) => plain_key(shape, self.half(weight)),
            Of::Blocks(blocks) => blocks_key(m, blocks, self.values()),
        };
        self.gpu.tuned().remember(key, kernel.to_owned(), micros);
        let number = weight.number;
        self.runs.forget(number);
        Ok(())
    }
}

/// A product as the tables see it.
enum Of {
    Plain(MatmulShape),
    Blocks(QuantWeight),
}

/// A kernel that was chosen.
enum Chosen {
    Plain(KernelChoice),
    Blocks(Choice),
}

impl Chosen {
    fn name(&self) -> String {
        match self {
            Self::Plain(choice) => choice.to_string(),
            Self::Blocks(choice) => choice.to_string(),
        }
    }

    fn plan(
        &self,
        weight: &Weight,
        m: u32,
        columns: Range<u32>,
        caps: &Caps,
    ) -> Result<matmul::Plan, String> {
        let none = EpilogueSource::none();
        match (self, weight.kind) {
            (Self::Plain(choice), Kind::Plain(elem)) => {
                let shape = MatmulShape { m, k: weight.k, n: weight.n, b: Layout::Nk, elem };
                matmul::plan_with(*choice, shape, columns, &none, caps).map_err(|error| error.to_string())
            }
            (Self::Blocks(choice), Kind::Blocks(blocks)) => {
                qmatmul::plan_with(*choice, m, blocks, columns, &none, caps)
                    .map_err(|error| error.to_string())
            }
            _ => Err("a kernel for another kind of weight".to_owned()),
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
