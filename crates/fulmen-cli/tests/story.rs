//! The built-in model.

mod common;

use std::io::Write;
use std::process::Stdio;

use common::{fulmen, output};

const PROMPT: &str = include_str!("../../fulmen/tests/story/prompt.txt");
const GOLDEN: &str = include_str!("../../fulmen/tests/story/golden.txt");

fn run(args: &[&str]) -> (String, String, Option<i32>) {
    output(fulmen(args).stdin(Stdio::null()))
}

fn piped(args: &[&str], input: &str) -> (String, String, Option<i32>) {
    let mut command = fulmen(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code())
}

#[test]
fn the_first_command_tells_a_story_on_the_cpu_and_on_wgpu() {
    for device in ["cpu", "wgpu"] {
        let (stdout, stderr, code) =
            run(&["run", PROMPT, "--temperature", "0", "-n", "64", "--device", device]);
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!(stdout, format!("{PROMPT}{GOLDEN}"), "{device}");
        for part in ["load ", "prompt ", "answer 64 tokens", "tok/s", "weights 4 MiB", device] {
            assert!(stderr.contains(part), "{part} in {stderr}");
        }
    }
}

#[test]
fn a_story_is_the_same_with_some_layers_on_the_gpu() {
    let tell = |device: &str, more: &[&str]| {
        let args = ["run", PROMPT, "--temperature", "0", "-n", "24", "--context", "256", "--device", device];
        run(&[&args[..], more].concat())
    };
    let (expected, ..) = tell("cpu", &[]);
    // There are 4 MiB of weights, and a KV cache.
    let chosen = |part: &'static str, stderr: &str| assert!(stderr.contains(part), "{part} in {stderr}");
    let (stdout, stderr, code) = tell("wgpu", &["--gpu-layers", "auto", "--gpu-memory", "6MB"]);
    assert_eq!((code, &stdout), (Some(0), &expected), "{stderr}");
    chosen("; the others are on the CPU\n", &stderr);
    chosen(" layers) and cpu", &stderr);
    let (stdout, stderr, code) = tell("wgpu", &["--gpu-layers", "2", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&stdout).unwrap_or_default();
    assert_eq!((code, &said["device_layers"]), (Some(0), &2.into()), "{stdout}{stderr}");
    assert_eq!(format!("{PROMPT}{}", said["text"].as_str().unwrap()), expected);

    let (_, stderr, code) = tell("wgpu", &["--gpu-memory", "1MB"]);
    assert!(code == Some(1) && stderr.contains("not enough memory"), "{stderr}");
    // What helps, by its options.
    for option in ["--context N", "--kv q8_0", "--gpu-layers auto"] {
        chosen(option, &stderr);
    }
    let (_, stderr, code) = tell("cpu", &["--gpu-layers", "2"]);
    assert!(
        code == Some(2) && stderr.contains("--gpu-layers needs a GPU, and the device is cpu"),
        "{stderr}"
    );
    let (_, stderr, code) = tell("cpu", &["--gpu-layers", "some"]);
    assert!(code == Some(2) && stderr.contains("expected auto or a number of layers"), "{stderr}");
}

#[test]
fn a_text_is_the_same_with_experts_on_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let file = |preset: &str| {
        let model = folder.path().join(format!("{preset}.gguf")).display().to_string();
        let (_, stderr, code) = run(&["synth", preset, &model, "--type", "f32"]);
        assert_eq!(code, Some(0), "{stderr}");
        model
    };
    let (mixture, dense) = (file("tiny-glm4moe"), file("tiny-qwen3"));
    let tell = |model: &str, device: &str, more: &[&str]| {
        let args = ["run", model, "abc", "--temperature", "0", "-n", "8", "--context", "256"];
        run(&[&args[..], &["--device", device], more].concat())
    };
    let (expected, ..) = tell(&mixture, "cpu", &[]);
    let (stdout, stderr, code) = tell(&mixture, "wgpu", &["--cpu-experts", "1"]);
    assert_eq!((code, &stdout), (Some(0), &expected), "{stderr}");
    assert!(stderr.contains("wgpu:0 and cpu (the experts of 1 of 2 layers)"), "{stderr}");
    assert!(stderr.contains(" of experts on the CPU)") && !stderr.contains("bandwidth bound"), "{stderr}");
    let (stdout, stderr, code) = tell(&mixture, "wgpu", &["--cpu-experts", "all", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&stdout).unwrap_or_default();
    assert_eq!((code, &said["cpu_expert_layers"]), (Some(0), &2.into()), "{stdout}{stderr}");
    assert_eq!(said["text"].as_str().map(str::trim), Some(expected.trim()));
    // 4.7 MiB are needed with all experts, of which each layer has 0.8 MiB.
    let (stdout, stderr, code) = tell(&mixture, "wgpu", &["--cpu-experts", "auto", "--gpu-memory", "4.5MB"]);
    assert_eq!((code, &stdout), (Some(0), &expected), "{stderr}");
    assert!(stderr.contains("; the other experts are on the CPU\n"), "{stderr}");
    let (_, stderr, code) = tell(&mixture, "wgpu", &["--gpu-memory", "3MB"]);
    assert!(code == Some(1) && stderr.contains("--cpu-experts auto leaves experts on the CPU"), "{stderr}");

    let refused = |model: &str, device: &str, more: &[&str], expected: &str| {
        let (_, stderr, code) = tell(model, device, more);
        assert!(code == Some(2) && stderr.contains(expected), "{more:?}: {code:?} {stderr}");
    };
    let none = "this qwen3 model is not a mixture of experts: it has none to leave on the CPU; --gpu-layers";
    refused(&dense, "wgpu", &["--cpu-experts", "auto"], none);
    refused(&mixture, "cpu", &["--cpu-experts", "all"], "--cpu-experts needs a GPU, and the device is cpu");
    refused(&mixture, "wgpu", &["--cpu-experts", "some"], "expected auto, all or a number of layers");
    for other in [["--gpu-layers", "1"], ["--tensor-parallel", "2"]] {
        refused(&mixture, "wgpu", &[&["--cpu-experts", "1"][..], &other].concat(), "cannot be used with");
    }
    let (stdout, ..) = run(&["inspect", &mixture]);
    assert!(stdout.contains("--cpu-experts all  experts on the CPU"), "{stdout}");
    let (stdout, ..) = run(&["inspect", &mixture, "--json"]);
    let said: serde_json::Value = serde_json::from_str(&stdout).unwrap_or_default();
    let needs = |key: &str| said["cpu_experts"][key].as_u64().unwrap();
    assert_eq!(
        (needs("layers"), needs("experts") + needs("rest")),
        (2, said["memory"]["weights"].as_u64().unwrap())
    );
    let (stdout, ..) = run(&["inspect", &dense]);
    assert!(!stdout.contains("--cpu-experts"), "{stdout}");
}

#[test]
fn a_text_is_the_same_on_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf").display().to_string();
    let (_, stderr, code) = run(&["synth", "tiny-qwen3", &model, "--type", "f32", "--layers", "2"]);
    assert_eq!(code, Some(0), "{stderr}");
    let tell = |device: &str, more: &[&str]| {
        let args = ["run", &model, "abc", "--temperature", "0", "-n", "8", "--context", "256"];
        run(&[&args[..], &["--device", device], more].concat())
    };
    let (expected, ..) = tell("cpu", &[]);
    let (stdout, stderr, code) = tell("cpu", &["--tensor-parallel", "2"]);
    assert_eq!((code, &stdout), (Some(0), &expected), "{stderr}");
    assert!(stderr.contains("2 ranks, the first on cpu"), "{stderr}");
    let (stdout, stderr, code) = tell("cpu", &["--devices", "wgpu:0,wgpu:0"]);
    assert_eq!((code, &stdout), (Some(0), &expected), "{stderr}");
    let (stdout, ..) = run(&["inspect", &model]);
    assert!(stdout.contains("--tensor-parallel  weights of each rank"), "{stdout}");

    let (_, stderr, code) = tell("cpu", &["--tensor-parallel", "61"]);
    let refused = "61 ranks cannot share the model: its ";
    assert!(code == Some(2) && stderr.contains(refused), "{code:?} {stderr}");
    assert!(stderr.contains("possible numbers of ranks: 1, 2, 4"), "{stderr}");
    let (_, stderr, code) = tell("cpu", &["--tensor-parallel", "3", "--devices", "cpu,cpu"]);
    assert!(
        code == Some(2) && stderr.contains("--tensor-parallel 3 needs 3 devices, but --devices lists 2"),
        "{stderr}"
    );
    let (_, stderr, code) = tell("cpu", &["--tensor-parallel", "2", "--gpu-layers", "1"]);
    assert!(code == Some(2) && stderr.contains("cannot be used with"), "{stderr}");
}

