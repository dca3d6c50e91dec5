//! `fulmen run`, `fulmen chat` and `fulmen bench model`, run as users run them.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

#[cfg(unix)]
use common::terminal::Terminal;
use common::{fulmen, output, set_context};
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

/// The command fails with these words.
fn fails(args: &[&str], words: &[&str]) {
    ends(args, 1, words);
}

/// The command refuses the value of an argument with these words.
fn misused(args: &[&str], words: &[&str]) {
    ends(args, 2, words);
}

fn ends(args: &[&str], expected: i32, words: &[&str]) {
    let (stdout, stderr, code) = piped(args, b"");
    assert_eq!((stdout.as_str(), code), ("", Some(expected)), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is not in {stderr}");
    }
}

#[test]
fn a_gpu_answers_through_wgpu() {
    let (_folder, path) = model();
    let (stdout, stderr, code) =
        piped(&["run", &path, "--device", "wgpu", "-n", "3", "--temperature", "0", "Hi"], b"");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(!stdout.is_empty() && stderr.contains("answer 3 tokens"), "{stdout} {stderr}");
}

#[test]
fn an_answer_comes_from_an_argument_or_from_a_pipe() {
    let (_folder, path) = model();
    let args = ["run", &path, "--device", "cpu", "-n", "12", "--seed", "7"];
    let (stdout, stderr, code) = piped(&[&args[..], &["Hello there"]].concat(), b"");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.len() > 5);
    for word in [
        "load ",
        "prompt ",
        "answer 12 tokens",
        "tok/s",
        " the memory-bandwidth bound",
        "weights ",
        "KV cache ",
    ] {
        assert!(stderr.contains(word), "{word:?} is not in {stderr}");
    }
    assert!(
        !stderr.contains('\x1b') && !stdout.contains('\x1b'),
        "a pipe gets no colors and no bar: {stderr:?}"
    );
    assert_eq!(stderr.trim().lines().count(), 1, "{stderr}");
    // The same from a pipe, the same seed; nothing but the answer.
    let (again, stderr, code) = piped(&[&args[..], &["--quiet"]].concat(), b"Hello there\n");
    assert_eq!((again, stderr.as_str(), code), (stdout.clone(), "", Some(0)));
    // And as an option.
    let (again, ..) = piped(&[&args[..], &["--quiet", "-p", "Hello there"]].concat(), b"");
    assert_eq!(again, stdout);
}

#[test]
fn json_has_the_answer_its_tokens_and_its_times() {
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
    let number = |name: &str| raw[name].as_f64().unwrap_or_else(|| panic!("{name} is no number in {raw}"));
    for name in ["load_seconds", "prefill_seconds", "decode_seconds"] {
        assert!(number(name) > 0.0 && number(name) < 3600.0, "{name}: {raw}");
    }
    // A rate is what was counted by its time; the first token is that of the prefill.
    let prompt = raw["prompt_tokens"].as_array().unwrap().len() as f64;
    for (rate, tokens, seconds) in [
        ("prefill_tokens_per_second", prompt, "prefill_seconds"),
        ("decode_tokens_per_second", 9.0, "decode_seconds"),
    ] {
        let expected = tokens / number(seconds);
        assert!((number(rate) / expected - 1.0).abs() < 1e-6, "{rate}, not {expected}: {raw}");
    }
    // The chat template adds control tokens around the prompt.
    let chat = run(&["--system", "Be brief."]);
    assert!(
        chat["prompt_tokens"].as_array().unwrap().len() > raw["prompt_tokens"].as_array().unwrap().len() + 5
    );
    let text = raw["text"].as_str().unwrap();
    let stop: String = text.chars().skip(3).take(3).collect();
    let stopped = run(&["--raw", "--stop", &stop]);
    assert_eq!((stopped["reason"].as_str(), stopped["stop"].as_str()), (Some("stop"), Some(&stop[..])));
    assert_eq!(stopped["text"].as_str().unwrap(), &text[..text.find(&stop).unwrap()]);
    let short = run(&["--raw", "--context", "6"]);
    assert_eq!(short["reason"], "context_full");
}

