//! The launches of one matmul by a weight: its kernels over the slices of the weight, and over ranges of rows
//! of the input where those do not fit a binding. The matmul cache and the graph dispatcher get theirs here.

use std::ops::Range;

use crate::{
    device::GpuDevice,
    error::GpuError,
    kernel::Caps,
    kernels::{
        matmul::{self, EpilogueSource, Layout, MatmulConfig, MatmulLaunch, MatmulLaunches, MatmulShape},
        qmatmul::{self, Activations, QuantMatmulConfig, QuantWeight},
    },
    tune::{Key, blocks_key, plain_key},
    weight::{DeviceWeight, WeightKind},
};

/// A launch over a slice of the weight and some rows.
#[derive(Debug)]
pub(crate) struct WeightLaunch {
    pub(crate) launch: MatmulLaunch,
    /// The slice of the weight.
    pub(crate) slice: usize,
    /// Rows of the input and of the result.
    pub(crate) rows: Range<u32>,
}

/// The launches of a matmul by a weight, and bytes of each scratch buffer.
#[derive(Debug, Default)]
pub(crate) struct WeightLaunches {
    pub(crate) launches: Vec<WeightLaunch>,
    pub(crate) scratch: Vec<u64>,
}

/// How kernels for a weight are chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelChooser<'a> {
    pub(crate) gpu: &'a GpuDevice,
    pub(crate) weight: &'a DeviceWeight,
    /// Activations are multiplied in f32, not rounded or quantized.
    pub(crate) exact: bool,
    /// A row gets the same bits in a matmul of any number of rows.
    pub(crate) batch_invariant: bool,
    /// The name of the kernel that is being measured.
    pub(crate) forced: Option<&'a str>,
}

impl KernelChooser<'_> {
    /// The launches for `m` rows of input.
    pub(crate) fn launches(
        &self,
        call: &'static str,
        m: u32,
        epilogue: &EpilogueSource,
    ) -> Result<WeightLaunches, GpuError> {
        let caps = self.gpu.caps();
        let mut all = WeightLaunches::default();
        for rows in row_ranges(call, self.weight, m, self.split_k(m), &caps)? {
            for (slice, part) in self.weight.slices.iter().enumerate() {
                let count = rows.end - rows.start;
                let of_slice = self.choose(count, &part.rows).and_then(|chosen| {
                    chosen.launches(self.weight, count, part.rows.clone(), epilogue, &caps)
                });
                let MatmulLaunches { launches, scratch } = of_slice.map_err(|error| GpuError::Argument {
                    call,
                    what: "the matmul".to_owned(),
                    expected: "one that this device can run".to_owned(),
                    got: error,
                })?;
                for (index, bytes) in scratch.into_iter().enumerate() {
                    match all.scratch.get_mut(index) {
                        Some(held) => *held = bytes.max(*held),
                        None => all.scratch.push(bytes),
                    }
                }
                let bound =
                    launches.into_iter().map(|launch| WeightLaunch { launch, slice, rows: rows.clone() });
                all.launches.extend(bound);
            }
        }
        Ok(all)
    }

    /// The kernel for `m` rows of input and some rows of the weight: the one that is being measured, that was
    /// measured, or that the tables name.
    fn choose(&self, m: u32, columns: &Range<u32>) -> Result<ChosenKernel, String> {
        if let Some(name) = self.forced {
            let all = self.all_choices(m, columns);
            return all
                .into_iter()
                .find(|choice| choice.name() == *name)
                .ok_or_else(|| format!("no kernel {name}"));
        }
        let (caps, tuned) = (self.gpu.caps(), self.gpu.tuned());
        let chosen = match self.shape(m, columns) {
            WeightShape::Plain(shape) if self.batch_invariant => {
                matmul::choose_batch_invariant(shape, &caps).map(ChosenKernel::Plain)
            }
            WeightShape::Blocks(blocks) if self.batch_invariant => {
                qmatmul::choose_batch_invariant(m, blocks, &caps).map(ChosenKernel::Blocks)
            }
            WeightShape::Plain(shape) => {
                tuned.choose(shape, self.may_round(), &caps).map(ChosenKernel::Plain)
            }
            WeightShape::Blocks(blocks) => {
                tuned.choose_blocks(m, blocks, self.activations(), &self.caps()).map(ChosenKernel::Blocks)
            }
        };
        chosen.ok_or_else(|| matmul::MatmulError::NoKernel.to_string())
    }

    /// The most slices of k of a batch-invariant matmul: they do not depend on the number of rows, so rows
    /// are divided where their scratch memory does not fit. The other tables take that into account.
    fn split_k(&self, m: u32) -> u32 {
        if !self.batch_invariant {
            return 1;
        }
        let parts = self.weight.slices.iter();
        let chosen = parts.filter_map(|part| self.choose(m, &part.rows).ok());
        chosen.map(|chosen| chosen.split_k()).max().unwrap_or(1)
    }

    /// Every kernel that could be taken, the table's own first.
    pub(crate) fn all_choices(&self, m: u32, columns: &Range<u32>) -> Vec<ChosenKernel> {
        match self.shape(m, columns) {
            WeightShape::Plain(shape) => {
                let all = matmul::candidates(shape, self.may_round(), &self.gpu.caps());
                all.into_iter().map(ChosenKernel::Plain).collect()
            }
            WeightShape::Blocks(blocks) => {
                let all = qmatmul::candidates(m, blocks, self.activations(), &self.caps());
                all.into_iter().map(ChosenKernel::Blocks).collect()
            }
        }
    }

    /// What measurements of the matmul are remembered by.
    pub(crate) fn key(&self, m: u32, columns: &Range<u32>) -> Key {
        match self.shape(m, columns) {
            WeightShape::Plain(shape) => plain_key(shape, self.may_round()),
            WeightShape::Blocks(blocks) => blocks_key(m, blocks, self.activations()),
        }
    }

    fn shape(&self, m: u32, columns: &Range<u32>) -> WeightShape {
        let n = columns.end - columns.start;
        match self.weight.kind {
            WeightKind::Plain(elem) => {
                WeightShape::Plain(MatmulShape { m, k: self.weight.k, n, b: Layout::Nk, elem })
            }
            WeightKind::Blocks(blocks) => WeightShape::Blocks(QuantWeight { n, ..blocks }),
        }
    }

    /// Whether activations may be rounded to f16 for this weight.
    fn may_round(&self) -> bool {
        !self.exact && self.weight.fits_f16
    }

    fn activations(&self) -> Activations {
        if self.exact { Activations::F32 } else { Activations::Q8 }
    }

    /// The device as this weight may use it.
    fn caps(&self) -> Caps {
        let caps = self.gpu.caps();
        Caps { cooperative_matrix: caps.cooperative_matrix && self.may_round(), ..caps }
    }
}

