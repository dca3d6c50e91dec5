//! `fulmen inspect`, run as users run it.

mod common;

use std::fs;

use common::{fulmen, output};
use fulmen_model::gguf::{Array, GgufFile, GgufWriter};
use serde_json::Value;

/// A small model with four layers in a new folder.
fn model(types: &str) -> (tempfile::TempDir, String) {
    model_of("tiny-qwen3", types)
}

fn model_of(shape: &str, types: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf").display().to_string();
    let (stdout, stderr, code) = output(&mut fulmen(&["synth", shape, &path, "--type", types]));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    assert_eq!(stdout, format!("wrote {path}\n"));
    (folder, path)
}

#[test]
fn the_text_has_the_main_facts() {
    let (_folder, path) = model("q4_k_m");
    let (stdout, stderr, code) = output(&mut fulmen(&["inspect", &path]));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    for line in [
        "  architecture    qwen3",
        "  name            tiny-qwen3 (random weights)",
        "  parameters      3.4 M (3,411,200)",
        "  layers          4",
        "  heads           4, 2 KV heads, head size 128",
        "  context         2,048 tokens",
        "  vocabulary      1,024 tokens",
        "  tokenizer       gpt2 (qwen2)",
        "  chat template   yes",
    ] {
        assert!(stdout.lines().any(|found| found == line), "{line:?} is not in\n{stdout}");
    }
    for words in [
        "type tensors parameters size share",
        "Q4_K 24 2,752,512 1.5 MiB 73.8 %",
        "memory at 2,048 tokens F16 KV cache Q8_0 KV cache",
        "KV cache 8 MiB 4.2 MiB",
        "total 13.5 MiB 9.8 MiB",
    ] {
        let same = |line: &str| line.split_whitespace().eq(words.split_whitespace());
        assert!(stdout.lines().any(same), "{words:?} is not in\n{stdout}");
    }
    let cpu = stdout.lines().find(|line| line.starts_with("cpu ")).unwrap();
    assert!(cpu.contains(" 2,048 ") && cpu.ends_with(" yes"), "{cpu}");
    assert!(!stdout.contains('\x1b'), "a pipe gets no colors: {stdout:?}");
    assert!(!stdout.contains("blk.0"), "tensors are listed only if asked");
}

#[test]
fn tensors_and_keys_are_listed_if_asked() {
    let (_folder, path) = model("q8_0");
    let (stdout, _, code) =
        output(&mut fulmen(&["inspect", &path, "--tensors", "--keys", "--context", "9000"]));
    assert_eq!(code, Some(0));
    let row = stdout.lines().find(|line| line.starts_with("blk.3.attn_q.weight ")).unwrap();
    assert_eq!(row.split_whitespace().collect::<Vec<_>>()[1..], ["256", "x", "512", "Q8_0", "136", "KiB"]);
    assert!(stdout.contains("\nqwen3.block_count  u32  4\n"), "{stdout}");
    assert!(stdout.contains("\ntokenizer.ggml.merges  array of string  [\"Ġ t\", \"h e\""), "{stdout}");
    assert!(
        stdout.contains("a context of 9,000 is longer than the 2,048 that the model was trained for"),
        "{stdout}"
    );
}

#[test]
fn the_json_has_numbers() {
    let (_folder, path) = model("q8_0");
    let (stdout, stderr, code) = output(&mut fulmen(&["inspect", &path, "--json", "--tensors", "--keys"]));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["architecture"], "qwen3");
    assert_eq!(json["parameters"], 3_411_200);
    assert_eq!(json["files"][0]["bytes"], fs::metadata(&path).unwrap().len());
    assert_eq!(json["memory"]["context"], 2048);
    assert_eq!(json["memory"]["kv_f16"], 2048 * 4 * 2 * 2 * 128 * 2);
    assert_eq!(json["keys"]["qwen3.block_count"], 4);
    assert_eq!(json["keys"]["tokenizer.ggml.tokens"].as_array().unwrap().len(), 1024);
    let types: u64 =
        json["types"].as_object().unwrap().values().map(|t| t["tensors"].as_u64().unwrap()).sum();
    assert_eq!(json["tensors"].as_array().unwrap().len() as u64, types);
    let devices = json["devices"].as_array().unwrap();
    let cpu = devices.iter().find(|device| device["device"] == "cpu").unwrap();
    assert_eq!((&cpu["fits_f16"], &cpu["runs_graphs"]), (&true.into(), &true.into()));
    assert_eq!(cpu["longest_context_f16"], 2048);
}