/// The prompt that a model is given, as text.
fn prompt_of(args: &[&str], input: &[u8]) -> String {
    let (stdout, stderr, code) = piped(&[&["run"], args, &["--json", "--raw", "-n", "1"]].concat(), input);
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["model"], args[0]);
    let ids: Vec<String> =
        json["prompt_tokens"].as_array().unwrap().iter().map(|id| id.to_string()).collect();
    piped(&["tokenize", args[0], "--decode", &ids.join(" ")], b"").0
}

#[test]
fn files_and_piped_input_are_added_to_the_prompt() {
    let (folder, path) = model();
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(at("a.txt"), "from a\n").unwrap();
    fs::write(at("b.txt"), "from b\nto the end").unwrap();
    fs::write(at("empty.txt"), "").unwrap();
    let (a, b, empty) = (at("a.txt"), at("b.txt"), at("empty.txt"));
    let cpu = ["--device", "cpu"];
    let prompt = |args: &[&str], input: &str| {
        prompt_of(&[&[path.as_str()], args, &cpu[..]].concat(), input.as_bytes())
    };
    assert_eq!(prompt(&["Sum up:"], "the text\n"), "Sum up:\n\nthe text");
    assert_eq!(prompt(&["Sum up:"], ""), "Sum up:");
    assert_eq!(prompt(&[], "the text\n"), "the text");
    assert_eq!(
        prompt(&["Sum up:", "-f", &a, "--file", &b], "piped"),
        "Sum up:\n\nfrom a\n\nfrom b\nto the end\n\npiped"
    );
    assert_eq!(prompt(&["-f", "-", "-f", &a, "-f", &empty], "piped"), "piped\n\nfrom a");
    fails(&["run", &path, "Hi", "-f", &at("none.txt")], &["none.txt", "No such file"]);
    fails(&["run", &path, "Hi", "-f", &folder.path().display().to_string()], &["directory"]);
    fs::write(at("latin.txt"), b"caf\xe9").unwrap();
    fails(
        &["run", &path, "Hi", "-f", &at("latin.txt")],
        &["latin.txt is not UTF-8: the first bad byte is at offset 3"],
    );
    misused(&["run", &path, "-f", "-", "-f", "-"], &["only once"]);
}

#[test]
fn a_long_prompt_gets_a_longer_context_unless_one_is_given() {
    let (folder, path) = model();
    assert_eq!(output(&mut fulmen(&["synth", "tiny-qwen3", &path, "--layers", "1", "--force"])).2, Some(0));
    set_context(&path, 16384);
    let text = folder.path().join("long.txt").display().to_string();
    fs::write(&text, "a".repeat(5000)).unwrap();
    let args = ["run", &path, "-f", &text, "-n", "3", "--device", "cpu", "--raw", "--json"];
    let (stdout, stderr, code) = piped(&args, b"");
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert!(json["prompt_tokens"].as_array().unwrap().len() > 4096 && json["reason"] == "max_tokens");
    let (_, stderr, code) = piped(&[&args[..], &["--context", "4096"]].concat(), b"");
    assert!(code == Some(1) && stderr.contains("does not fit into the context of 4096"), "{stderr}");
    fs::write(&text, "a".repeat(17_000)).unwrap();
    let (_, stderr, code) = piped(&args, b"");
    assert!(code == Some(1) && stderr.contains("does not fit into the context of 16384"), "{stderr}");
}

/// A device that has nothing to say does not keep a prompt waiting; a pipe that stays open is explained.
#[cfg(unix)]
#[test]
fn standard_input_that_does_not_end_is_explained() {
    let (_folder, path) = model();
    let args = ["run", &path, "Hi", "-n", "1", "--device", "cpu", "--quiet"];
    let zero = fs::File::open("/dev/zero").unwrap();
    let (_, stderr, code) = output(fulmen(&args).stdin(zero));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let mut child = start(&args);
    let open = child.stdin.take();
    let mut hint = [0; 48];
    child.stderr.as_mut().unwrap().read_exact(&mut hint).unwrap();
    assert!(hint.starts_with(b"waiting for the end of standard input"));
    drop(open);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
}

