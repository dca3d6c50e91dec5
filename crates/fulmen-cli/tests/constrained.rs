//! `fulmen run` with `--schema`, `--grammar` and `--regex`.

mod common;

use std::fs;

use common::{fulmen, output};
use serde_json::Value;

const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "animal": {"enum": ["cat", "dog", "bird"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "friends": {"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 3}
    },
    "required": ["name", "animal", "age", "friends"],
    "additionalProperties": false
}"#;

struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        Files { folder: tempfile::tempdir().unwrap() }
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

/// The answer of the built-in model on the CPU: standard output, standard error and exit code.
fn run(args: &[&str]) -> (String, String, Option<i32>) {
    output(&mut fulmen(&[&["run", "--device", "cpu"], args, &["Once upon a time"]].concat()))
}

#[test]
fn json_of_a_schema_is_the_whole_output() {
    let files = Files::new();
    let schema = files.write("schema.json", SCHEMA);
    for (number, more) in
        [["--temperature", "0"], ["--seed", "1"], ["--seed", "2"], ["--temperature", "2"]].iter().enumerate()
    {
        let (stdout, stderr, code) = run(&[&["--schema", &schema], &more[..]].concat());
        assert_eq!(code, Some(0), "{stderr}");
        let value: Value =
            serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout:?}"));
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(keys.len(), 4, "{number}: {stdout}");
        assert!(["cat", "dog", "bird"].contains(&value["animal"].as_str().unwrap()), "{stdout}");
        assert!(value["age"].as_u64().unwrap() <= 99 && value["name"].is_string(), "{stdout}");
        assert!(value["friends"].as_array().unwrap().iter().all(Value::is_string), "{stdout}");
    }
    let (stdout, _, code) = run(&["--schema", &schema, "--json", "--seed", "3"]);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &report["reason"]), (Some(0), &Value::from("end")));
    assert!(serde_json::from_str::<Value>(report["text"].as_str().unwrap()).unwrap().is_object());
}

#[test]
fn a_pattern_and_a_grammar_are_matched_exactly() {
    let files = Files::new();
    for seed in ["1", "2", "3"] {
        let (stdout, stderr, code) = run(&["--regex", "(yes|no), [A-Z][a-z]{2,7}!", "--seed", seed]);
        assert_eq!(code, Some(0), "{stderr}");
        let name = stdout.trim_start_matches("yes, ").trim_start_matches("no, ");
        assert!(name.len() < stdout.len() && name.ends_with('!'), "{stdout:?}");
        assert!(name.chars().count() >= 4 && name.chars().next().unwrap().is_ascii_uppercase(), "{stdout:?}");
    }
    let grammar =
        files.write("list.lark", "start: \"- \" item \"\\n- \" item\nitem: \"milk\" | \"tea\" | \"bread\"");
    let (stdout, _, code) = run(&["--grammar", &grammar]);
    assert_eq!(code, Some(0));
    assert_eq!(stdout.lines().count(), 2, "{stdout:?}");
    assert!(stdout.lines().all(|line| ["- milk", "- tea", "- bread"].contains(&line)), "{stdout:?}");
}

#[test]
fn what_is_wrong_is_said_before_the_model_is_loaded() {
    let files = Files::new();
    let not_a_model = files.write("model.gguf", "this is no model");
    let fails = |args: &[&str], expected: i32, words: &[&str]| {
        let all = [&["run", "--device", "cpu", &not_a_model], args, &["Hi"]].concat();
        let (stdout, stderr, code) = output(&mut fulmen(&all));
        assert_eq!((stdout.as_str(), code), ("", Some(expected)), "{stderr}");
        for word in words {
            assert!(stderr.contains(word), "{word:?} is not in {stderr}");
        }
    };
    let broken = files.write("broken.json", "{\n \"type\": ");
    fails(&["--schema", &broken], 2, &["broken.json: the JSON schema is not JSON", "line 2"]);
    let wrong = files.write("wrong.json", r#"{"properties": {"a": {"type": "strin"}}}"#);
    fails(&["--schema", &wrong], 2, &["wrong.json", "\"/properties/a\"", "strin"]);
    let grammar = files.write("wrong.lark", "start: other");
    fails(&["--grammar", &grammar], 2, &["wrong.lark", "unknown name", "line 1, column 8"]);
    fails(&["--regex", "(a"], 2, &["--regex", "unclosed group at line 1, column 1"]);
    fails(&["--schema", "missing.json"], 1, &["cannot read missing.json"]);
    fails(&["--regex", "a", "--schema", &wrong], 2, &["cannot be used with"]);
    // With a good grammar the model is what is wrong.
    fails(&["--regex", "a"], 1, &["model.gguf"]);
}

#[test]
fn an_answer_that_is_cut_says_so() {
    let (stdout, stderr, code) = run(&["--regex", "[a-z]{200}", "-n", "5"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.len() < 200 && stderr.contains("stopped at --max-tokens"), "{stdout:?} {stderr}");
}