/// Six of seven layers have a window of 40 positions: with a chunk of 512 rows, six pages instead of 16.
#[test]
fn layers_with_a_window_take_less_in_an_engine() {
    let (_folder, path) = model_of("tiny-gemma3", "q8_0");
    let (stdout, stderr, code) = output(&mut fulmen(&["inspect", &path, "--context", "2048"]));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let told = "in an engine (fulmen serve), layers with the window of 40 tokens keep 6 of 16 KV pages\n";
    assert!(stdout.contains(told) && stdout.contains("\nKV cache in an engine "), "{stdout}");
    let json = |path: &str, context: &str| -> Value {
        let (stdout, ..) = output(&mut fulmen(&["inspect", path, "--context", context, "--json"]));
        serde_json::from_str(&stdout).unwrap()
    };
    let page = 128 * 2 * 2 * 64 * 2;
    assert_eq!(json(&path, "2048")["memory"]["kv_f16"], 7 * 16 * page);
    assert_eq!(json(&path, "2048")["memory"]["kv_engine_f16"], (16 + 6 * 6) * page);
    assert_eq!(json(&path, "256")["memory"]["kv_engine_f16"], Value::Null);
    let (_folder, plain) = model("q8_0");
    assert_eq!(json(&plain, "2048")["memory"]["kv_engine_q8_0"], Value::Null);
}

#[test]
fn a_context_without_a_size_is_the_options_fault() {
    let (_folder, path) = model("q8_0");
    for context in ["18446744073709551615", "9007199254740993"] {
        let (stdout, stderr, code) = output(&mut fulmen(&["inspect", &path, "--context", context]));
        assert_eq!((stdout.as_str(), code), ("", Some(2)), "{stderr}");
        assert!(stderr.starts_with(&format!("error: --context {context} is too large: ")), "{stderr}");
    }
    // The largest that has a size: whole pages of the KV cache.
    let largest = (u64::MAX / (4 * 2 * 2 * 128 * 2) / 128 * 128).to_string();
    let (stdout, stderr, code) = output(&mut fulmen(&["inspect", &path, "--context", &largest]));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    assert!(stdout.lines().any(|line| line.starts_with("cpu ") && line.ends_with(" no")), "{stdout}");
}

#[test]
fn merges_without_a_token_are_noted() {
    let (folder, path) = model("q8_0");
    let file = GgufFile::open(&path).unwrap();
    let mut metadata = file.metadata().clone();
    let merges = metadata.strings("tokenizer.ggml.merges").unwrap().map(str::to_owned);
    let merges: Vec<String> = merges.chain(["~ ~".to_owned(), "~~ ~".to_owned()]).collect();
    metadata.set("tokenizer.ggml.merges", Array::strings(merges));
    let other = folder.path().join("other.gguf");
    let mut writer = GgufWriter::create(&other, false, &metadata, file.tensors()).unwrap();
    for tensor in file.tensors() {
        writer.write(tensor.name(), &file.data(tensor.name()).unwrap()).unwrap();
    }
    writer.keep().unwrap();
    let other = other.display().to_string();
    let note = "                  2 merges produce a token that is not in the vocabulary; as in llama.cpp, \
                text may be dropped there";
    let (stdout, stderr, code) = output(&mut fulmen(&["inspect", &other]));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    assert!(stdout.lines().any(|line| line == note), "{stdout}");
    let (stdout, ..) = output(&mut fulmen(&["inspect", &path]));
    assert!(!stdout.contains("is not in the vocabulary"), "{stdout}");
    let (stdout, ..) = output(&mut fulmen(&["inspect", &other, "--json"]));
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&json["merges_without_token"], &json["tokenizer_error"]), (&2.into(), &Value::Null));
    // Text that they apply to is kept.
    let (stdout, stderr, code) = output(&mut fulmen(&["tokenize", &other, "a ~~~~ b", "--ids"]));
    assert_eq!(code, Some(0), "{stderr}");
    let (text, stderr, code) =
        output(fulmen(&["tokenize", &other, "--decode", stdout.trim()]).stdin(std::process::Stdio::null()));
    assert_eq!((text.trim_end(), code), ("a ~~~~ b", Some(0)), "{stderr}");
}

#[test]
fn a_file_that_is_not_a_model_is_a_one_line_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf").display().to_string();
    let said = |path: &str| {
        let (stdout, stderr, code) = output(&mut fulmen(&["inspect", path]));
        assert_eq!((stdout.as_str(), code), ("", Some(1)));
        stderr
    };
    assert!(said(&path).starts_with(&format!("error: {path}: cannot open it: No such file")));
    fs::write(&path, b"hello there").unwrap();
    let expected = "is not a GGUF file: it starts with \"hell\", not \"GGUF\"";
    assert_eq!(said(&path), format!("error: {path}: {expected}\n"));
}