#[test]
fn minus_one_token_is_no_limit() {
    let (_folder, path) = model();
    let run = |tokens: &str| {
        piped(
            &["run", &path, "Hi", "-n", tokens, "--device", "cpu", "--context", "32", "--json", "--raw"],
            b"",
        )
    };
    let (stdout, stderr, code) = run("-1");
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert!(json["reason"] == "context_full" || json["reason"] == "end", "{json}");
    let (_, stderr, code) = run("-2");
    assert!(code == Some(2) && stderr.contains("-2 is not in -1.."), "{stderr}");
}

/// A model that needs more memory than there is: the message has the options that help.
#[test]
fn memory_that_is_short_is_explained_by_options() {
    let (_folder, path) = model();
    set_context(&path, 1 << 28);
    let args = ["run", &path, "Hi", "--device", "cpu", "--context", "268435456"];
    let (stdout, stderr, code) = piped(&args, b"");
    assert_eq!((stdout.as_str(), code), ("", Some(1)), "{stderr}");
    for words in ["not enough memory", "available", "--context N", "--kv q8_0"] {
        assert!(stderr.contains(words), "{words:?} is not in {stderr}");
    }
    assert!(!stderr.contains("--gpu-layers"), "{stderr}");
}

/// Names that options had before still work.
#[test]
fn old_option_names_are_aliases() {
    let (_folder, path) = model();
    let answer = |options: &[&str]| {
        let args = [&["run", &path, "Hi", "-n", "3", "--device", "cpu", "--quiet"][..], options].concat();
        let (stdout, stderr, code) = piped(&args, b"");
        assert_eq!((stderr.as_str(), code), ("", Some(0)), "{options:?}");
        stdout
    };
    let new = ["--context", "64", "--temperature", "0", "--think", "false"];
    assert_eq!(answer(&["--ctx", "64", "--temp", "0", "--thinking", "false"]), answer(&new));
    let bench = ["bench", "model", &path, "--device", "cpu", "--pp", "4", "--tg", "2", "-r", "1"];
    let (stdout, stderr, code) = piped(&bench, b"");
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    assert!(stdout.contains("pp4") && stdout.contains("tg2"), "{stdout}");
}

#[test]
fn one_token_is_singular() {
    let (_folder, path) = model();
    let (_, stderr, code) = piped(&["run", &path, "Hi", "-n", "1", "--device", "cpu", "--raw"], b"");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("answer 1 token ·"), "{stderr}");
}

