//! How many tokens of a prompt are run at once.

use fulmen_core::{Backend, PlanOptions};

use super::session::SessionOptions;
use crate::arch::{Config, Step};
use crate::error::ModelError;
use crate::source::ModelSource;

/// What is run at once at least, however little memory is left.
const LEAST: u32 = 512;

/// Programs of several sizes are kept, each with memory of its own: one may take this part of what is left.
const PART: u64 = 16;

/// Bytes of the intermediate results of so many tokens.
pub(super) fn work_bytes(
    config: &Config,
    source: &dyn ModelSource,
    session: &SessionOptions,
    rows: u32,
) -> Result<u64, ModelError> {
    let spec = session.spec(Step::Prefill { rows: rows.min(session.context), results: None });
    Ok(config.graph(source, &spec)?.plan(&PlanOptions::default())?.arena_bytes as u64)
}

/// What the session asks for; else as many tokens as pay on the device, and fewer where memory is short. `taken` bytes will be gone
/// before the first prompt.
pub(super) fn choose(
    device: &dyn Backend,
    config: &Config,
    source: &dyn ModelSource,
    session: &SessionOptions,
    taken: u64,
) -> Result<u32, ModelError> {
    if session.chunk != 0 {
        return Ok(session.chunk);
    }
    let mut rows = device.prefill_chunk().max(1);
    let Some(available) = device.available_bytes() else { return Ok(rows.min(LEAST)) };
    let room = available.saturating_sub(taken).saturating_sub(session.cache_bytes(config)) / PART;
    while rows > LEAST && work_bytes(config, source, session, rows)? > room {
        rows = (rows / 2).max(LEAST);
    }
    Ok(rows)
}
