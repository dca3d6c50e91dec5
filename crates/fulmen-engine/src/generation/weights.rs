//! Loads weights from a model source onto a device.
//!
//! A device with staging memory of its own reads and checks every weight in one pass
//! ([`bulk_reader`](super::bulk_reader)). For the others the weights are checked first, and then imported one
//! after another.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use fulmen_core::clock::Instant;
use fulmen_core::{
    Backend, Bindings, BuildError, BulkImport, DType, LogicalGraph, Problem, Role, SharedBytes, TensorDef,
    WeightSpec, quant, timeline,
};
use fulmen_model::ModelError;
use fulmen_model::arch::names;
use fulmen_model::source::{self, ModelSource, SourceError};

use super::bulk_reader::BulkReader;

/// Called with the bytes that are done; says whether to go on.
pub(super) type Progress<'a> = dyn FnMut(u64) -> ControlFlow<()> + 'a;

/// Weights on a device, with their addresses by name.
#[derive(Debug, Default)]
pub(super) struct Weights {
    pub(super) bindings: Bindings,
    /// Allocations to free.
    allocations: Vec<u64>,
    /// Total bytes.
    pub(super) bytes: u64,
}

/// A weight that a graph reads.
#[derive(Clone, Copy)]
pub(super) struct Needed<'a> {
    pub(super) name: &'a str,
    pub(super) dtype: DType,
    pub(super) rows: u32,
    pub(super) width: u32,
}

/// The weights of a graph.
pub(super) fn of(graph: &LogicalGraph) -> impl Iterator<Item = &TensorDef> {
    graph.tensors.iter().filter(|tensor| tensor.role == Role::Weight)
}

/// Those of the tensors that are weights of the file, in file order, each of them once.
fn needed<'a>(tensors: &'a [TensorDef], source: &dyn ModelSource) -> Vec<Needed<'a>> {
    let mut weights: Vec<Needed<'a>> = Vec::new();
    for tensor in tensors.iter().filter(|tensor| tensor.role == Role::Weight) {
        let name = tensor.name.as_deref().unwrap_or("");
        if !names::CONSTANTS.contains(&name) {
            weights.push(Needed { name, dtype: tensor.dtype, rows: tensor.rows, width: tensor.width });
        }
    }
    let order: Vec<&str> = source.tensors().iter().map(|info| info.name()).collect();
    let place = |name: &str| order.iter().position(|other| *other == name).unwrap_or(usize::MAX);
    weights.sort_by_cached_key(|weight| place(weight.name));
    weights.dedup_by_key(|weight| weight.name);
    weights
}

/// Bytes of the weights among the tensors of graphs.
pub(super) fn weight_bytes(tensors: &[TensorDef]) -> u64 {
    let weights = tensors.iter().filter(|tensor| tensor.role == Role::Weight);
    weights.map(|tensor| tensor.bytes().map_or(u64::MAX, |bytes| bytes as u64)).fold(0, u64::saturating_add)
}

/// Fails if the device has no kernels for a weight's type.
pub(super) fn check_types(
    tensors: &[TensorDef],
    source: &dyn ModelSource,
    device: &dyn Backend,
) -> Result<(), ModelError> {
    match needed(tensors, source).into_iter().find(|weight| !device.supports_weight(weight.dtype)) {
        None => Ok(()),
        Some(Needed { name, dtype, .. }) => {
            Err(ModelError::WeightType { name: name.to_owned(), dtype, backend: device.backend() })
        }
    }
}

/// Bytes that the weights among the tensors take on a device.
pub(super) fn stored_bytes(tensors: &[TensorDef], device: &dyn Backend) -> u64 {
    let weights = tensors.iter().filter(|tensor| tensor.role == Role::Weight);
    let bytes = weights.map(|tensor| device.weight_bytes(tensor.dtype, tensor.rows, tensor.width));
    bytes.fold(0, u64::saturating_add)
}