/// A matmul as the tables see it.
enum WeightShape {
    Plain(MatmulShape),
    Blocks(QuantWeight),
}

/// A kernel that was chosen.
pub(crate) enum ChosenKernel {
    Plain(MatmulConfig),
    Blocks(QuantMatmulConfig),
}

impl ChosenKernel {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Plain(choice) => choice.to_string(),
            Self::Blocks(choice) => choice.to_string(),
        }
    }

    /// Slices of k.
    fn split_k(&self) -> u32 {
        match self {
            Self::Plain(MatmulConfig::Tiled(tile)) => tile.slices,
            Self::Blocks(QuantMatmulConfig::Int8(tile)) => tile.slices,
            _ => 1,
        }
    }

    pub(crate) fn uses_tensor_cores(&self) -> bool {
        matches!(self, Self::Plain(MatmulConfig::Coop(_)) | Self::Blocks(QuantMatmulConfig::Coop(_)))
    }

    pub(crate) fn launches(
        &self,
        weight: &DeviceWeight,
        m: u32,
        columns: Range<u32>,
        epilogue: &EpilogueSource,
        caps: &Caps,
    ) -> Result<MatmulLaunches, String> {
        match (self, weight.kind) {
            (Self::Plain(choice), WeightKind::Plain(elem)) => {
                let shape = MatmulShape { m, k: weight.k, n: weight.n, b: Layout::Nk, elem };
                matmul::launches_with(*choice, shape, columns, epilogue, caps)
                    .map_err(|error| error.to_string())
            }
            (Self::Blocks(choice), WeightKind::Blocks(blocks)) => {
                qmatmul::launches_with(*choice, m, blocks, columns, epilogue, caps)
                    .map_err(|error| error.to_string())
            }
            _ => Err("a kernel for another kind of weight".to_owned()),
        }
    }
}

/// The rows of the input in ranges of which each can be bound, and so can its result in `slices` parts.
fn row_ranges(
    call: &'static str,
    weight: &DeviceWeight,
    m: u32,
    slices: u32,
    caps: &Caps,
) -> Result<Vec<Range<u32>>, GpuError> {
    let row = u64::from(weight.k).max(u64::from(weight.n) * u64::from(slices)) * 4;
    if row * u64::from(m) <= caps.max_binding {
        return Ok(std::iter::once(0..m).collect());
    }
    // This many rows of whole words are a multiple of the alignment, whatever their length.
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
