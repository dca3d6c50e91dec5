//! Allocations of the host whose size comes from a file: none of them may end the process.

use std::error::Error;
use std::fs;
use std::path::Path;

use fulmen_cpu::CpuDispatcher;
use fulmen_model::gguf::GgufFile;
use fulmen_model::source::{self, ModelSource};
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_model::tokenizer::{Special, Tokenizer};
use fulmen_model::{LoadOptions, Model, SessionOptions};
use fulmen_testkit::inject::FailingAllocator;

/// Smaller ones are part of any work and do not grow with the file.
const LARGE: usize = 24 << 10;

type Failure = Box<dyn Error + Send + Sync>;

/// Fails each large allocation of `work` in turn: an error that speaks of memory, then the same result.
fn fail_each<T: PartialEq>(name: &str, work: impl Fn() -> Result<T, Failure>) {
    let expected = work().unwrap();
    let mut number = 1;
    loop {
        let (result, fired) = FailingAllocator::fail(number, LARGE, &work);
        if !fired {
            assert!(result.is_ok_and(|result| result == expected));
            break;
        }
        match result {
            // A reader may try again with less.
            Ok(result) => assert!(result == expected, "{name}: allocation {number}"),
            Err(error) => {
                let said = error.to_string().to_lowercase();
                assert!(said.contains("memory"), "{name}: allocation {number}: {said}");
            }
        }
        assert!(work().unwrap() == expected, "{name}: after allocation {number}");
        number += 1;
    }
    crate::report(name, number - 1);
    assert!(number > 3, "{name}: only {number} large allocations");
}

fn model(preset: &str, types: &str) -> Vec<u8> {
    let shape = ModelShape { layers: 2, vocabulary: 12_000, ..ModelShape::preset(preset).unwrap() };
    Synth::new(shape, types.parse().unwrap(), 1).bytes().unwrap()
}

#[test]
fn gguf_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, model("tiny-qwen3", "q8_0")).unwrap();
    fail_each("open a GGUF file", || {
        let file = GgufFile::open(&path)?;
        Ok((file.tensors().to_vec(), file.metadata().len()))
    });
}

#[test]
fn tokenizers() {
    for preset in ["tiny-qwen3", "tiny-llama"] {
        let file = GgufFile::from_bytes(std::sync::Arc::new(model(preset, "q8_0"))).unwrap();
        fail_each(&format!("the tokenizer of {preset}"), || {
            let tokenizer = Tokenizer::from_metadata(file.metadata())?;
            Ok(tokenizer.encode("Once upon a time", Special::AsText))
        });
    }
}

/// A tokenizer.json with many tokens and merges.
fn tokenizer_json(path: &Path) {
    let letters: Vec<char> = ('a'..='z').collect();
    let mut tokens: Vec<String> = letters.iter().map(char::to_string).collect();
    let mut merges = Vec::new();
    for a in &letters {
        for b in &letters {
            merges.push(format!("\"{a} {b}\""));
            tokens.push(format!("{a}{b}"));
        }
    }
    for pair in tokens.clone().iter().filter(|token| token.len() == 2) {
        for c in &letters[..12] {
            merges.push(format!("\"{pair} {c}\""));
            tokens.push(format!("{pair}{c}"));
        }
    }
    let vocab: Vec<String> =
        tokens.iter().enumerate().map(|(id, token)| format!("\"{token}\": {id}")).collect();
    let text = format!(
        r#"{{"pre_tokenizer": {{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}},
            "model": {{"type": "BPE", "vocab": {{{}}}, "merges": [{}]}}}}"#,
        vocab.join(", "),
        merges.join(", ")
    );
    fs::write(path, text).unwrap();
}

#[test]
fn tokenizer_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    tokenizer_json(&path);
    fail_each("tokenizer.json", || {
        Ok(Tokenizer::from_json_file(&path)?.encode("hello world", Special::AsText))
    });
}

#[test]
fn weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, model("tiny-qwen2", "f16")).unwrap();
    fail_each("load a model", || {
        let session = SessionOptions { context: 32, ..SessionOptions::default() };
        let source: std::sync::Arc<dyn ModelSource> = source::open(&path)?.into();
        let options = LoadOptions { session, ..LoadOptions::default() };
        let model = Model::from_source(source, Box::new(CpuDispatcher::with_threads(1)), options)?;
        Ok(model.weight_bytes())
    });
}
