//! `fulmen run`, `fulmen chat` and `fulmen bench model`, tried as people try them.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::{fulmen, output};
use serde_json::Value;

/// A small model in a new folder.
fn model() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf").display().to_string();
    let (_, stderr, code) = output(&mut fulmen(&["synth", "tiny-qwen3", &path, "--type", "q8_0"]));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    (folder, path)
}

/// The command with this on its standard input.
fn piped(args: &[&str], input: &[u8]) -> (String, String, Option<i32>) {
    let mut child = start(args);
    // A command that refuses before it reads closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code())
}

fn start(args: &[&str]) -> Child {
    let mut command = fulmen(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the fulmen binary starts")
}

fn refused(args: &[&str], words: &[&str]) {
    let (stdout, stderr, code) = piped(args, b"");
    assert_eq!((stdout.as_str(), code), ("", Some(1)), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is not in {stderr}");
    }
}

#[test]
fn a_gpu_answers_through_wgpu() {
    let (_folder, path) = model();
    let (stdout, stderr, code) =
        piped(&["run", &path, "--device", "wgpu", "-n", "3", "--temp", "0", "Hi"], b"");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(!stdout.is_empty() && stderr.contains("answer 3 tokens"), "{stdout} {stderr}");
}

#[test]
fn an_answer_comes_from_an_argument_or_from_a_pipe() {
    let (_folder, path) = model();
    let args = ["run", &path, "--device", "cpu", "-n", "12", "--seed", "7"];
    let (stdout, stderr, code) = piped(&[&args[..], &["Hello there"]].concat(), b"");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.len() > 5 && stdout.ends_with('\n'));
    for word in ["load ", "prompt ", "answer 12 tokens", "tok/s", "of the memory floor", "memory "] {
        assert!(stderr.contains(word), "{word:?} is not in {stderr}");
    }
    assert!(
        !stderr.contains('\x1b') && !stdout.contains('\x1b'),
        "a pipe gets no colours and no bar: {stderr:?}"
    );
    assert_eq!(stderr.trim().lines().count(), 1, "{stderr}");
    // The same from a pipe, the same seed; nothing but the answer.
    let (again, stderr, code) = piped(&[&args[..], &["--quiet"]].concat(), b"Hello there\n");
    assert_eq!((again, stderr.as_str(), code), (stdout, "", Some(0)));
}

#[test]
fn json_tells_everything() {
    let (_folder, path) = model();
    let run = |more: &[&str]| -> Value {
        let args =
            [&["run", &path, "--device", "cpu", "--json", "--seed", "3", "-n", "10", "Hi"], more].concat();
        let (stdout, stderr, code) = piped(&args, b"");
        assert_eq!((stderr.as_str(), code), ("", Some(0)));
        serde_json::from_str(&stdout).unwrap()
    };
    let raw = run(&["--raw"]);
    assert_eq!((raw["reason"].as_str(), raw["seed"].as_u64()), (Some("max_tokens"), Some(3)));
    assert_eq!(raw["tokens"].as_array().unwrap().len(), 10);
    // The chat template puts marks around the prompt.
    let chat = run(&["--system", "Be brief."]);
    assert!(
        chat["prompt_tokens"].as_array().unwrap().len() > raw["prompt_tokens"].as_array().unwrap().len() + 5
    );
    let text = raw["text"].as_str().unwrap();
    let stop: String = text.chars().skip(3).take(3).collect();
    let stopped = run(&["--raw", "--stop", &stop]);
    assert_eq!((stopped["reason"].as_str(), stopped["stop"].as_str()), (Some("stop"), Some(&stop[..])));
    assert_eq!(stopped["text"].as_str().unwrap(), &text[..text.find(&stop).unwrap()]);
    let short = run(&["--raw", "--ctx", "6"]);
    assert_eq!(short["reason"], "context_full");
}