/// Checks every block scale and every unquantized value, on all threads; the calling thread reports progress.
fn check(
    tensors: &[TensorDef],
    source: &dyn ModelSource,
    progress: &mut Progress<'_>,
) -> Result<(), ModelError> {
    let names: Vec<&str> = needed(tensors, source).iter().map(|weight| weight.name).collect();
    let (next, done, stop) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let failure: Mutex<Option<(usize, ModelError)>> = Mutex::new(None);
    let mut cancelled = false;
    let one = || -> bool {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some(&name) = names.get(at).filter(|_| !stop.load(Ordering::Relaxed)) else { return false };
        match check_one(name, source) {
            Ok(bytes) => _ = done.fetch_add(bytes, Ordering::Relaxed),
            Err(error) => {
                stop.store(true, Ordering::Relaxed);
                let mut failure = failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                // Report the first failure in file order, whichever thread finds it.
                if failure.as_ref().is_none_or(|(other, _)| at < *other) {
                    *failure = Some((at, error));
                }
            }
        }
        true
    };
    let helpers = thread::available_parallelism().map_or(1, |n| n.get()).min(16) - 1;
    thread::scope(|scope| {
        for _ in 0..helpers {
            // If a thread cannot be started, the others do its work.
            let _ = thread::Builder::new().spawn_scoped(scope, || while one() {});
        }
        while one() {
            if progress(done.load(Ordering::Relaxed)).is_break() {
                stop.store(true, Ordering::Relaxed);
                cancelled = true;
            }
        }
    });
    cancelled |= progress(done.load(Ordering::Relaxed)).is_break();
    let failure = failure.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let failure = failure.map(|(_, error)| error).or(cancelled.then_some(ModelError::Cancelled));
    source::unless_changed(source, failure.map_or(Ok(()), Err))
}

fn check_one(name: &str, source: &dyn ModelSource) -> Result<u64, ModelError> {
    let data = source.data(name)?;
    let bytes = (*data).as_ref();
    let dtype = source.tensor(name).map_or(DType::F32, |info| info.dtype());
    match quant::first_not_finite(dtype, bytes) {
        None => Ok(bytes.len() as u64),
        Some(element) => Err(ModelError::NotFinite { name: name.to_owned(), element }),
    }
}

impl Weights {
    /// Imports every weight among the tensors of graphs, and constants, by name. With `checked`, weights are
    /// checked for NaN and infinity, too.
    /// On failure, everything imported so far is freed. `progress` counts the bytes that were imported, or,
    /// with `checked`, half of what was checked and imported; it may end the import.
    pub(super) fn load(
        device: &mut dyn Backend,
        tensors: &[TensorDef],
        source: &dyn ModelSource,
        constants: &[(&str, &[f32])],
        checked: bool,
        progress: &mut Progress<'_>,
    ) -> Result<Weights, ModelError> {
        let mut weights = Weights::default();
        let imported = weights.import(device, tensors, source, checked, progress);
        let imported = imported.and_then(|()| weights.import_constants(device, constants));
        match source::unless_changed(source, imported) {
            Ok(()) => Ok(weights),
            Err(error) => {
                weights.free(device);
                Err(error)
            }
        }
    }

    fn import(
        &mut self,
        device: &mut dyn Backend,
        tensors: &[TensorDef],
        source: &dyn ModelSource,
        checked: bool,
        progress: &mut Progress<'_>,
    ) -> Result<(), ModelError> {
        let needed = needed(tensors, source);
        if self.import_all(device, source, &needed, checked, progress)? {
            return Ok(());
        }
        if checked {
            timeline::span_of_bytes("check weights", weight_bytes(tensors), || {
                check(tensors, source, &mut |done| progress(done / 2))
            })?;
        }
        let total = weight_bytes(tensors);
        timeline::span_of_bytes("import weights", total, || {
            for Needed { name, dtype, rows, width } in needed {
                let data = as_type(source, name, dtype)?;
                let bytes = (*data).as_ref().len() as u64;
                let ptr = device.import_weight(data, dtype, rows, width)?;
                self.add(name, ptr, bytes);
                let done = if checked { (total + self.bytes) / 2 } else { self.bytes };
                if progress(done).is_break() {
                    return Err(ModelError::Cancelled);
                }
            }
            Ok(())
        })
    }