#[test]
fn mistakes_are_explained() {
    let (folder, path) = model();
    let at = |name: &str| folder.path().join(name).display().to_string();
    misused(&["run", &path], &["no prompt"]);
    fails(&["run", &at("missing.gguf"), "Hi"], &["missing.gguf", "No such file"]);
    fails(
        &["run", &folder.path().display().to_string(), "Hi"],
        &["is a directory, not a file", "config.json"],
    );
    fs::write(at("text.gguf"), "this is not a model, it is a text that somebody renamed").unwrap();
    fails(&["run", &at("text.gguf"), "Hi"], &["is not a GGUF file"]);
    let bytes = fs::read(&path).unwrap();
    fs::write(at("cut.gguf"), &bytes[..bytes.len() - 1]).unwrap();
    fails(&["run", &at("cut.gguf"), "Hi"], &["cut.gguf", "are outside the file"]);
    // Another architecture name of the same length.
    let mut other = bytes.clone();
    let place = other.windows(5).position(|window| window == b"qwen3").unwrap();
    other[place..place + 5].copy_from_slice(b"falco");
    fs::write(at("falco.gguf"), &other).unwrap();
    fails(
        &["run", &at("falco.gguf"), "Hi"],
        &["architecture \"falco\" is not supported (supported: llama, qwen2, qwen3, "],
    );
    misused(
        &["run", &path, "Hi", "--context", "100000"],
        &["a context of 100000 tokens exceeds the model's limit of 2048"],
    );
    misused(&["run", &path, "Hi", "--temperature", "nan"], &["the temperature must be"]);
    misused(&["run", &path, "Hi", "--temperature", "-1"], &["the temperature must be", "-1"]);
    misused(&["run", &path, "Hi", "--repeat-penalty", "0"], &["repetition penalty"]);
    misused(&["run", &path, "Hi", "--stop", ""], &["a stop string must be nonempty"]);
    fails(&["run", &path, &"word ".repeat(3000)], &["does not fit into the context of 2048"]);
    let short =
        ["run", &path, "--context", "16", "A prompt that has more than sixteen tokens, which is not many."];
    fails(
        &short,
        &["does not fit into the context of 16", "--context makes it larger, up to the model's 2048"],
    );
    fails(&[&short[..], &["--json"]].concat(), &["up to the model's 2048"]);
    misused(&["run", &path, "Hi", "--device", "wgpu:99"], &["wgpu:99 does not exist"]);
    misused(&["run", &path, "Hi", "--template", "nonsense"], &["nonsense", "chatml"]);
    let (_, stderr, code) = piped(&["run", &path], &[0xff, 0xfe, 0x41]);
    assert_eq!(
        (stderr.as_str(), code),
        ("error: standard input is not UTF-8: the first bad byte is at offset 0\n", Some(1))
    );
    let (_, stderr, code) = piped(&["run", &path, "Hi", "--kv", "q4_0"], b"");
    assert!(stderr.contains("f16, q8_0 or f32") && code == Some(2), "{stderr}");
    // And afterwards it works.
    let (_, stderr, code) = piped(&["run", &path, "Hi", "-n", "2", "--device", "cpu"], b"");
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let (_folder, path) = model();
    let mut child = start(&["run", &path, "Hi", "--device", "cpu"]);
    drop(child.stdin.take());
    let mut first = [0; 4];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""));
    // Nor in a chat.
    let mut child = start(&["chat", &path, "--device", "cpu", "--temperature", "3"]);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"Hi\nHi\nHi\n").unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_profile_shows_the_ops_and_the_other_time() {
    let (_folder, path) = model();
    let (_, stderr, code) = piped(&["run", &path, "Hi", "-n", "4", "--profile", "--device", "cpu"], b"");
    assert_eq!(code, Some(0), "{stderr}");
    for word in ["MulMat 1024x256 Q8_0", "GateUp 512x256 Q8_0", "Attention", "Sample", "[other]", "share"] {
        assert!(stderr.contains(word), "{word:?} is not in {stderr}");
    }
}

#[test]
fn a_conversation_on_standard_input() {
    let (_folder, path) = model();
    let args = ["chat", &path, "--device", "cpu", "-n", "5", "--seed", "1"];
    let (stdout, stderr, code) =
        piped(&args, b"Hello\n\n/help\n/nonsense\nAnd then?\n/stats\n/clear\nHello\n/exit\nnever");
    assert_eq!(code, Some(0), "{stderr}");
    for word in ["/clear", "unknown command /nonsense", "answer 5 tokens"] {
        assert!(stderr.contains(word), "{word:?} is not in {stderr}");
    }
    assert!(stdout.len() > 10, "{stdout:?}");
    let (_, stderr, _) =
        piped(&["chat", &path, "--device", "cpu", "--context", "8"], b"Hello there, how are you today?\n");
    assert!(stderr.contains("/clear starts a new conversation"), "{stderr}");
}

#[test]
fn a_bench_has_prefill_decode_and_the_memory_bound() {
    let (_folder, path) = model();
    let args = [
        "bench",
        "model",
        &path,
        "--device",
        "cpu",
        "--prefill",
        "16",
        "--decode",
        "4",
        "--depth",
        "0,32",
        "-r",
        "2",
    ];
    let (stdout, stderr, code) = piped(&args, b"");
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    for word in
        ["pp16", "tg4", "tok/s", "of bound", "memory-bandwidth bound", "qwen3, 4 layers", "memory bandwidth "]
    {
        assert!(stdout.contains(word), "{word:?} is not in {stdout}");
    }
    let (stdout, ..) = piped(&[&args[..], &["--json", "--batch", "3", "--ahead", "2"]].concat(), b"");
    let list: Value = serde_json::from_str(&stdout).unwrap();
    let tests = list["tests"].as_array().unwrap();
    assert_eq!(tests.len(), 4);
    assert!(tests.iter().all(|test| test["tokens_per_second"].as_f64().unwrap() > 0.0));
    assert!(tests[1]["share_of_bound"].as_f64().unwrap() > 0.0 && tests[1]["batch"] == 3);
    fails(&["bench", "model", "missing.gguf"], &["missing.gguf"]);
}

