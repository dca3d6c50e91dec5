//! The prefill chunk size.

use fulmen_core::{Backend, PlanOptions};

use super::session::SessionOptions;
use crate::arch::{Config, Step};
use crate::error::ModelError;
use crate::source::ModelSource;

/// The smallest chunk, however little memory is left.
const MIN_CHUNK: u32 = 512;

/// Steps of several sizes are kept, each with its own activation memory: one may use this fraction of what is
/// left.
const MEMORY_FRACTION: u64 = 16;

/// Bytes of the activations of a prefill of `rows` tokens.
pub(super) fn activation_bytes(
    config: &Config,
    source: &dyn ModelSource,
    session: &SessionOptions,
    rows: u32,
) -> Result<u64, ModelError> {
    let spec = session.spec(Step::Prefill { rows: rows.min(session.context), results: None });
    Ok(config.graph(source, &spec)?.plan(&PlanOptions::default())?.arena_bytes as u64)
}

/// The session's chunk size, or the device's preferred one, halved while memory is short. `reserved` bytes
/// will be allocated before the first prefill.
pub(super) fn choose(
    device: &dyn Backend,
    config: &Config,
    source: &dyn ModelSource,
    session: &SessionOptions,
    reserved: u64,
) -> Result<u32, ModelError> {
    if session.chunk != 0 {
        return Ok(session.chunk);
    }
    let mut rows = device.prefill_chunk().max(1);
    let Some(available) = device.available_bytes() else { return Ok(rows.min(MIN_CHUNK)) };
    let room =
        available.saturating_sub(reserved).saturating_sub(session.cache_bytes(config)) / MEMORY_FRACTION;
    while rows > MIN_CHUNK && activation_bytes(config, source, session, rows)? > room {
        rows = (rows / 2).max(MIN_CHUNK);
    }
    Ok(rows)
}
