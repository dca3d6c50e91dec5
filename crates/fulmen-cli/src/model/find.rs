//! From what a person calls a model to its path: a path, or the name of a model in the hub's cache.

use std::path::{Path, PathBuf};

use fulmen_hub::{Cache, HubError, Reference, Settings};

/// Why a name leads to no model.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FindError {
    #[error(
        "there is no file or folder {name}, and no such model is in the cache; `fulmen pull {name}` gets it"
    )]
    NotThere { name: String },
    #[error("in the cache, {error}; `fulmen pull {name}` gets it")]
    Incomplete { name: String, error: HubError },
    #[error(transparent)]
    Hub(#[from] HubError),
}

/// The path of a model. What is no path and could be the name of a model is looked for in the cache; anything else stays as
/// it is, for whoever opens it to say what is wrong.
pub(crate) fn find(model: &Path) -> Result<PathBuf, FindError> {
    let Some(reference) = reference(model) else { return Ok(model.to_owned()) };
    let settings = Settings::from_env()?;
    let name = reference.to_string();
    match Cache::of(&settings.cache, &reference).find(&reference) {
        Ok(Some(path)) => Ok(path),
        Ok(None) => Err(FindError::NotThere { name }),
        Err(error) => Err(FindError::Incomplete { name, error }),
    }
}

/// Whether a word is meant as a model, and not as a prompt: something that is there, the name of a file, or of a model on a hub.
pub(crate) fn is_model(word: &Path) -> bool {
    let file = word.extension().is_some_and(|end| end == "gguf" || end == "safetensors");
    let text = word.to_str().is_none_or(|text| text.contains(char::is_whitespace));
    word.symlink_metadata().is_ok() || (!text && (file || reference(word).is_some()))
}

/// The model that a text names, if it can only be meant so.
fn reference(model: &Path) -> Option<Reference> {
    if model.symlink_metadata().is_ok() {
        return None;
    }
    let reference: Reference = model.to_str()?.parse().ok()?;
    // A file that is not there is a file that is not there.
    let ends_as_file = [".gguf", ".safetensors", ".json"].iter().any(|end| reference.repo().ends_with(end));
    (reference.repo().contains('/') && !ends_as_file).then_some(reference)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_no_model() {
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