/// Ctrl-C, as a terminal sends it.
#[cfg(unix)]
#[test]
fn ctrl_c_stops_the_answer_and_says_so() {
    let (_folder, path) = model();
    let mut child =
        start(&["run", &path, "Hi", "--device", "cpu", "--temperature", "3", "--stop", "never never"]);
    drop(child.stdin.take());
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 1];
    stdout.read_exact(&mut first).unwrap();
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let start = Instant::now();
    // The first byte may have been a part of a character.
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    // A fast machine may have filled the context before the signal came.
    let full = stderr.contains("context of 2048 tokens is full") || output.status.code() == Some(0);
    assert!(full || (output.status.code() == Some(130) && stderr.contains("stopped by Ctrl-C")), "{stderr}");
    assert!(start.elapsed() < Duration::from_secs(20));
    // In a chat it stops the answer and not the program.
    let mut child = start_chat(&path);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"Hi\n").unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    stdin.write_all(b"/help\n/exit\n").unwrap();
    drop(stdin);
    stdout.read_to_end(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("start a new conversation"), "it went on: {stderr}");
}

#[cfg(unix)]
fn start_chat(path: &str) -> Child {
    start(&["chat", path, "--device", "cpu", "--temperature", "3"])
}

#[test]
fn a_text_is_scored() {
    let (folder, path) = model();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let text = at("text.txt");
    let line = "The quick brown fox jumps over the lazy dog. Ünïcödé, 123 and 日本語.\n";
    fs::write(&text, line.repeat(20)).unwrap();
    let args = ["bench", "perplexity", &path, &text, "--device", "cpu", "--context", "64"];
    let (stdout, stderr, code) = piped(&args, b"");
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    for word in ["perplexity ", "mean -ln p ", "tokens scored in windows of 64;", "tok/s", "qwen3, 4 layers"]
    {
        assert!(stdout.contains(word), "{word:?} is not in {stdout}");
    }
    let json = |more: &[&str]| -> Value {
        let (stdout, stderr, code) = piped(&[&args[..], &["--json"], more].concat(), b"");
        assert_eq!((stderr.as_str(), code), ("", Some(0)));
        serde_json::from_str(&stdout).unwrap()
    };
    let (half, all) = (json(&[]), json(&["--stride", "16"]));
    let number = |value: &Value, key: &str| value[key].as_f64().unwrap();
    assert!((number(&half, "mean_nll").exp() / number(&half, "perplexity") - 1.0).abs() < 1e-12);
    // Random weights predict nothing: the mean is about the logarithm of the vocabulary size, or worse.
    assert!((3.0..30.0).contains(&number(&half, "mean_nll")), "{half}");
    assert!(number(&half, "tokens_scored") < 0.5 * number(&half, "tokens"));
    assert_eq!(number(&all, "tokens_scored"), number(&all, "tokens") - 1.0);
    assert!(half["stride"].is_null() && all["stride"] == 16 && half["context"] == 64);
    // A control token is one token with --special, and several without it.
    fs::write(at("marks.txt"), "one<|im_end|>two ".repeat(50)).unwrap();
    let tokens = |more: &[&str]| -> f64 {
        let marks = at("marks.txt");
        let args = ["bench", "perplexity", &path, &marks, "--device", "cpu", "--json"];
        let (stdout, stderr, code) = piped(&[&args[..], more].concat(), b"");
        assert_eq!((stderr.as_str(), code), ("", Some(0)));
        number(&serde_json::from_str(&stdout).unwrap(), "tokens")
    };
    assert!(
        tokens(&[]) > tokens(&["--special"]) && tokens(&["--special"]) >= tokens(&["--special", "--bare"])
    );
    // Standard input works as well.
    let (stdout, _, code) =
        piped(&["bench", "perplexity", &path, "-", "--device", "cpu"], b"Some words, no more.");
    assert!(code == Some(0) && stdout.contains("windows of 512"), "{stdout}");
    fails(&["bench", "perplexity", &path, &at("no.txt")], &["no.txt", "No such file"]);
    fs::write(at("latin.txt"), b"caf\xe9").unwrap();
    fails(
        &["bench", "perplexity", &path, &at("latin.txt")],
        &["is not UTF-8: the first bad byte is at offset 3"],
    );
    fs::write(at("empty.txt"), b"").unwrap();
    misused(
        &["bench", "perplexity", &path, &at("empty.txt")],
        &["number of tokens in the text must be 3 or more"],
    );
    misused(&[&args[..], &["--stride", "64"]].concat(), &["the perplexity stride must be 1 to 63, is 64"]);
}

