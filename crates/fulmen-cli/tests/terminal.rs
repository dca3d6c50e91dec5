//! What reaches a terminal, and what reaches a pipe: text from models, templates and files is escaped on the
//! one and exact in the other.
#![cfg(unix)]

mod common;

use std::fs;
use std::path::Path;
use std::process::Stdio;

use common::fulmen;
use common::terminal::Terminal;
use serde_json::{Value, json};

/// Sets the title, clears the screen, and colors what follows, with 7-bit and 8-bit sequences.
const HOSTILE: &str = "\x1b]0;title\x07 \x1b[2J\x1b[31mred \u{9b}32m \x08";
const ESCAPED: &str = r"\x1b]0;title\x07 \x1b[2J\x1b[31mred \u{9b}32m \x08";

/// What a command shows on a terminal, with its line breaks as they were written.
fn shown(args: &[&str]) -> (String, Option<i32>) {
    let (seen, code) = Terminal::start(&mut fulmen(args)).finish();
    (seen.replace("\r\n", "\n"), code)
}

/// What a command writes into pipes.
fn piped(args: &[&str]) -> (Vec<u8>, Vec<u8>, Option<i32>) {
    let output = fulmen(args).stdin(Stdio::null()).output().unwrap();
    (output.stdout, output.stderr, output.status.code())
}

/// A file in a folder.
fn file(folder: &Path, name: &str, contents: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, contents).unwrap();
    path.display().to_string()
}

/// A tokenizer of single bytes: token `n` is byte `n`.
fn bytes_tokenizer(folder: &Path) -> String {
    let printable = |byte: u32| (33..=126).contains(&byte) || (161..=172).contains(&byte) || byte > 173;
    let mut others = 256..;
    let mut vocab = serde_json::Map::new();
    for byte in 0..256 {
        let code = if printable(byte) { byte } else { others.next().unwrap() };
        vocab.insert(char::from_u32(code).unwrap().to_string(), Value::from(byte));
    }
    let tokenizer = json!({
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "use_regex": true },
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    file(folder, "tokenizer.json", &tokenizer.to_string())
}

#[test]
fn decoded_tokens_are_exact_in_a_pipe_and_escaped_on_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let model = bytes_tokenizer(folder.path());
    let ids: Vec<String> = HOSTILE.bytes().map(|byte| byte.to_string()).collect();
    let args = ["tokenize", &model, "--decode", &ids.join(" ")];
    assert_eq!(piped(&args), (HOSTILE.as_bytes().to_vec(), Vec::new(), Some(0)));
    assert_eq!(shown(&args), (format!("{ESCAPED}\n"), Some(0)));
    // The table of tokens quotes them.
    let (seen, _) = shown(&["tokenize", &model, HOSTILE]);
    assert!(!seen.contains('\x1b') && !seen.contains('\u{9b}'), "{seen:?}");
    let (seen, _) = shown(&["tokenize", &model, "--json", HOSTILE]);
    assert!(!seen.contains('\x1b') && !seen.contains('\u{9b}'), "{seen:?}");
}

#[test]
fn templates_are_exact_in_a_pipe_and_escaped_on_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let model = bytes_tokenizer(folder.path());
    let template = file(folder.path(), "chat.jinja", &format!("{HOSTILE}{{{{ messages[0].content }}}}\n"));
    let chat = r#"[{"role": "user", "content": "\u001b[1m"}]"#;
    let args = ["tokenize", &model, "--chat", "--text-only", "--template", &template, chat];
    let (stdout, stderr, code) = piped(&args);
    assert_eq!((stderr, code), (Vec::new(), Some(0)));
    let text = String::from_utf8(stdout).unwrap();
    assert!(text.starts_with(HOSTILE) && text.contains("\x1b[1m"), "{text:?}");
    let (seen, _) = shown(&args);
    assert!(seen.starts_with(ESCAPED) && seen.contains(r"\x1b[1m") && !seen.contains('\x1b'), "{seen:?}");
    assert_eq!(seen, format!("{}\n", text.replace(HOSTILE, ESCAPED).replace('\x1b', r"\x1b")));
}

#[test]
fn errors_that_quote_a_file_are_escaped_on_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let model = bytes_tokenizer(folder.path());
    let raising = format!("{{{{ raise_exception('{HOSTILE}') }}}}");
    let template = file(folder.path(), "raise.jinja", &raising);
    let args = ["tokenize", &model, "--chat", "--template", &template, "[]"];
    let (_, stderr, code) = piped(&args);
    assert!(code == Some(1) && String::from_utf8(stderr).unwrap().contains(HOSTILE));
    let (seen, code) = shown(&args);
    assert!(code == Some(1) && seen.contains(ESCAPED), "{seen:?}");
    // Our own colors stay, and nothing else.
    assert!(!seen.replace("\x1b[1m", "").replace("\x1b[31m", "").replace("\x1b[0m", "").contains('\x1b'));
    let name = format!("{}/{HOSTILE}.gguf", folder.path().display());
    let (seen, code) = shown(&["run", &name, "Hi"]);
    assert!(code == Some(1) && seen.contains(ESCAPED), "{seen:?}");
}

