//! Loads weights from a model source onto a device.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use fulmen_core::{Backend, Bindings, BuildError, DType, LogicalGraph, Problem, Role, SharedBytes, quant};

use crate::arch::{Config, names};
use crate::error::ModelError;
use crate::source::{self, ModelSource};

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
struct Needed<'a> {
    name: &'a str,
    dtype: DType,
    rows: u32,
    width: u32,
}

/// The weights that `graph` reads from the file, in file order.
fn needed<'a>(graph: &'a LogicalGraph, source: &dyn ModelSource) -> Vec<Needed<'a>> {
    let mut weights: Vec<Needed<'a>> = Vec::new();
    for tensor in graph.tensors.iter().filter(|tensor| tensor.role == Role::Weight) {
        let name = tensor.name.as_deref().unwrap_or("");
        if name != names::ROPE_FACTORS {
            weights.push(Needed { name, dtype: tensor.dtype, rows: tensor.rows, width: tensor.width });
        }
    }
    let order: Vec<&str> = source.tensors().iter().map(|info| info.name()).collect();
    let place = |name: &str| order.iter().position(|other| *other == name).unwrap_or(usize::MAX);
    weights.sort_by_cached_key(|weight| place(weight.name));
    weights
}

/// Bytes of weights that `graph` reads from the file.
pub(super) fn weight_bytes(graph: &LogicalGraph) -> u64 {
    let weights = graph.tensors.iter().filter(|tensor| tensor.role == Role::Weight);
    weights.map(|tensor| tensor.bytes().map_or(u64::MAX, |bytes| bytes as u64)).fold(0, u64::saturating_add)
}

/// Checks every block scale and every unquantized value, on all threads; the calling thread reports progress.
pub(super) fn check(
    graph: &LogicalGraph,
    source: &dyn ModelSource,
    progress: &mut dyn FnMut(u64),
) -> Result<(), ModelError> {
    let mut names: Vec<&str> = needed(graph, source).iter().map(|weight| weight.name).collect();
    names.dedup();
    let (next, done, stop) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let failure: Mutex<Option<(usize, ModelError)>> = Mutex::new(None);
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
            progress(done.load(Ordering::Relaxed));
        }
    });
    progress(done.load(Ordering::Relaxed));
    let failure = failure.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    source::unless_changed(source, failure.map_or(Ok(()), |(_, error)| Err(error)))
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
    /// Imports every weight that `graph` reads. On failure, everything imported so far is freed.
    pub(super) fn load(
        device: &mut dyn Backend,
        graph: &LogicalGraph,
        source: &dyn ModelSource,
        config: &Config,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Weights, ModelError> {
        let mut weights = Weights::default();
        let imported = weights.import(device, graph, source, config, progress);
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
        graph: &LogicalGraph,
        source: &dyn ModelSource,
        config: &Config,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), ModelError> {
        let mut seen = HashSet::new();
        for Needed { name, dtype, rows, width } in needed(graph, source) {
            if !seen.insert(name) {
                continue;
            }
            let data = as_type(source, name, dtype)?;
            let bytes = (*data).as_ref().len() as u64;
            let ptr = device.import_weight(data, dtype, rows, width)?;
            self.allocations.push(ptr);
            self.bindings.set(name, ptr);
            self.bytes += bytes;
            progress(self.bytes);
        }
        if let Some(factors) = &config.rope_factors {
            let bytes: Vec<u8> = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
            self.bytes += bytes.len() as u64;
            let ptr = device.import_weight(Arc::new(bytes), DType::F32, 1, factors.len() as u32)?;
            self.allocations.push(ptr);
            self.bindings.set(names::ROPE_FACTORS, ptr);
        }
        Ok(())
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

/// The data of a tensor in the type that the graph reads: as stored, or f16 and bf16 vectors converted to
/// f32.
fn as_type(source: &dyn ModelSource, name: &str, wanted: DType) -> Result<SharedBytes, ModelError> {
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
