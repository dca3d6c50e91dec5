//! Models and their presets in a TOML file.
//!
//! ```toml
//! keep_alive = 600          # seconds without requests before a model is unloaded; -1 for never
//! memory = 40_000_000_000   # bytes that all loaded models together may take
//!
//! [models.qwen]
//! path = "qwen3-8b-q4_k_m.gguf"
//! aliases = ["gpt-4o-mini", "default"]
//! context = 8192
//! system = "Answer briefly."
//! sampling = { temperature = 0.7, top_p = 0.8, top_k = 20 }
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::{LONGEST_KEEP_ALIVE, ModelSpec, RegistryOptions};
use crate::generation::SamplingDefaults;

/// The models of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Presets {
    /// The models, in the order of their names.
    pub models: Vec<ModelSpec>,
    /// How they are kept.
    pub options: RegistryOptions,
}

/// Why a file of presets cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PresetError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The file is no TOML, or has an unknown key.
    #[error("{path}: {message}")]
    Parse {
        /// The file.
        path: String,
        /// What is wrong, with the line.
        message: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    keep_alive: Option<i64>,
    memory: Option<u64>,
    #[serde(default)]
    models: BTreeMap<String, Model>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    path: Option<PathBuf>,
    #[serde(default)]
    aliases: Vec<String>,
    device: Option<String>,
    context: Option<u32>,
    keep_alive: Option<i64>,
    system: Option<String>,
    #[serde(default)]
    sampling: SamplingDefaults,
}

impl Presets {
    /// Reads a file. Paths in it that begin with `./` or `../` are relative to its folder.
    pub fn read(path: &Path) -> Result<Presets, PresetError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| PresetError::Read { path: shown.clone(), error })?;
        let mut presets = Presets::parse(&text)
            .map_err(|error| PresetError::Parse { path: shown, message: error.to_string() })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        for location in presets.models.iter_mut().filter_map(|spec| spec.location.as_mut()) {
            if location.starts_with(".") || location.starts_with("..") {
                *location = folder.join(&*location);
            }
        }
        Ok(presets)
    }

    /// The models of a text.
    pub fn parse(text: &str) -> Result<Presets, toml::de::Error> {
        let file: File = toml::from_str(text)?;
        let defaults = RegistryOptions::default();
        let keep_alive = file.keep_alive.map(time).or(defaults.keep_alive);
        let spec = |(name, model): (String, Model)| ModelSpec {
            name,
            aliases: model.aliases,
            location: model.path,
            device: model.device,
            context: model.context,
            keep_alive: model.keep_alive.map(time),
            defaults: model.sampling,
            system: model.system,
        };
        let models = file.models.into_iter().map(spec).collect();
        Ok(Presets { models, options: RegistryOptions { keep_alive, memory: file.memory } })
    }
}

/// A number of seconds; as long as can be with a negative one.
fn time(seconds: i64) -> Duration {
    u64::try_from(seconds).map_or(LONGEST_KEEP_ALIVE, Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_read_with_their_presets() {
        let text = "memory = 1000\n[models.a]\npath = \"a.gguf\"\naliases = [\"b\"]\ncontext = 64\n\
            sampling = { temperature = 0.5 }\n[models.story]\n";
        let presets = Presets::parse(text).unwrap();
        assert_eq!(presets.options.memory, Some(1000));
        assert_eq!(presets.models[0].aliases, ["b"]);
        assert_eq!(presets.models[0].defaults.temperature, Some(0.5));
        assert_eq!((presets.models[1].name.as_str(), &presets.models[1].location), ("story", &None));
    }

    #[test]
    fn models_may_stay_for_ever() {
        let presets = Presets::parse("keep_alive = -1\n[models.a]\nkeep_alive = -1\n[models.b]\n").unwrap();
        assert_eq!(presets.options.keep_alive, Some(LONGEST_KEEP_ALIVE));
        assert_eq!(presets.models[0].keep_alive, Some(LONGEST_KEEP_ALIVE));
        assert_eq!(presets.models[1].keep_alive, None);
    }

    #[test]
    fn unknown_keys_are_refused() {
        for text in ["x = 1", "[models.a]\ntemperature = 1", "[models.a]\nsampling = { top = 1 }"] {
            assert!(Presets::parse(text).is_err(), "{text}");
        }
    }
}
