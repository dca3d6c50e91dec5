//! How fast a device reads its memory, and so how fast it could decode at most.

use std::time::{Duration, Instant};

use fulmen_core::{Backend, BackendError, BackendKind, ComputeGraph, DeviceInfo, OpParams, TensorOp};
use fulmen_model::{Model, Session};

/// Long enough for a stable figure.
const BUDGET: Duration = Duration::from_millis(150);

/// What a device did just before: an idle GPU runs slowly until it has been busy for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    Work,
    Nothing,
}

/// How long a device that did nothing is kept busy before anything is measured.
const WARMING: Duration = Duration::from_millis(300);

/// Bytes per second that the device reads at most: the processor is asked to read the model's own weights with its
/// threads, other devices to copy a buffer that no cache holds.
pub(crate) fn bandwidth(model: &Model, threads: usize, before: Before) -> Option<f64> {
    model.with_device(|device| match device.backend() {
        "cpu" => host_read(model, threads),
        _ => device_copy(device, before).ok(),
    })
}

/// Bytes that a decode step reads at this depth: weights, and the keys and values of all positions.
pub(crate) fn bytes_per_token(model: &Model, session: &Session, depth: usize) -> u64 {
    let per_position = session.options().cache_bytes(model.config()) / session.context().max(1) as u64;
    model.bytes_per_token() + per_position / u64::from(session.options().sequences) * depth as u64
}

/// Bytes that a decode step of several sequences reads: weights once, and the keys and values of each.
pub(crate) fn bytes_per_step(model: &Model, session: &Session, depth: usize, batch: u32) -> u64 {
    let weights = model.bytes_per_token();
    weights + (bytes_per_token(model, session, depth) - weights) * u64::from(batch)
}

/// Operations per second that the tensor units of a device do at most: dense, f16 with sums in f32, by the data sheet.
pub(crate) fn tensor_peak(device: &DeviceInfo) -> Option<f64> {
    // More special names first.
    const TERA: [(&str, f64); 7] = [
        ("H200 NVL", 835.0),
        ("H200", 989.0),
        ("H100 NVL", 835.0),
        ("H100 PCIe", 756.0),
        ("H100", 989.0),
        ("A100", 312.0),
        ("L40S", 362.0),
    ];
    let found = TERA.iter().find(|(name, _)| device.name.contains(name));
    found.filter(|_| device.backend == BackendKind::Cuda).map(|(_, tera)| tera * 1e12)
}

fn host_read(model: &Model, threads: usize) -> Option<f64> {
    let source = model.source();
    let tensors = source.tensors().iter().filter_map(|info| source.data(info.name()).ok());
    let mut parts: Vec<_> = tensors.collect();
    // Large ones first: small ones fill the gaps between the threads.
    parts.sort_by_key(|part| std::cmp::Reverse((**part).as_ref().len()));
    let total: usize = parts.iter().map(|part| (**part).as_ref().len()).sum();
    const PIECE: usize = 1 << 20;
    let pieces: Vec<&[u8]> = parts.iter().flat_map(|part| (**part).as_ref().chunks(PIECE)).collect();
    let once = || {
        let next = std::sync::atomic::AtomicUsize::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let read = || {
                while let Some(piece) = pieces.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    std::hint::black_box(sum(std::hint::black_box(piece)));
                }
            };
            for _ in 1..threads {
                // Without another thread this one reads it all.
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

/// A copy reads and writes; both count.
fn device_copy(device: &mut dyn Backend, before: Before) -> Result<f64, BackendError> {
    const BYTES: usize = 256 << 20;
    let from = device.alloc(BYTES)?;
    let to = match device.alloc(BYTES) {
        Ok(to) => to,
        Err(error) => {
            device.free(from)?;
            return Err(error);
        }
    };
    let measured = time_copies(device, from, to, BYTES, before);
    device.free(from)?;
    device.free(to)?;
    measured
}

fn time_copies(
    device: &mut dyn Backend,
    from: u64,
    to: u64,
    bytes: usize,
    before: Before,
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
    while before == Before::Nothing && start.elapsed() < WARMING {
        once(times)?;
    }
    let mut best = once(times)?;
    let start = Instant::now();
    while start.elapsed() < BUDGET {
        best = best.min(once(times)?);
    }
    Ok((2 * bytes * times) as f64 / best.as_secs_f64())
}