#[test]
fn mistakes_are_explained() {
    let (folder, path) = model();
    let at = |name: &str| folder.path().join(name).display().to_string();
    refused(&["run"], &["no model given", "GGUF", "fulmen run model.gguf"]);
    refused(&["chat"], &["no model given"]);
    refused(&["run", &path], &["no prompt"]);
    refused(&["run", &at("missing.gguf"), "Hi"], &["missing.gguf", "No such file"]);
    refused(&["run", &folder.path().display().to_string(), "Hi"], &["is a directory, not a file"]);
    fs::write(at("text.gguf"), "this is not a model, it is a text that somebody renamed").unwrap();
    refused(&["run", &at("text.gguf"), "Hi"], &["is not a GGUF file"]);
    let bytes = fs::read(&path).unwrap();
    fs::write(at("cut.gguf"), &bytes[..bytes.len() - 1]).unwrap();
    refused(&["run", &at("cut.gguf"), "Hi"], &["cut.gguf", "do not lie inside the file"]);
    // The name of the architecture, by another of the same length.
    let mut other = bytes.clone();
    let place = other.windows(5).position(|window| window == b"qwen3").unwrap();
    other[place..place + 5].copy_from_slice(b"falco");
    fs::write(at("falco.gguf"), &other).unwrap();
    refused(
        &["run", &at("falco.gguf"), "Hi"],
        &["the architecture \"falco\" is not supported; supported are llama, qwen2, qwen3"],
    );
    refused(&["run", &path, "Hi", "--ctx", "100000"], &["a context of 100000 is more than the model's 2048"]);
    refused(&["run", &path, "Hi", "--temp", "nan"], &["the temperature must be"]);
    refused(&["run", &path, "Hi", "--temp", "-1"], &["the temperature must be", "-1"]);
    refused(&["run", &path, "Hi", "--repeat-penalty", "0"], &["repetition penalty"]);
    refused(&["run", &path, "Hi", "--stop", ""], &["a stop string must be not empty"]);
    refused(&["run", &path, &"word ".repeat(3000)], &["does not fit the context of 2048"]);
    refused(&["run", &path, "Hi", "--template", "nonsense"], &["nonsense", "chatml"]);
    let (_, stderr, code) = piped(&["run", &path], &[0xff, 0xfe, 0x41]);
    assert_eq!((stderr.as_str(), code), ("error: the prompt on standard input is not UTF-8\n", Some(1)));
    let (_, stderr, code) = piped(&["run", &path, "Hi", "--kv", "q4_0"], b"");
    assert!(stderr.contains("f16, q8_0 or f32") && code == Some(2), "{stderr}");
    // And afterwards it works.
    let (_, stderr, code) = piped(&["run", &path, "Hi", "-n", "2", "--device", "cpu"], b"");
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let (_folder, path) = model();
    let mut child = start(&["run", &path, "Hi", "--device", "cpu"]);
    let mut first = [0; 4];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_profile_shows_the_ops_and_the_rest() {
    let (_folder, path) = model();
    let (_, stderr, code) = piped(&["run", &path, "Hi", "-n", "4", "--profile", "--device", "cpu"], b"");
    assert_eq!(code, Some(0), "{stderr}");
    for word in ["MulMat 1024x256 Q8_0", "GateUp 512x256 Q8_0", "Attention", "Sample", "[other]", "share"] {
        assert!(stderr.contains(word), "{word:?} is not in {stderr}");
    }
}

#[test]
fn a_conversation_by_a_pipe() {
    let (_folder, path) = model();
    let args = ["chat", &path, "--device", "cpu", "-n", "5", "--seed", "1"];
    let (stdout, stderr, code) =
        piped(&args, b"Hello\n\n/help\n/nonsense\nAnd then?\n/stats\n/clear\nHello\n/exit\nnever");
    assert_eq!(code, Some(0), "{stderr}");
    for word in ["/clear", "there is no /nonsense", "answer 5 tokens"] {
        assert!(stderr.contains(word), "{word:?} is not in {stderr}");
    }
    assert!(stdout.len() > 10, "{stdout:?}");
    let (_, stderr, _) =
        piped(&["chat", &path, "--device", "cpu", "--ctx", "8"], b"Hello there, how are you today?\n");
    assert!(stderr.contains("/clear begins anew"), "{stderr}");
}

#[test]
fn a_bench_has_prompts_answers_and_the_floor() {
    let (_folder, path) = model();
    let args =
        ["bench", "model", &path, "--device", "cpu", "--pp", "16", "--tg", "4", "--depth", "0,32", "-r", "2"];
    let (stdout, stderr, code) = piped(&args, b"");
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    for word in ["pp16", "tg4", "tok/s", "of floor", "qwen3, 4 layers", "memory "] {
        assert!(stdout.contains(word), "{word:?} is not in {stdout}");
    }
    let (stdout, ..) = piped(&[&args[..], &["--json", "--batch", "3", "--ahead", "2"]].concat(), b"");
    let list: Value = serde_json::from_str(&stdout).unwrap();
    let tests = list["tests"].as_array().unwrap();
    assert_eq!(tests.len(), 4);
    assert!(tests.iter().all(|test| test["tokens_per_second"].as_f64().unwrap() > 0.0));
    assert!(tests[1]["share_of_floor"].as_f64().unwrap() > 0.0 && tests[1]["batch"] == 3);
    refused(&["bench", "model", "missing.gguf"], &["missing.gguf"]);
}

/// Ctrl-C, as a terminal sends it.
#[cfg(unix)]
#[test]
fn ctrl_c_stops_the_answer_and_says_so() {
    let (_folder, path) = model();
    let mut child = start(&["run", &path, "Hi", "--device", "cpu", "--temp", "3", "--stop", "never never"]);
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 1];
    stdout.read_exact(&mut first).unwrap();
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let start = Instant::now();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    // A fast machine may have filled the context before the signal came.
    let full = stderr.contains("context of 2048 is full") || output.status.code() == Some(0);
    assert!(full || (output.status.code() == Some(130) && stderr.contains("stopped by Ctrl-C")), "{stderr}");
    assert!(start.elapsed() < Duration::from_secs(20));
    // In a conversation it stops the answer and not the program.
    let mut child = start_chat(&path);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"Hi\n").unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    stdin.write_all(b"/help\n/exit\n").unwrap();
    drop(stdin);
    stdout.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("begin anew"), "it went on: {stderr}");
}

#[cfg(unix)]
fn start_chat(path: &str) -> Child {
    start(&["chat", path, "--device", "cpu", "--temp", "3"])
}
