//! Resolves the MODEL argument: a path, or the name of a model in the download cache.

use std::path::{Path, PathBuf};

use fulmen_hub::{Cache, HubError, Reference, Settings};

use crate::error::CommandError;

/// Why a model could not be found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FindError {
    #[error("no file or folder {name}, and no such model in the cache; `fulmen pull {name}` downloads it")]
    NotFound { name: String },
    #[error("the model in the cache is incomplete: {error}; `fulmen pull {name}` downloads it")]
    Incomplete { name: String, error: HubError },
    #[error(transparent)]
    Hub(#[from] HubError),
}

impl CommandError for FindError {}

/// The path of a model. An argument that is not an existing path and could be the name of a model is looked
/// up in the cache; anything else is returned as it is, and opening it reports what is wrong.
pub(crate) fn find(model: &Path) -> Result<PathBuf, FindError> {
    let Some(reference) = reference(model) else { return Ok(model.to_owned()) };
    let settings = Settings::from_env()?;
    let name = reference.to_string();
    match Cache::of(&settings.cache, &reference).find(&reference) {
        Ok(Some(path)) => Ok(path),
        Ok(None) => Err(FindError::NotFound { name }),
        Err(error) => Err(FindError::Incomplete { name, error }),
    }
}

/// Whether an argument means a model and not a prompt: an existing path, the name of a model file, or of a
/// model on a hub.
pub(crate) fn is_model(word: &Path) -> bool {
    let file = word.extension().is_some_and(|end| end == "gguf" || end == "safetensors");
    let text = word.to_str().is_none_or(|text| text.contains(char::is_whitespace));
    word.symlink_metadata().is_ok() || (!text && (file || reference(word).is_some()))
}

/// The model that an argument names, unless it is a path.
fn reference(model: &Path) -> Option<Reference> {
    if model.symlink_metadata().is_ok() {
        return None;
    }
    let reference: Reference = model.to_str()?.parse().ok()?;
    // The name of a missing file is not the name of a model.
    let ends_as_file = [".gguf", ".safetensors", ".json"].iter().any(|end| reference.repo().ends_with(end));
    (reference.repo().contains('/') && !ends_as_file).then_some(reference)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_not_models() {
        for word in ["org/name", "model.gguf", "src", "/tmp"] {
            assert!(is_model(Path::new(word)), "{word}");
        }
        for word in ["Once upon a time", "Hello", "What is model.gguf", "a/b/c", ""] {
            assert!(!is_model(Path::new(word)), "{word}");
        }
    }

    #[test]
    fn paths_are_paths_and_names_are_names() {
        let names = |text: &str| reference(Path::new(text)).is_some();
        for text in ["org/name", "org/name:Q8_0", "org/name@v1:x.gguf"] {
            assert!(names(text), "{text}");
        }
        for text in
            ["/org/name", "./org/name", "~/org", "name", "a/b/c", "org/x.gguf", "src/main.rs", "src/model"]
        {
            assert!(!names(text), "{text}");
        }
    }
}