#[test]
fn a_story_ends_by_itself() {
    // With any seed: stories are shorter than the context.
    for seed in ["1", "2", "3"] {
        let args = ["run", "Once upon a time", "--device", "cpu", "--seed", seed, "--json"];
        let (stdout, stderr, code) = run(&args);
        assert_eq!(code, Some(0), "{stderr}");
        let said: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(said["reason"], "end", "{stdout}");
        let text = said["text"].as_str().unwrap();
        assert!(text.len() > 300 && text.ends_with(['.', '!', '?', '"']), "{text}");
    }
}

#[test]
fn a_prompt_is_an_argument_an_option_or_standard_input_or_missing() {
    fn with<'a>(args: &[&'a str]) -> Vec<&'a str> {
        [&["run"][..], args, &["--seed", "1", "--device", "cpu", "-n", "20"]].concat()
    }
    let (whole, stderr, code) = run(&with(&["Once upon a time"]));
    assert!(code == Some(0) && whole.starts_with("Once upon a time"), "{whole}{stderr}");
    let answer = whole.strip_prefix("Once upon a time").unwrap();
    assert!(answer.len() > 20, "{answer}");
    for args in [&["-p", "Once upon a time"][..], &["Once upon a time "], &["Once upon a time\n"]] {
        assert_eq!(run(&with(args)).0, whole, "{args:?}");
    }
    assert_eq!(piped(&with(&[]), "Once upon a time\n").0, whole);
    assert_eq!(run(&with(&["Once upon a time", "--quiet"])).0, answer);
    // The built-in model has a name, which comes before the model of the configuration.
    let builtin = with(&["builtin", "Once upon a time"]);
    let (named, stderr, code) =
        output(fulmen(&builtin).stdin(Stdio::null()).env("FULMEN_MODEL", "/none.gguf"));
    assert_eq!((named.as_str(), code), (whole.as_str(), Some(0)), "{stderr}");
    assert_eq!(run(&with(&["builtin"])).0, run(&with(&[])).0);
    // Without a prompt, a story of its own.
    let (own, stderr, code) = run(&with(&[]));
    assert!(code == Some(0) && own.len() > 40, "{own}{stderr}");
    assert_eq!(run(&with(&["-p", ""])).0, own);
    // The name of a file is not a prompt.
    let (_, stderr, code) = run(&["run", "missing.gguf", "-p", "Hi"]);
    assert!(code == Some(1) && stderr.contains("missing.gguf"), "{stderr}");
}

