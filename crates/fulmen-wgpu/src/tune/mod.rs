//! Autotuning: kernels that were measured on a device, remembered.
//!
//! The tables of [`kernels::matmul`](crate::kernels::matmul) and
//! [`kernels::qmatmul`](crate::kernels::qmatmul) choose by shape, by measurements on one GPU.
//! [`GpuMatmulCache::tune`](crate::GpuMatmulCache::tune) measures every candidate for a weight and a number
//! of rows on the device at hand, after checking its result, and remembers the fastest of those that passed.
//! The matmul cache and the command batch take it from there; shapes that were not measured, and kernels that
//! are not candidates, go by the tables.
//!
//! The results lie beside the compiled pipelines, in one file per adapter, driver and version of this crate
//! (`file.rs`).

mod file;
mod measure;

use std::{
    collections::BTreeMap,
    sync::{PoisonError, RwLock},
};

pub(crate) use self::file::TunedFile;
pub use self::measure::{Measured, Outcome, TuneOptions, Tuning};
use fulmen_core::DType;

use crate::{
    device::GpuDevice,
    error::GpuError,
    kernel::Caps,
    kernels::{
        matmul::{self, Layout, MatmulConfig, MatmulShape, WeightType},
        qmatmul::{self, Activations, QuantMatmulConfig, QuantWeight},
    },
};

/// A matmul, as far as it decides which kernel is fastest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// The type of the weight and its layout, such as `F32 nk` or `Q4_K`.
    pub(crate) weight: String,
    /// Whether activations may be rounded.
    pub(crate) rounded: bool,
    pub(crate) n: u32,
    pub(crate) k: u32,
    pub(crate) m: u32,
}

/// Measurements on a device: for each matmul the name of the fastest kernel, and its microseconds.
pub(crate) type Table = BTreeMap<Key, (String, f64)>;

/// What is remembered of a device.
#[derive(Debug, Default)]
pub(crate) struct Tuned {
    table: RwLock<Table>,
    file: Option<TunedFile>,
}

impl Tuned {
    /// What the file holds, and where more of it will be kept.
    pub(crate) fn open(file: Option<TunedFile>) -> Self {
        let table = file.as_ref().and_then(TunedFile::read).unwrap_or_default();
        Self { table: RwLock::new(table), file }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(crate) fn remember(&self, key: Key, kernel: String, micros: f64) {
        self.table.write().unwrap_or_else(PoisonError::into_inner).insert(key, (kernel, micros));
    }

    /// Writes the file. What another process has measured meanwhile stays.
    pub(crate) fn save(&self) -> Result<(), GpuError> {
        let Some(file) = &self.file else { return Ok(()) };
        let mut table = file.read().unwrap_or_default();
        table.extend(self.table.read().unwrap_or_else(PoisonError::into_inner).clone());
        file.write(&table)
    }

    /// The kernel that was fastest for a matmul; for a number of rows that was not measured, that of the next
    /// larger one, if it is not twice as large.
    fn name(&self, key: &Key) -> Option<String> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let last = Key { m: key.m.saturating_mul(2).saturating_sub(1).max(key.m), ..key.clone() };
        table.range(key.clone()..=last).next().map(|(_, (name, _))| name.clone())
    }

    fn has(&self, key: &Key) -> bool {
        self.name(key).is_some()
    }

    /// The kernel for a matmul with an f32, f16 or bf16 weight, by measurement or by the table.
    pub(crate) fn choose(&self, shape: MatmulShape, round_a: bool, caps: &Caps) -> Option<MatmulConfig> {
        let measured = self.name(&plain_key(shape, round_a)).and_then(|name| {
            matmul::candidates(shape, round_a, caps).into_iter().find(|choice| choice.to_string() == name)
        });
        measured.or_else(|| matmul::choose_rounded(shape, round_a, caps))
    }

    /// The kernel for a matmul with a block-quantized weight.
    pub(crate) fn choose_blocks(
        &self,
        m: u32,
        weight: QuantWeight,
        activations: Activations,
        caps: &Caps,
    ) -> Option<QuantMatmulConfig> {
        let measured = self.name(&blocks_key(m, weight, activations)).and_then(|name| {
            let mut all = qmatmul::candidates(m, weight, activations, caps).into_iter();
            all.find(|choice| choice.to_string() == name)
        });
        measured.or_else(|| qmatmul::choose(m, weight, activations, caps))
    }
}

/// A kernel that a device takes for a matmul.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its name.
    pub kernel: String,
    /// It was measured here; otherwise the table names it.
    pub measured: bool,
}

/// The kernel that a device takes for `m` rows and a weight `[n, k]` of a type; `None` where there is none
/// for that type or shape. `exact` as in
/// [`MatmulCacheOptions::exact_activations`](crate::MatmulCacheOptions::exact_activations).
pub fn kernel_for(gpu: &GpuDevice, dtype: DType, m: u32, (n, k): (u32, u32), exact: bool) -> Option<Taken> {
    let (caps, tuned) = (gpu.caps(), gpu.tuned());
    let elem = match dtype {
        DType::F32 => Some(WeightType::F32),
        DType::F16 => Some(WeightType::F16),
        DType::BF16 => Some(WeightType::Bf16),
        _ => None,
    };
    if let Some(elem) = elem {
        let shape = MatmulShape { m, k, n, b: Layout::Nk, elem };
        // Whether activations may be rounded is decided by type: only f16 goes to cooperative matrices.
        let round_a = !exact && elem == WeightType::F16;
        let kernel = tuned.choose(shape, round_a, &caps)?.to_string();
        return Some(Taken { kernel, measured: tuned.has(&plain_key(shape, round_a)) });
    }
    let activations = if exact { Activations::F32 } else { Activations::Q8 };
    let weight = QuantWeight { dtype, n, k };
    weight.packed_row_bytes().ok()?;
    let taken = tuned.choose_blocks(m, weight, activations, &caps)?;
    let measured = tuned.has(&blocks_key(m, weight, activations));
    Some(Taken { kernel: taken.to_string(), measured })
}

pub(crate) fn plain_key(shape: MatmulShape, round_a: bool) -> Key {
    let MatmulShape { m, k, n, b, elem } = shape;
    let layout = if b == Layout::Nk { "nk" } else { "kn" };
    Key { weight: format!("{elem:?} {layout}").to_uppercase(), rounded: round_a, n, k, m }
}

pub(crate) fn blocks_key(m: u32, weight: QuantWeight, activations: Activations) -> Key {
    let QuantWeight { dtype, n, k } = weight;
    Key { weight: dtype.name().to_owned(), rounded: activations == Activations::Q8, n, k, m }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_counts_for_as_many_rows_and_somewhat_fewer() {
        let tuned = Tuned::default();
        let shape = |m| MatmulShape { m, k: 64, n: 128, b: Layout::Nk, elem: WeightType::F32 };
        let key = |m| plain_key(shape(m), false);
        for (m, name) in [(4, "four"), (32, "many")] {
            tuned.remember(key(m), name.to_owned(), 1.0);
        }
        let name = |m| tuned.name(&key(m));
        assert_eq!((name(4), name(3)), (Some("four".to_owned()), Some("four".to_owned())));
        assert_eq!(
            (name(2), name(5), name(16)),
            (None, None, None),
            "twice as many rows are measured separately"
        );
        assert_eq!((name(17), name(32), name(33)), (Some("many".to_owned()), Some("many".to_owned()), None));
        assert_eq!(tuned.name(&plain_key(shape(4), true)), None, "rounded is another matmul");
    }
}