#[test]
fn metadata_is_escaped_on_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf").display().to_string();
    assert_eq!(piped(&["synth", "tiny-qwen3", &path]).2, Some(0));
    // The model's name, by one of the same length.
    let mut bytes = fs::read(&path).unwrap();
    let key = bytes.windows(12).position(|window| window == b"general.name").unwrap();
    let len = u64::from_le_bytes(bytes[key + 16..key + 24].try_into().unwrap()) as usize;
    let name: Vec<u8> = b"\x1b[2J".iter().copied().cycle().take(len).collect();
    bytes[key + 24..key + 24 + len].copy_from_slice(&name);
    fs::write(&path, bytes).unwrap();
    for args in
        [&["inspect"][..], &["inspect", "--keys"], &["inspect", "--json"], &["show"], &["show", "--json"]]
    {
        let (seen, code) = shown(&[args, &[&path]].concat());
        assert_eq!(code, Some(0), "{seen}");
        assert!(!seen.contains("\x1b[2J"), "{seen:?}");
        assert!(seen.contains(r"\x1b[2J") || seen.contains(r"\u001b[2J"), "{seen:?}");
    }
}

#[test]
fn tensor_names_are_escaped_on_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf").display().to_string();
    assert_eq!(piped(&["synth", "tiny-qwen3", &path]).2, Some(0));
    // The name of a tensor, by one of the same length. Colors would pass in a text of our own.
    let mut bytes = fs::read(&path).unwrap();
    let name = b"output_norm.weight";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
    let hostile: Vec<u8> = b"\x1b[31m".iter().copied().cycle().take(name.len()).collect();
    bytes[at..at + name.len()].copy_from_slice(&hostile);
    fs::write(&path, bytes).unwrap();
    let (seen, code) = shown(&["quantize", &path, "--type", "q4_0", "--dry-run"]);
    assert_eq!(code, Some(0), "{seen}");
    assert!(seen.contains(r"\x1b[31m") && !seen.contains('\x1b'), "{seen:?}");
}

#[test]
fn a_text_that_is_typed_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let model = bytes_tokenizer(folder.path());
    let mut terminal = Terminal::start(&mut fulmen(&["tokenize", &model, "--ids"]));
    terminal.wait_for("a line with Ctrl-D alone ends it");
    terminal.send(b"ab\n\x04");
    let (seen, code) = terminal.finish();
    assert!(code == Some(0) && seen.contains("97 98 10"), "{seen:?}");
}

/// Random weights draw control characters, too.
#[test]
fn generated_text_is_exact_in_a_pipe_and_escaped_on_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf").display().to_string();
    assert_eq!(piped(&["synth", "tiny-qwen3", &path, "--type", "q8_0"]).2, Some(0));
    let is_control = |c: char| c.is_control() && c != '\n' && c != '\t';
    let options = ["-n", "200", "--temperature", "4", "--top-k", "0", "--top-p", "1", "--min-p", "0"];
    let mut controls = 0;
    for seed in ["1", "2", "3", "4"] {
        let args =
            [&["run", &path, "Hi", "--quiet", "--device", "cpu", "--seed", seed][..], &options].concat();
        let (stdout, stderr, code) = piped(&args);
        assert_eq!((stderr, code), (Vec::new(), Some(0)));
        let json: Value = serde_json::from_slice(&piped(&[&args[..], &["--json"]].concat()).0).unwrap();
        let text = json["text"].as_str().unwrap();
        assert_eq!(String::from_utf8(stdout).unwrap(), text, "a pipe gets the text and nothing else");
        controls += text.chars().filter(|&c| is_control(c)).count();
        let (seen, code) = shown(&args);
        assert_eq!(code, Some(0), "{seen}");
        // What the bar wrote is erased again before the answer starts.
        let seen = &seen[seen.rfind("\x1b[2K").map_or(0, |at| at + 4)..];
        assert!(!seen.contains(is_control), "{seen:?}");
        if !text.contains(is_control) {
            // Lines are wrapped.
            let words = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(words(seen), words(text));
        }
    }
    assert!(controls > 0, "no seed drew a control character");
}
