//! `fulmen tokenize`, run as users run it.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

fn run(args: &[&str], stdin: &str) -> (String, String, Option<i32>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fulmen"))
        .arg("tokenize")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the fulmen binary starts");
    // A command that reads no input may have exited already.
    let _ = child.stdin.take().map(|mut pipe| pipe.write_all(stdin.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code())
}

fn good(args: &[&str], stdin: &str) -> String {
    let (stdout, stderr, code) = run(args, stdin);
    assert_eq!((stderr.as_str(), code), ("", Some(0)), "{args:?}");
    stdout
}

fn error(args: &[&str], stdin: &str) -> String {
    let (stdout, stderr, code) = run(args, stdin);
    assert_eq!((stdout.as_str(), code), ("", Some(1)), "{args:?}");
    stderr
}

/// A tokenizer.json with a few words.
fn tokenizer(folder: &Path) -> PathBuf {
    let path = folder.join("tokenizer.json");
    let tokens =
        ["h", "i", "Ġ", "hi", "Ġhi", "!", "<", "|", "e", "n", "d", ">", "Ã", "©", "u", "s", "r", ":"];
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), id.into())).collect();
    let file = serde_json::json!({
        "added_tokens": [{ "id": 18, "content": "<|end|>", "special": true }],
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "use_regex": true },
        "model": { "type": "BPE", "vocab": vocab, "merges": ["h i", "Ġ hi"] },
    });
    std::fs::write(&path, file.to_string()).unwrap();
    path
}

#[test]
fn tokens_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = tokenizer(folder.path());
    let model = path.to_str().unwrap();
    assert_eq!(good(&[model, "hi hi!"], ""), "id  text\n 3  \"hi\"\n 4  \" hi\"\n 5  \"!\"\n3 tokens\n");
    assert_eq!(good(&[model, "--ids"], "hi hi!"), "3 4 5\n");
    assert_eq!(good(&[model, "--ids", "<|end|>"], ""), "6 7 8 9 10 7 11\n");
    assert_eq!(good(&[model, "--ids", "--special", "<|end|>"], ""), "18\n");
    assert_eq!(good(&[model, "é", "--special"], "").lines().nth(1), Some("12  \"\\xc3\""));
    assert_eq!(good(&[model, "--decode", "3, 4 5 18"], ""), "hi hi!<|end|>");
    assert_eq!(good(&[model, ""], ""), "id  text\n0 tokens\n");
    assert_eq!(good(&[model, "!"], ""), "id  text\n 5  \"!\"\n1 token\n");
    let json: Value = serde_json::from_str(&good(&[model, "--json", "hi<|end|>", "--special"], "")).unwrap();
    assert_eq!(json["ids"], serde_json::json!([3, 18]));
    assert_eq!(json["tokens"][1]["special"], true);
    assert_eq!(json["tokens"][0]["text"], "hi");
}

#[test]
fn conversations_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = tokenizer(folder.path());
    let template = folder.path().join("chat.jinja");
    std::fs::write(&template, "{% for m in messages %}{{ m.role }}:{{ m.content }}<|end|>{% endfor %}")
        .unwrap();
    let (model, template) = (path.to_str().unwrap(), template.to_str().unwrap());
    let chat = r#"[{"role": "user", "content": "hi<|end|>"}]"#;
    let arguments = [model, "--chat", "--template", template, chat];
    assert_eq!(good(&[&arguments[..], &["--text-only"]].concat(), ""), "user:hi<|end|><|end|>");
    let ids = good(&[&arguments[..], &["--ids"]].concat(), "");
    assert_eq!(
        ids, "14 15 8 16 17 3 6 7 8 9 10 7 11 18\n",
        "the message's mark is text, the template's a token"
    );
    let message = error(&[model, "--chat", chat], "");
    assert!(message.ends_with("has no chat template; --template selects one\n"), "{message}");
    let message = error(&[model, "--chat", "--template", template, "{}"], "");
    assert!(message.starts_with("error: the conversation is not valid: "), "{message}");
    let (_, stderr, code) = run(&[model, "--chat", "--template", "nonsense", chat], "");
    assert!(code == Some(2) && stderr.contains("no chat template \"nonsense\""), "{stderr}");
    let (_, stderr, code) = run(&[model, "--think", "true", "hi"], "");
    assert_eq!((stderr.as_str(), code), ("error: --think needs --chat\n", Some(2)));
    std::fs::write(folder.path().join("bad.jinja"), "a\n{% if %}").unwrap();
    let bad = folder.path().join("bad.jinja");
    let message = error(&[model, "--chat", "--template", bad.to_str().unwrap(), "[]"], "");
    assert!(message.ends_with("bad.jinja: chat template, line 2: expected a value, found %}\n"), "{message}");
}

#[test]
fn mistakes_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let path = tokenizer(folder.path());
    let model = path.to_str().unwrap();
    let (_, stderr, code) = run(&[model, "--decode", "3 x"], "");
    assert_eq!((stderr.as_str(), code), ("error: \"x\" is not a token id\n", Some(2)));
    assert_eq!(
        error(&[model, "--decode", "99"], ""),
        "error: token 99 does not exist; the vocabulary has 19 tokens\n"
    );
    assert!(error(&["no-such.json", "a"], "").contains("no-such.json"));
    assert!(error(&["no-such.gguf", "a"], "").contains("no-such.gguf"));
    std::fs::write(&path, "{}").unwrap();
    assert!(error(&[model, "a"], "").contains("tokenizer.json: missing field `model`"));
}
