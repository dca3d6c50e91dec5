//! Resolves the MODEL argument: a path, an alias, or the name of a model in the download cache.

use std::io;
use std::path::{Path, PathBuf};

use fulmen_hub::{Cache, HubError, Inventory, Reference};

use super::suggest::{did_you_mean, nearest};
use crate::config::{self, BUILTIN, Config, ConfigError};
use crate::error::CommandError;
use crate::output::printable;

/// Why a model could not be found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FindError {
    #[error(
        "no file or folder {name}, and no such model in the cache; `fulmen pull {name}` downloads it{}",
        did_you_mean(near)
    )]
    NotFound { name: String, near: Vec<String> },
    #[error("no file, alias or downloaded model is called {name}{}", did_you_mean_or_list(near))]
    NoSuchName { name: String, near: Vec<String> },
    #[error("{name}: cannot open it: {error}{}", did_you_mean(near))]
    Missing { name: String, error: io::Error, near: Vec<String> },
    #[error("the alias {alias} means {target}: {error}")]
    Alias { alias: String, target: String, error: Box<FindError> },
    #[error("the model in the cache is incomplete: {error}; `fulmen pull {name}` downloads it")]
    Incomplete { name: String, error: HubError },
    #[error(transparent)]
    Config(#[from] ConfigError),
}

fn did_you_mean_or_list(near: &[String]) -> String {
    match near {
        [] => {
            "; `fulmen list` lists the downloaded models, and `fulmen pull ORG/NAME` downloads one".to_owned()
        }
        near => did_you_mean(near),
    }
}

impl CommandError for FindError {
    fn is_usage(&self) -> bool {
        matches!(self, FindError::Config(error) if error.is_usage())
    }
}

/// The path of a model. What exists is a path. Otherwise it may be an alias of the configuration, or the name
/// of a model in the cache. If it is neither, the error names what is near.
pub(crate) fn find(model: &Path) -> Result<PathBuf, FindError> {
    let config = config::current();
    let target = model.to_str().filter(|_| !exists(model)).and_then(|name| config.alias(name));
    match target {
        None => resolve(model, config),
        Some(target) => resolve(Path::new(target), config).map_err(|error| FindError::Alias {
            alias: model.display().to_string(),
            target: printable(target),
            error: Box::new(error),
        }),
    }
}

fn resolve(model: &Path, config: &Config) -> Result<PathBuf, FindError> {
    let error = match model.symlink_metadata() {
        Ok(_) => return Ok(model.to_owned()),
        Err(error) => error,
    };
    let name = printable(&model.display().to_string());
    if let Some(reference) = reference(model) {
        let name = reference.to_string();
        let settings = config.hub_settings()?;
        return match Cache::of(&settings.cache, &reference).find(&reference) {
            Ok(Some(path)) => Ok(path),
            Ok(None) => Err(FindError::NotFound { near: near_names(&name, config), name }),
            Err(error) => Err(FindError::Incomplete { name, error }),
        };
    }
    let text = model.to_string_lossy();
    if !is_path(&text) {
        return Err(FindError::NoSuchName { near: near_names(&text, config), name });
    }
    let mut near = near_files(model);
    near.extend(near_names(&text, config).into_iter().filter(|_| near.is_empty()).collect::<Vec<_>>());
    Err(FindError::Missing { name, error, near })
}

/// Whether an argument means a model and not a prompt: it exists, or it is one word that looks like a path or
/// a name, or is near to a name that is known. What looks like one and is none is an error, not a story.
pub(crate) fn is_model(word: &Path) -> bool {
    let Some(text) = word.to_str() else { return true };
    let config = config::current();
    if text.is_empty() || exists(word) || config.alias(text).is_some() {
        return !text.is_empty();
    }
    if text.contains(char::is_whitespace) {
        return false;
    }
    looks_like_a_name(text)
        || is_of_a_family(text)
        || is_builtin(word)
        || (text.chars().count() >= 4 && !near_names(text, config).is_empty())
}

/// Whether an argument names the built-in model.
pub(crate) fn is_builtin(word: &Path) -> bool {
    word.as_os_str() == BUILTIN
}

/// Families of models, as people call them.
const FAMILIES: [&str; 21] = [
    "codellama",
    "codestral",
    "deepseek",
    "devstral",
    "gemma",
    "glm",
    "gpt",
    "granite",
    "llama",
    "magistral",
    "ministral",
    "mistral",
    "mixtral",
    "olmo",
    "olmoe",
    "phi",
    "qwen",
    "qwq",
    "smollm",
    "tinyllama",
    "vicuna",
];

/// Whether a word is the name of a family, alone or before a `-`: `mistral`, `gpt-oss`.
fn is_of_a_family(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    let family = word.split('-').next().unwrap_or_default();
    FAMILIES.contains(&family)
}