/// With little address space there is an answer or an error about memory, and never a panic.
#[cfg(target_os = "linux")]
#[test]
fn little_memory_is_an_error() {
    let (_folder, path) = model();
    let limited = |kib: u32, more: &str| {
        let binary = env!("CARGO_BIN_EXE_fulmen");
        let line =
            format!("ulimit -v {kib}; exec '{binary}' run '{path}' Hi -n 3 --device cpu --quiet {more}");
        output(std::process::Command::new("sh").args(["-c", &line]).env_remove("RUST_BACKTRACE"))
    };
    // 96 MiB of KV cache in 160 MiB of address space.
    let mut seen = Vec::new();
    for kib in (60_000..400_000).step_by(20_000) {
        let (_, stderr, code) = limited(kib, "--context 2048 --kv f32");
        assert!(!stderr.contains("panicked"), "{kib}: {stderr}");
        seen.push((code, stderr));
    }
    assert!(seen.iter().any(|(code, _)| *code == Some(0)), "{seen:?}");
    assert!(seen.iter().any(|(code, text)| *code == Some(1) && text.contains("memory")), "{seen:?}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_on_a_terminal_stops_the_answer_and_not_the_program() {
    // An answer that takes long enough to be stopped: the most likely tokens of these weights repeat forever.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slow.gguf").display().to_string();
    let synth = ["synth", "tiny-qwen3", &path, "--type", "q8_0", "--layers", "64"];
    assert_eq!(output(&mut fulmen(&synth)).2, Some(0));
    let mut terminal =
        Terminal::start(&mut fulmen(&["chat", &path, "--device", "cpu", "--temperature", "0"]));
    let prompts = |count: usize| move |seen: &str| seen.matches("> \r").count() == count;
    terminal.wait_until("the first prompt", prompts(1));
    terminal.send(b"Hi\r");
    let begun = terminal.seen().len();
    terminal.wait_until("an answer", |seen| seen.len() > begun + 60);
    terminal.send(b"\x03");
    terminal.wait_until("the second prompt", |seen| seen.contains("(stopped)") && prompts(2)(seen));
    terminal.send(b"\x03");
    terminal.wait_until("the third prompt", |seen| seen.contains("(Ctrl-D exits)") && prompts(3)(seen));
    terminal.send(b"\x04");
    let (seen, code) = terminal.finish();
    assert_eq!(code, Some(0), "{seen}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_the_prefill_of_a_long_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slow.gguf").display().to_string();
    assert_eq!(output(&mut fulmen(&["synth", "tiny-qwen3", &path, "--layers", "64"])).2, Some(0));
    set_context(&path, 32768);
    let text = folder.path().join("long.txt").display().to_string();
    fs::write(&text, "a".repeat(20_000)).unwrap();
    let args = ["run", &path, "Sum up:", "-f", &text, "--device", "cpu"];
    let mut terminal = Terminal::start(&mut fulmen(&args));
    terminal.wait_for("reading the prompt of 20");
    let pressed = Instant::now();
    terminal.send(b"\x03");
    let (seen, code) = terminal.finish();
    assert!(pressed.elapsed() < Duration::from_secs(20));
    assert_eq!(code, Some(130), "{seen:?}");
    // No token was drawn, so there is no speed.
    let line = &seen[seen.rfind("load ").unwrap()..];
    assert!(line.contains("stopped by") && !line.contains("tok/s"), "{line:?}");
}
