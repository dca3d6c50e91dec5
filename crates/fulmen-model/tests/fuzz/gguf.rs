//! Mutated GGUF files.

use std::{hint::black_box, sync::Arc};

use fulmen_model::arch::Config;
use fulmen_model::gguf::{GgufFile, GgufWriter};
use fulmen_model::quantize::{QuantizePlan, Recipe};
use fulmen_model::summary::Summary;
use fulmen_model::tokenizer::Tokenizer;

use crate::{corpus, fuzz, mutate, number};

/// Reads a file and, if it is accepted, everything in it. Returns whether it was accepted.
fn read(bytes: &[u8]) -> bool {
    let file = match GgufFile::from_bytes(Arc::new(bytes.to_vec())) {
        Ok(file) => file,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    use_all(&file);
    true
}

fn use_all(file: &GgufFile) {
    let metadata = file.metadata();
    for (key, value) in metadata.iter() {
        black_box((value.to_string(), value.type_words()));
        let all =
            (metadata.opt_u32(key), metadata.opt_f32(key), metadata.opt_bool(key), metadata.opt_string(key));
        black_box(all.0.is_ok() || all.1.is_ok() || all.2.is_ok() || all.3.is_ok());
        if let Ok(array) = metadata.array(key) {
            let strings = array.as_strings().map(|items| items.map(str::len).sum::<usize>());
            let numbers = array.as_integers().map(|items| items.fold(0i128, i128::wrapping_add));
            black_box((strings, numbers));
            if let Some(strings) = array.as_strings() {
                assert_eq!(strings.count(), array.len());
            }
        }
    }
    for tensor in file.tensors() {
        let data = file.data(tensor.name()).unwrap();
        assert_eq!(data.len(), tensor.bytes());
        black_box(data.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
    }
    if let Ok(summary) = Summary::of(file) {
        black_box((summary.memory(4096), summary.kv_heads()));
    }
    black_box((Config::read(file).is_ok(), Tokenizer::from_metadata(metadata).is_ok()));
    for recipe in ["q4_k_m", "f16"] {
        let recipe: Recipe = recipe.parse().unwrap();
        black_box(QuantizePlan::of(file, recipe).map(|plan| plan.after).unwrap_or(0));
    }
    // What was read can be written and reads back the same.
    let mut writer = GgufWriter::new(Vec::new(), metadata, file.tensors()).unwrap();
    for tensor in file.tensors() {
        writer.write(tensor.name(), &file.data(tensor.name()).unwrap()).unwrap();
    }
    let again = GgufFile::from_bytes(Arc::new(writer.finish().unwrap())).unwrap();
    assert_eq!(again.tensors(), file.tensors());
    assert_eq!(again.metadata().len(), metadata.len());
}

#[test]
fn the_corpus_is_read() {
    let files = corpus::files(".gguf.bin");
    let accepted = files.iter().filter(|bytes| read(bytes)).count();
    assert!(accepted >= 4, "{accepted} of {}", files.len());
}

#[test]
fn mutated_files_are_refused_or_read() {
    let files = corpus::files(".gguf.bin");
    let cases = number("FULMEN_FUZZ_CASES", 10_000);
    fuzz("gguf", cases, |random| mutate::mutated(&files, random), read);
}

/// The same through a memory-mapped file on disk.
#[test]
fn mutated_files_on_disk_are_refused_or_read() {
    let files = corpus::files(".gguf.bin");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model-00001-of-00002.gguf");
    let cases = number("FULMEN_FUZZ_CASES", 10_000) / 20;
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        GgufFile::open(&path).map(|file| use_all(&file)).is_ok()
    };
    fuzz("gguf-on-disk", cases, |random| mutate::mutated(&files, random), read);
}
