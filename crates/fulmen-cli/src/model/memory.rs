//! What to do where a model does not fit into memory.

use fulmen_core::{BackendError, ExecError};
use fulmen_model::ModelError;

/// Whether an error says that memory is short.
pub(crate) fn is_short(error: &ModelError) -> bool {
    use BackendError::OutOfMemory;
    match error {
        ModelError::Rank { source, .. } => is_short(source),
        ModelError::Memory { .. } | ModelError::CacheMemory { .. } => true,
        ModelError::Backend(error) => matches!(error, OutOfMemory { .. }),
        ModelError::Exec(ExecError::Backend(error) | ExecError::Node { source: error, .. }) => {
            matches!(error, OutOfMemory { .. })
        }
        _ => false,
    }
}

/// What of a model can be left on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaves {
    Nothing,
    Layers,
    /// Layers, or the experts of some.
    Experts,
}

/// The options with which a model needs less memory, after the message of an error.
pub(crate) fn options(error: &ModelError, leaves: Leaves) -> String {
    // These have the words already.
    let advised = match error {
        ModelError::Rank { source, .. } => source.as_ref(),
        error => error,
    };
    let smaller = match advised {
        ModelError::Memory { .. } | ModelError::CacheMemory { .. } => " (--context N, --kv q8_0)",
        _ => "; use a smaller context (--context N) or a q8_0 KV cache (--kv q8_0)",
    };
    let leaves = match leaves {
        Leaves::Nothing => "",
        Leaves::Layers => "; --gpu-layers auto leaves on the CPU what does not fit",
        Leaves::Experts => "; --cpu-experts auto leaves experts on the CPU, --gpu-layers auto whole layers",
    };
    format!("{smaller}{leaves}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_memory_has_the_hint() {
        let backend = || ModelError::from(BackendError::OutOfMemory { needed: 5, available: None });
        let memory = || {
            let (weights, cache, activations, available) = (1, 1, 1, 1);
            ModelError::Memory { device: "cuda", weights, cache, activations, available }
        };
        let rank = |source| ModelError::Rank { rank: 0, ranks: 2, source: Box::new(source) };
        for error in [backend(), memory(), rank(backend()), rank(memory())] {
            assert!(is_short(&error), "{error}");
            let text = format!("{error}{}", options(&error, Leaves::Layers));
            for words in ["a smaller context", "--context N", "--kv q8_0", "--gpu-layers auto"] {
                assert_eq!(text.matches(words).count(), 1, "{words}: {text}");
            }
        }
        assert!(!options(&memory(), Leaves::Nothing).contains("--gpu-layers"));
        let both = options(&memory(), Leaves::Experts);
        assert!(both.contains("--cpu-experts auto") && both.contains("--gpu-layers auto"), "{both}");
        assert!(!is_short(&ModelError::EmptyPrompt));
    }
}