#[test]
fn prompts_unlike_any_story_are_continued() {
    for prompt in ["Hello", "def main():", "日本の😀", "<|endoftext|>", "1 2 3"] {
        let (stdout, stderr, code) = run(&["run", prompt, "--seed", "1", "--device", "cpu"]);
        assert_eq!(code, Some(0), "{stderr}");
        let answer = stdout.strip_prefix(prompt).unwrap();
        assert!(answer.trim().is_ascii() && !answer.trim().is_empty(), "{prompt}: {answer}");
    }
    let long = "Once upon a time. ".repeat(200);
    let (_, stderr, code) = run(&["run", &long, "--device", "cpu"]);
    assert!(code == Some(1) && stderr.contains("does not fit into the context of 512"), "{stderr}");
}

#[test]
fn a_story_is_told_in_turns() {
    let args = ["chat", "--device", "cpu", "--seed", "1"];
    let lines = "Once upon a time\n\n/clear\nThe little fox\n/stats\n";
    let (stdout, stderr, code) = piped(&args, lines);
    assert_eq!(code, Some(0), "{stderr}");
    let stdout_of_lines = stdout.clone();
    let told: Vec<&str> = stdout.lines().collect();
    assert_eq!(told.len(), 3, "{stdout}");
    assert!(told[0].starts_with("Once upon a time") && told[0].len() > 30, "{stdout}");
    assert!(!told[1].is_empty() && told[2].starts_with("The little fox"), "{stdout}");
    assert!(stderr.contains("tok/s"), "{stderr}");
    // The end of a story is announced, and then another one starts.
    let (stdout, stderr, code) = piped(&args, &"\n".repeat(40));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.matches("(the end").count() >= 2, "{stdout}{stderr}");
    assert_eq!(piped(&[&args[..], &["builtin"]].concat(), lines).0, stdout_of_lines);
    let (_, stderr, code) = piped(&["chat", "--device", "cpu", "--system", "Be brief."], "Hi\n");
    assert!(code == Some(1) && stderr.contains("no chat template"), "{stderr}");
}

#[test]
fn bench_model_uses_it_by_default() {
    let (stdout, stderr, code) = run(&["bench", "model", "-r", "1", "--device", "cpu"]);
    assert_eq!(code, Some(0), "{stderr}");
    for part in ["pp256", "tg128", "qwen3, 8 layers, 4 MiB of weights on cpu"] {
        assert!(stdout.contains(part), "{part} in {stdout}");
    }
}
