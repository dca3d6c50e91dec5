//! The prefill chunk size.

use fulmen_core::Backend;
use fulmen_model::ModelError;

/// The smallest chunk, however little memory is left.
pub(super) const MIN_CHUNK: u32 = 512;

/// Steps of several sizes are kept, each with its own activation memory: one may use this fraction of what is
/// left.
const MEMORY_FRACTION: u64 = 16;

/// The chunk size that was asked for, or with 0 the device's preferred one, halved while memory is short.
/// `reserved` bytes will be allocated before the first prefill; `activation_bytes` gives those of a prefill
/// by its rows.
pub(super) fn choose(
    device: &dyn Backend,
    asked: u32,
    reserved: u64,
    activation_bytes: impl Fn(u32) -> Result<u64, ModelError>,
) -> Result<u32, ModelError> {
    if asked != 0 {
        return Ok(asked);
    }
    let mut rows = device.prefill_chunk().max(1);
    let Some(available) = device.available_bytes() else { return Ok(rows.min(MIN_CHUNK)) };
    let room = available.saturating_sub(reserved) / MEMORY_FRACTION;
    while rows > MIN_CHUNK && activation_bytes(rows)? > room {
        rows = (rows / 2).max(MIN_CHUNK);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use fulmen_core::DType;
    use fulmen_model::arch::Config;
    use fulmen_model::summary::Summary;
    use fulmen_model::synth::{ModelShape, Synth};

    use crate::SessionOptions;

    #[test]
    fn the_kv_cache_of_a_session_is_that_of_the_summary() {
        let presets = ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-qwen35", "tiny-qwen3next"];
        for preset in presets.into_iter().chain(["tiny-gemma4", "tiny-gemma4moe"]) {
            let shape = ModelShape::preset(preset).unwrap();
            let source = Synth::new(shape, "q4_k_m".parse().unwrap(), 1).source().unwrap();
            let (summary, config) = (Summary::of(&source).unwrap(), Config::read(&source).unwrap());
            let memory = summary.memory(1024).unwrap();
            let session = SessionOptions { context: 1024, ..SessionOptions::default() };
            assert_eq!(memory.kv_f16, session.cache_bytes(&config));
            assert_eq!(memory.states, session.state_bytes(&config));
            let q8_0 = SessionOptions { cache: DType::Q8_0, ..session };
            assert_eq!(memory.kv_q8_0, Some(q8_0.cache_bytes(&config)));
        }
    }
}