    /// Imports all weights in one pass. Returns `false` if the device has no such import.
    fn import_all(
        &mut self,
        device: &mut dyn Backend,
        source: &dyn ModelSource,
        needed: &[Needed<'_>],
        checked: bool,
        progress: &mut Progress<'_>,
    ) -> Result<bool, ModelError> {
        let mut specs = Vec::with_capacity(needed.len());
        for &Needed { name, dtype, rows, width } in needed {
            specs.push(WeightSpec { bytes: imported_bytes(source, name, dtype)?, dtype, rows, width });
        }
        let total = specs.iter().map(|spec| spec.bytes as u64).sum();
        let reader = BulkReader::new(source, needed, &specs, checked);
        let began = Instant::now();
        let mut tell = |done| {
            if progress(done).is_break() {
                reader.stop();
            }
        };
        match device.import_weights(&specs, &reader, &mut tell)? {
            BulkImport::Unsupported => return Ok(false),
            BulkImport::Stopped => return Err(reader.into_failure()),
            BulkImport::Imported(addresses) => {
                let name = if checked { "read, check and copy weights" } else { "read and copy weights" };
                timeline::record(name, total, began);
                for ((weight, spec), ptr) in needed.iter().zip(&specs).zip(addresses) {
                    self.add(weight.name, ptr, spec.bytes as u64);
                }
                if reader.is_stopped() {
                    return Err(ModelError::Cancelled);
                }
            }
        }
        Ok(true)
    }

    fn import_constants(
        &mut self,
        device: &mut dyn Backend,
        constants: &[(&str, &[f32])],
    ) -> Result<(), ModelError> {
        for &(name, values) in constants {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let len = bytes.len() as u64;
            let ptr = device.import_weight(Arc::new(bytes), DType::F32, 1, values.len() as u32)?;
            self.add(name, ptr, len);
        }
        Ok(())
    }

    fn add(&mut self, name: &str, ptr: u64, bytes: u64) {
        self.allocations.push(ptr);
        self.bindings.set(name, ptr);
        self.bytes += bytes;
    }

    /// Frees all weights.
    pub(super) fn free(&mut self, device: &mut dyn Backend) {
        for ptr in self.allocations.drain(..) {
            // There is no caller to report an error to.
            let _ = device.free(ptr);
        }
    }
}

/// f32 values as the bytes that devices read, which are little-endian like every supported processor.
struct Floats(Vec<f32>);

impl AsRef<[u8]> for Floats {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// The bytes of a tensor in the type that the graph reads.
fn imported_bytes(source: &dyn ModelSource, name: &str, wanted: DType) -> Result<usize, ModelError> {
    let missing = || SourceError::NoTensor { name: name.to_owned() };
    let info = source.tensor(name).ok_or_else(missing)?;
    let bytes = wanted.bytes(info.elements());
    bytes.map_err(|error| ModelError::Build(BuildError { call: "load", problem: Problem::DType(error) }))
}

/// The data of a tensor in the type that the graph reads: as stored, or f16 and bf16 vectors converted to
/// f32.
pub(super) fn as_type(
    source: &dyn ModelSource,
    name: &str,
    wanted: DType,
) -> Result<SharedBytes, ModelError> {
    let data = source.data(name)?;
    let Some(info) = source.tensor(name) else { return Ok(data) };
    if info.dtype() == wanted {
        return Ok(data);
    }
    let values = quant::dequantize_to_vec(info.dtype(), (*data).as_ref(), info.elements());
    let values = values
        .map_err(|error| ModelError::Build(BuildError { call: "load", problem: Problem::DType(error) }))?;
    Ok(Arc::new(Floats(values)))
}
