//! `fulmen bench`, run as users run it.

use std::process::{Command, Output};

use serde_json::Value;

fn fulmen(args: &[&str]) -> (String, String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
    // Kernels that were tuned on this machine must not change the results.
    command.env_remove("FULMEN_DEVICE").env("FULMEN_CACHE", "off");
    let output = command.arg("bench").args(args).output();
    let Output { status, stdout, stderr } = output.expect("the fulmen binary starts");
    (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap(), status.code())
}

const WORKS: [&str; 8] =
    ["pass", "ffn/m1", "ffn/m32", "ffn/m256", "chain/fused", "chain/unfused", "chain/mixed", "layers"];

#[test]
fn every_case_is_right_and_has_its_times() {
    let trace = std::env::temp_dir().join(format!("fulmen-bench-{}.json", std::process::id()));
    let path = trace.to_str().unwrap();
    let (stdout, stderr, code) = fulmen(&["batch", "--quick", "--json", "--repeat", "2", "--trace", path]);
    assert_eq!((stderr.as_str(), code), ("", Some(0)), "{stdout}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    let works = report["cases"].as_array().unwrap();
    let names: Vec<_> = works.iter().map(|work| work["case"].as_str().unwrap()).collect();
    assert_eq!(names, WORKS);
    for work in works {
        for number in ["execute_us", "submit_us", "submit_us_per_op", "roofline_us"] {
            assert!(work[number].as_f64().unwrap() > 0.0, "{number} of {work}");
        }
        assert_eq!(work["execute_read_us"].is_null(), work["case"] == "pass", "{work}");
        assert!(work["launches"].as_u64().unwrap() > 0, "{work}");
    }
    let launches = |name: &str| {
        works[names.iter().position(|&work| work == name).unwrap()]["launches"].as_u64().unwrap()
    };
    assert_eq!((launches("chain/fused"), launches("chain/unfused"), launches("pass")), (1, 100, 1));
    assert_eq!(report["pipelines"]["compiled"], report["pipelines"]["distinct"]);
    for (group, number) in [
        ("ceilings", "read_gb_s"),
        ("ceilings", "copy_gb_s"),
        ("ceilings", "f32_gflop_s"),
        ("costs", "submit_us"),
        ("costs", "readback_us"),
        ("pass", "raw_gpu_us"),
    ] {
        assert!(report[group][number].as_f64().unwrap() > 0.0, "{number} of {report}");
    }
    let reads = report["readback"].as_array().unwrap();
    assert_eq!(reads.len(), 3);
    for read in reads {
        for number in ["raw_us", "read_us", "into_us", "into_gb_s"] {
            assert!(read[number].as_f64().unwrap() > 0.0, "{number} of {read}");
        }
    }
    let events: Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
    assert!(!events["traceEvents"].as_array().unwrap().is_empty());
    std::fs::remove_file(trace).unwrap();
}

#[test]
fn other_devices_and_bad_paths_are_refused() {
    for device in ["cpu", "cuda", "cuda:0"] {
        let (stdout, stderr, code) = fulmen(&["batch", "--device", device]);
        assert_eq!((stdout.as_str(), code), ("", Some(2)));
        assert!(stderr.contains("wgpu devices only") && stderr.contains(device), "{stderr}");
    }
    let (_, stderr, code) = fulmen(&["batch", "--quick", "--trace", "/no/such/folder/trace.json"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("trace"), "{stderr}");
    let (_, stderr, code) = fulmen(&["batch", "--quick", "--device", "wgpu:99"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("number 99"), "{stderr}");
}

#[test]
fn matmuls_are_checked_timed_and_drawn() {
    let file = std::env::temp_dir().join(format!("fulmen-roofline-{}.svg", std::process::id()));
    let path = file.to_str().unwrap();
    let (stdout, stderr, code) = fulmen(&["matmul", "--quick", "--json", "--repeat", "2", "--svg", path]);
    assert_eq!((stderr.as_str(), code), ("", Some(0)), "{stdout}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    let matmuls = report["matmuls"].as_array().unwrap();
    assert!(matmuls.len() >= 5, "{report}");
    for product in matmuls {
        for number in ["wall_us", "round_trip_us", "gpu_us", "gflop_s", "gb_s", "roofline_us", "share"] {
            assert!(product[number].as_f64().unwrap() > 0.0, "{number} of {product}");
        }
        assert!(!product["kernels"].as_array().unwrap().is_empty(), "{product}");
    }
    let svg = std::fs::read_to_string(&file).unwrap();
    assert_eq!(svg.matches("<circle").count(), matmuls.len());
    std::fs::remove_file(file).unwrap();

    let args = [
        "matmul",
        "--quick",
        "--repeat",
        "1",
        "--m",
        "1,3",
        "--k",
        "64",
        "--n",
        "40",
        "--dtype",
        "q8_0,bf16",
    ];
    let (stdout, stderr, code) = fulmen(&args);
    assert_eq!((stderr.as_str(), code), ("", Some(0)), "{stdout}");
    for name in ["q8_0 m=1 40x64", "q8_0 m=3 40x64", "bf16 m=1 40x64", "bf16 m=3 40x64"] {
        assert!(stdout.contains(name), "{name} in {stdout}");
    }
}

#[test]
fn impossible_matmuls_are_wrong_usage() {
    for (args, part, code) in [
        (&["matmul", "--m", "0"][..], "is not a number from 1", 2),
        (&["matmul", "--quick", "--k", "33", "--n", "4", "--dtype", "q8_0"], "multiple of 32 for q8_0", 2),
        (&["matmul", "--quick", "--k", "256", "--n", "4", "--dtype", "q2_k"], "no matmul kernel for q2_k", 2),
        (&["matmul", "--device", "cpu"], "wgpu devices only", 2),
    ] {
        let (_, stderr, got) = fulmen(args);
        assert_eq!(got, Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(part), "{args:?}: {stderr}");
    }
}

#[test]
fn the_divergence_from_the_weights_as_floats_is_small_and_that_from_another_model_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let text = at("text.txt");
    // As the built-in model tells stories.
    let story_text = concat!(
        "Once upon a time, there was a little girl named Lola who lived in a small village by the sea. ",
        "She was very lively. She was always on the move. She loved to watch the birds.\n\nOne day, Lola ",
        "and her friend Mark had been in the meadow all day. They had",
    );
    std::fs::write(&text, story_text).unwrap();
    let story = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/story.gguf");
    let args =
        ["divergence", story, &text, "--device", "cpu", "--context", "16", "--batch", "1,4,7", "--json"];
    let (stdout, stderr, code) = fulmen(&args);
    assert_eq!((stderr.as_str(), code), ("", Some(0)), "{stdout}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    let windows = report["windows"].as_u64().unwrap();
    assert!(windows >= 4, "{report}");
    assert!(report["weight_bytes"].as_u64() < report["reference_weight_bytes"].as_u64(), "{report}");
    let tests = report["tests"].as_array().unwrap();
    let batches: Vec<_> = tests.iter().map(|test| test["batch"].as_u64()).collect();
    assert_eq!(batches, [None, Some(1), Some(4), Some(7)]);
    for test in tests {
        let number = |key: &str| test[key].as_f64().unwrap();
        assert_eq!(number("tokens_scored"), (windows * 7) as f64, "{test}");
        assert!(number("kl_mean") > 0.0 && number("kl_mean") < 0.01, "{test}");
        assert!((number("perplexity") / number("reference_perplexity") - 1.0).abs() < 0.02, "{test}");
        assert!(number("same_top") > 0.9, "{test}");
    }
    // The same file as its own reference with its cache in 8 bits, as a table.
    let (stdout, _, code) = fulmen(&[&args[..5], &["--context", "16", "--kv", "q8_0"]].concat());
    assert_eq!(code, Some(0));
    for word in ["prefill", "KL mean", "same top", "KV cache Q8_0", "reference: ", "KV cache F32"] {
        assert!(stdout.contains(word), "{word:?} is not in {stdout}");
    }
    // Another vocabulary is refused, and so is a text of less than a window.
    let other = at("other.gguf");
    let synth = Command::new(env!("CARGO_BIN_EXE_fulmen")).args(["synth", "tiny-qwen3", &other]).output();
    assert!(synth.unwrap().status.success());
    let (_, stderr, code) = fulmen(&["divergence", story, &text, "--device", "cpu", "--reference", &other]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("the reference has a vocabulary of 1024 tokens"), "{stderr}");
    std::fs::write(&text, ".").unwrap();
    let (_, stderr, code) = fulmen(&args);
    assert!(code == Some(2) && stderr.contains("tokens in a window of the text"), "{stderr}");
}
