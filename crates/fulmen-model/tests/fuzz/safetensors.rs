//! Mutated safetensors files and configurations.

use std::fs;

use fulmen_model::safetensors::SafetensorsFolder;
use fulmen_model::source::ModelSource;

use crate::{corpus, fuzz, mutate, number};

const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 2, "intermediate_size": 4,
"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2,
"rms_norm_eps": 1e-5, "vocab_size": 4, "max_position_embeddings": 128, "rope_theta": 1e4,
"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
"original_max_position_embeddings": 64}, "eos_token_id": [1, 2]}"#;

fn open(folder: &std::path::Path) -> bool {
    let Ok(model) = SafetensorsFolder::open(folder) else { return false };
    for tensor in model.tensors() {
        assert_eq!((*model.data(tensor.name()).unwrap()).as_ref().len(), tensor.bytes());
    }
    true
}

#[test]
fn mutated_files_are_refused_or_read() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), CONFIG).unwrap();
    let files = corpus::files(".safetensors.bin");
    let cases = number("FULMEN_FUZZ_CASES", 10_000) / 10;
    let read = |bytes: &[u8]| {
        fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        open(folder.path())
    };
    fuzz("safetensors", cases, |random| mutate::mutated(&files, random), read);
}

#[test]
fn mutated_configurations_are_refused_or_read() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.safetensors"), &corpus::files("small.safetensors.bin")[0]).unwrap();
    let files = [CONFIG.as_bytes().to_vec()];
    let cases = number("FULMEN_FUZZ_CASES", 10_000) / 10;
    let read = |bytes: &[u8]| {
        fs::write(folder.path().join("config.json"), bytes).unwrap();
        open(folder.path())
    };
    // Replace digits with digits: anything else is rejected by the JSON parser right away.
    let make = |random: &mut fastrand::Rng| {
        let mut bytes = mutate::mutated(&files, random);
        if random.u8(0..4) > 0 {
            bytes = CONFIG.as_bytes().to_vec();
            for _ in 0..random.usize(1..=3) {
                let at = random.usize(0..bytes.len());
                if bytes[at].is_ascii_digit() {
                    bytes[at] = b'0' + random.u8(0..10);
                    bytes.splice(at..at, "9".repeat(random.usize(0..9)).into_bytes());
                }
            }
        }
        bytes
    };
    fuzz("config", cases, make, read);
}
