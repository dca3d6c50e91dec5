//! The golden set of SmolLM2-135M-Instruct, written by `scripts/compare-llama-cpp --golden`.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A prompt, its tokens, and the unambiguous start of the greedy answer.
pub(crate) struct Golden {
    pub(crate) prompt: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) answer: Vec<u32>,
}

/// The model's file; prints a note if it does not exist.
pub(crate) fn file() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("FULMEN_SMOLLM2") {
        return Some(path.into());
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/compare");
    let mut files =
        std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let file = files.find(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    if file.is_none() {
        println!("skipped: SmolLM2's file is not there; scripts/compare-llama-cpp --fetch gets it");
    }
    file
}

/// The whole set.
pub(crate) fn set() -> Vec<Golden> {
    let numbers = |value: &Value| {
        value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
    };
    let set: Value = serde_json::from_str(include_str!("smollm2.json")).unwrap();
    let golden = |entry: &Value| Golden {
        prompt: entry["prompt"].as_str().unwrap().to_owned(),
        tokens: numbers(&entry["tokens"]),
        answer: numbers(&entry["answer"]),
    };
    set.as_array().unwrap().iter().map(golden).collect()
}