/// Whether a word is no word of a sentence: it has a slash, or letters and digits, or punctuation inside.
fn looks_like_a_name(word: &str) -> bool {
    let core = word.trim_end_matches(['.', '!', '?', ',', ';', ':', '…', '"', '\'']);
    let has = |fits: fn(char) -> bool| core.contains(fits);
    let letters = has(char::is_alphabetic);
    core.contains(['/', '\\', '@', '_'])
        || core.starts_with(['~', '.'])
        || (letters && (has(|c| c.is_ascii_digit()) || core.contains(['.', ':'])))
}

/// Whether a name that does not exist was meant as a path.
fn is_path(text: &str) -> bool {
    let ends = [".gguf", ".safetensors", ".json"].iter().any(|end| text.to_ascii_lowercase().ends_with(end));
    ends || text.contains(['/', '\\']) || text.starts_with(['~', '.'])
}

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// The model that an argument names, unless it is a path.
fn reference(model: &Path) -> Option<Reference> {
    let reference: Reference = model.to_str()?.parse().ok()?;
    // The name of a missing file is not the name of a model.
    let ends_as_file = [".gguf", ".safetensors", ".json"].iter().any(|end| reference.repo().ends_with(end));
    (reference.repo().contains('/') && !ends_as_file).then_some(reference)
}

/// Downloaded models and aliases with a name near to a word.
pub(crate) fn near_names(word: &str, config: &Config) -> Vec<String> {
    // Suggestions are extra: a cache that cannot be read is reported by what needs it.
    let root = config.hub_settings().map(|settings| settings.cache);
    let models = root.ok().and_then(|root| Inventory::read(&root).ok()).unwrap_or_default().models;
    let aliases = config.file.aliases.keys().map(String::as_str);
    let names = models.iter().map(|model| model.name.as_str()).chain(aliases);
    nearest(word, names).into_iter().map(printable).collect()
}

/// Model files with a name near to that of a missing one, in its folder.
fn near_files(path: &Path) -> Vec<String> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let Some(name) = path.file_name().map(|name| name.to_string_lossy()) else { return Vec::new() };
    let is_model = |path: &Path| {
        path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"))
            || path.join("config.json").is_file()
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter(|entry| is_model(&entry.path()));
    let names: Vec<String> = files.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let near = nearest(&name, names.iter().map(String::as_str));
    near.into_iter().map(|near| printable(&path.with_file_name(near).display().to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_not_models() {
        let models = [
            "org/name",
            "model.gguf",
            "src",
            "/tmp",
            "a/b/c",
            "qwen3",
            "llama3.2:1b",
            "phi-4",
            "./x",
            "~/x",
            "C:\\x",
            "my_model",
            "hf.co/org/name:Q8_0",
            "https://huggingface.co/org/name",
            "mistral",
            "Gemma",
            "llama",
            "qwen",
            "gpt-oss",
            "mistral-small",
            "builtin",
        ];
        for word in models {
            assert!(is_model(Path::new(word)), "{word}");
        }
        let prompts = [
            "Once upon a time",
            "Hello",
            "Hello.",
            "Why?",
            "What is model.gguf",
            "",
            "3.14",
            "well-known",
            "Zażółć",
            "1984",
            "…",
            "Llama!",
            "llamas",
            "well-phi",
        ];
        for word in prompts {
            assert!(!is_model(Path::new(word)), "{word}");
        }
    }

    #[test]
    fn every_architecture_is_of_a_family() {
        for architecture in fulmen_model::arch::Architecture::ALL {
            let name = architecture.name();
            assert!(FAMILIES.iter().any(|family| name.starts_with(family)), "{name}");
        }
    }

    #[test]
    fn paths_are_paths_and_names_are_names() {
        let names = |text: &str| reference(Path::new(text)).is_some();
        for text in ["org/name", "org/name:Q8_0", "org/name@v1:x.gguf", "hf.co/org/name", "https://h.x/a/b"] {
            assert!(names(text), "{text}");
        }
        for text in ["/org/name", "./org/name", "~/org", "name", "a/b/c", "org/x.gguf"] {
            assert!(!names(text), "{text}");
        }
    }

    #[test]
    fn missing_files_are_near_to_files_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["smollm2-Q8_0.gguf", "other.gguf", "smollm2.txt"] {
            std::fs::write(folder.path().join(name), b"x").unwrap();
        }
        let error = find(&folder.path().join("smollm2-Q8-0.gguf")).unwrap_err().to_string();
        let near = folder.path().join("smollm2-Q8_0.gguf");
        assert!(error.ends_with(&format!("; did you mean {}?", near.display())), "{error}");
    }
}
