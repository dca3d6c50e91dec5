//! How fast a device reads its memory, and so how fast it can decode at most.
//!
//! A decode step reads every weight and the keys and values of all positions. The time to read these bytes
//! once at the measured bandwidth is the memory-bandwidth bound of the step.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fulmen_core::{Backend, BackendError, ComputeGraph, DeviceKind, KV_PAGE, OpParams, TensorOp};
use fulmen_engine::{Model, Session, SessionOptions};

use crate::model::LoadedModel;

/// Long enough for a stable figure.
const BUDGET: Duration = Duration::from_millis(150);

/// How long an idle device is kept busy before anything is measured.
const WARM_UP: Duration = Duration::from_millis(300);

/// What a device did just before a measurement: an idle GPU runs at a low clock until it has been busy for a
/// while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// It has just worked.
    Busy,
    /// It may have been idle, and is warmed up first.
    Idle,
}

/// Bytes per second that a device reads at most. On the CPU, threads read the model's own weights; other
/// devices copy a buffer that no cache holds, and both the bytes read and the bytes written count.
///
/// `None` if the device has no room for the buffers, or if the model is on several devices, each of which has
/// its own bandwidth.
pub fn measure(loaded: &LoadedModel, state: DeviceState) -> Option<f64> {
    if loaded.model.placement().is_divided() || loaded.model.ranks() > 1 {
        return None;
    }
    match loaded.device.kind {
        DeviceKind::Cpu => host_read(&loaded.model, loaded.threads),
        _ => loaded.model.with_device(|device| device_copy(device, state).ok()),
    }
}

/// Bytes that a decode step of one sequence reads at this depth: weights, and the keys and values of all
/// positions.
pub fn bytes_per_token(model: &Model, session: &Session, depth: usize) -> u64 {
    model.bytes_per_token() + bytes_per_position(model, session.options()) * depth as u64
}

/// Bytes of the keys and values of a position of one sequence.
pub fn bytes_per_position(model: &Model, options: &SessionOptions) -> u64 {
    let positions = u64::from(options.context).next_multiple_of(KV_PAGE.into()).max(1);
    options.cache_bytes(model.config()) / positions / u64::from(options.sequences.max(1))
}

/// Bytes that a decode step of `batch` sequences reads: weights once, and the keys and values of each
/// sequence.
pub fn bytes_per_step(model: &Model, session: &Session, depth: usize, batch: u32) -> u64 {
    let weights = model.bytes_per_token();
    weights + (bytes_per_token(model, session, depth) - weights) * u64::from(batch)
}

fn host_read(model: &Model, threads: usize) -> Option<f64> {
    const CHUNK: usize = 1 << 20;
    let source = model.source();
    let mut tensors: Vec<_> =
        source.tensors().iter().filter_map(|info| source.data(info.name()).ok()).collect();
    // Large ones first: small ones fill the gaps between the threads.
    tensors.sort_by_key(|tensor| std::cmp::Reverse((**tensor).as_ref().len()));
    let total: usize = tensors.iter().map(|tensor| (**tensor).as_ref().len()).sum();
    let chunks: Vec<&[u8]> = tensors.iter().flat_map(|tensor| (**tensor).as_ref().chunks(CHUNK)).collect();
    let once = || {
        let next = AtomicUsize::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let read = || {
                while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    std::hint::black_box(sum(std::hint::black_box(chunk)));
                }
            };
            for _ in 1..threads {
                // If a thread cannot be started, the others read its chunks.
                let _ = std::thread::Builder::new().spawn_scoped(scope, read);
            }
            read();
        });
        start.elapsed()
    };
    let (start, mut best) = (Instant::now(), once());
    while start.elapsed() < BUDGET {
        best = best.min(once());
    }
    (total > 0).then(|| total as f64 / best.as_secs_f64())
}

fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.as_chunks::<8>().0;
    words.iter().fold(0, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

fn device_copy(device: &mut dyn Backend, state: DeviceState) -> Result<f64, BackendError> {
    const BYTES: usize = 256 << 20;
    let from = device.alloc(BYTES)?;
    let to = match device.alloc(BYTES) {
        Ok(to) => to,
        Err(error) => {
            device.free(from)?;
            return Err(error);
        }
    };
    let measured = time_copies(device, from, to, BYTES, state);
    device.free(from)?;
    device.free(to)?;
    measured
}

fn time_copies(
    device: &mut dyn Backend,
    from: u64,
    to: u64,
    bytes: usize,
    state: DeviceState,
) -> Result<f64, BackendError> {
    let shape = [1 << 10, 1, (bytes >> 12) as u32, 0];
    let mut graph = ComputeGraph::new();
    let leaf = graph.add_leaf(from, shape);
    graph.add_op(TensorOp::Copy, to, shape, vec![leaf], OpParams::default());
    let refused = |error: &dyn std::fmt::Display| BackendError::Unsupported {
        backend: "this device",
        what: format!("a copy: {error}"),
    };
    let program = graph.check().map_err(|error| refused(&error))?;
    let mut once = |times: usize| -> Result<Duration, BackendError> {
        let start = Instant::now();
        for _ in 0..times {
            program.run(device).map_err(|error| refused(&error))?;
        }
        device.synchronize()?;
        Ok(start.elapsed())
    };
    once(2)?;
    let times = 8;
    let start = Instant::now();
    while state == DeviceState::Idle && start.elapsed() < WARM_UP {
        once(times)?;
    }
    let mut best = once(times)?;
    let start = Instant::now();
    while start.elapsed() < BUDGET {
        best = best.min(once(times)?);
    }
    Ok((2 * bytes * times) as f64 / best.as_secs_f64())
}
