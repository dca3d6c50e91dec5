//! The prefill chunk size.

use fulmen_core::Backend;

use super::session::SessionOptions;
use crate::arch::Config;
use crate::error::ModelError;

/// The smallest chunk, however little memory is left.
const MIN_CHUNK: u32 = 512;

/// Steps of several sizes are kept, each with its own activation memory: one may use this fraction of what is
/// left.
const MEMORY_FRACTION: u64 = 16;

/// The session's chunk size, or the device's preferred one, halved while memory is short. `reserved` bytes
/// will be allocated before the first prefill; `activation_bytes` gives those of a prefill by its rows.
pub(super) fn choose(
    device: &dyn Backend,
    config: &Config,
    session: &SessionOptions,
    reserved: u64,
    activation_bytes: impl Fn(u32) -> Result<u64, ModelError>,
) -> Result<u32, ModelError> {
    if session.chunk != 0 {
        return Ok(session.chunk);
    }
    let mut rows = device.prefill_chunk().max(1);
    let Some(available) = device.available_bytes() else { return Ok(rows.min(MIN_CHUNK)) };
    let room =
        available.saturating_sub(reserved).saturating_sub(session.cache_bytes(config)) / MEMORY_FRACTION;
    while rows > MIN_CHUNK && activation_bytes(rows)? > room {
        rows = (rows / 2).max(MIN_CHUNK);
    }
    Ok(rows)
}
