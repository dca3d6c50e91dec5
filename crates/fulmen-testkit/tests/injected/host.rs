//! Allocations of the host whose size comes from a file: none of them may end the process.

use std::error::Error;
use std::fs;
use std::path::Path;

use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{LoadOptions, Model, SessionOptions};
use fulmen_model::gguf::{Array, GgufFile, GgufWriter, Metadata};
use fulmen_model::source::{self, ModelSource};
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_model::tokenizer::{Special, Tokenizer};
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

/// A model with a long token, a long merge and a long template.
fn model(preset: &str, types: &str) -> Vec<u8> {
    let shape = ModelShape { layers: 2, vocabulary: 12_000, ..ModelShape::preset(preset).unwrap() };
    let synth = Synth::new(shape, types.parse().unwrap(), 1);
    let (mut metadata, tensors) = (synth.metadata(), synth.tensors().unwrap());
    let strings = |metadata: &Metadata, key: &str| -> Vec<String> {
        metadata.strings(key).map(|texts| texts.map(str::to_owned).collect()).unwrap_or_default()
    };
    let mut tokens = strings(&metadata, "tokenizer.ggml.tokens");
    tokens[11_000] = "q".repeat(LARGE);
    metadata.set("tokenizer.ggml.tokens", Array::strings(tokens));
    let mut merges = strings(&metadata, "tokenizer.ggml.merges");
    if !merges.is_empty() {
        merges.push(format!("{} a", "z".repeat(LARGE)));
        metadata.set("tokenizer.ggml.merges", Array::strings(merges));
    }
    metadata.set("tokenizer.chat_template", "x".repeat(2 * LARGE));
    let mut writer = GgufWriter::new(Vec::new(), &metadata, &tensors).unwrap();
    for info in &tensors {
        writer.write(info.name(), &synth.data(info).unwrap()).unwrap();
    }
    writer.finish().unwrap()
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

/// A Hugging Face folder of a Llama model with one layer and many layers' worth of unused tensors.
fn folder(path: &Path) {
    const SIZE: usize = 128;
    let layer = |part: &str| format!("model.layers.0.{part}.weight");
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![300, SIZE])];
    for part in ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"] {
        tensors.push((layer(part), vec![SIZE, SIZE]));
    }
    for part in ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"] {
        tensors.push((layer(part), vec![SIZE, SIZE]));
    }
    for part in ["input_layernorm", "post_attention_layernorm"] {
        tensors.push((layer(part), vec![SIZE]));
    }
    tensors.push(("model.norm.weight".to_owned(), vec![SIZE]));
    for number in 0..600 {
        let name = format!("model.layers.{number}.self_attn.rotary_emb.inv_freq");
        tensors.push((name, vec![2]));
    }
    let (mut header, mut end) = (Vec::new(), 0);
    for (name, shape) in &tensors {
        let begin = end;
        end += 2 * shape.iter().product::<usize>();
        let entry =
            format!(r#""{name}":{{"dtype":"BF16","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#);
        header.push(entry);
    }
    let header = format!("{{{}}}", header.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + end, 0x3c);
    fs::write(path.join("model.safetensors"), bytes).unwrap();
    let config = r#"{"model_type": "llama", "hidden_size": 128, "intermediate_size": 128,
        "num_hidden_layers": 1, "num_attention_heads": 4, "rms_norm_eps": 1e-6, "vocab_size": 300,
        "max_position_embeddings": 64, "tie_word_embeddings": true}"#;
    fs::write(path.join("config.json"), config).unwrap();
}

#[test]
fn safetensors_folders() {
    let path = tempfile::tempdir().unwrap();
    folder(path.path());
    fail_each("load a safetensors folder", || {
        let source: std::sync::Arc<dyn ModelSource> = source::open(path.path())?.into();
        let options = LoadOptions::default();
        let model = Model::from_source(source, Box::new(CpuDispatcher::with_threads(1)), options)?;
        Ok(model.weight_bytes())
    });
}
