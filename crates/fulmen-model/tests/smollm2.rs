//! SmolLM2-135M-Instruct, if its file is there: token ids and the sure begins of greedy answers are those of llama.cpp.
//!
//! `scripts/compare-llama-cpp --fetch` gets the file; `scripts/test` does so where it can. `FULMEN_SMOLLM2` names another place.
//! The golden set was written by `scripts/compare-llama-cpp --golden`.

use std::path::{Path, PathBuf};

use fulmen_cpu::CpuDispatcher;
use fulmen_model::tokenizer::Special;
use fulmen_model::{LoadOptions, Model, SessionOptions};
use serde_json::Value;

/// The model's file, where it is expected.
fn file() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("FULMEN_SMOLLM2") {
        return Some(path.into());
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/compare");
    let files = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    files.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "gguf"))
}

fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

#[test]
fn ids_and_answers_are_those_of_llama_cpp() {
    let Some(path) = file() else {
        println!("skipped: SmolLM2's file is not there; scripts/compare-llama-cpp --fetch gets it");
        return;
    };
    let golden: Value = serde_json::from_str(include_str!("golden/smollm2.json")).unwrap();
    let session = SessionOptions { context: 1024, ..SessionOptions::default() };
    let options = LoadOptions { session, ..LoadOptions::default() };
    let model = Model::load_with(path, Box::new(CpuDispatcher::new()), options).unwrap();
    let mut session = model.session().unwrap();
    let (mut steps, mut prompts) = (0, 0);
    for entry in golden.as_array().unwrap() {
        let prompt = entry["prompt"].as_str().unwrap();
        let tokens = model.tokenizer().unwrap().encode_prompt(prompt, Special::Parse);
        assert_eq!(tokens, numbers(&entry["tokens"]), "{prompt:?}");
        let answer = numbers(&entry["answer"]);
        session.truncate(0, 0).unwrap();
        let mut got = Vec::new();
        if !answer.is_empty() {
            got.push(session.draw(0, &tokens).unwrap());
            got.extend(session.decode(&[0], answer.len() - 1).unwrap().remove(0));
        }
        assert_eq!(got, answer, "{prompt:?}");
        (steps, prompts) = (steps + answer.len(), prompts + 1);
    }
    assert!(prompts >= 20 && steps >= 100, "{prompts} prompts, {steps} steps");
    println!("{prompts} prompts, {steps} greedy steps");
}
