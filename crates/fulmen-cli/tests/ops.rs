//! `fulmen ops`, run as users run it.

use std::process::{Command, Output};

use serde_json::Value;

fn fulmen(args: &[&str]) -> (String, String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
    let output = command.arg("ops").args(args).env_remove("FULMEN_DEVICE").output();
    let Output { status, stdout, stderr } = output.expect("the fulmen binary starts");
    (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap(), status.code())
}

fn json(args: &[&str]) -> Value {
    let (stdout, stderr, code) = fulmen(args);
    assert_eq!((stderr.as_str(), code), ("", Some(0)), "{stdout}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error} in {stdout}"))
}

#[test]
fn the_list_has_every_op_with_its_types() {
    let (stdout, stderr, code) = fulmen(&["list"]);
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    for op in ["mul_mat", "rope_store", "cache_attention", "sample"] {
        assert!(stdout.lines().any(|line| line.starts_with(op)), "{stdout}");
    }
    let list = json(&["list", "--json", "--op", "kv_store"]);
    assert_eq!(list["ops"][0]["op"], "kv_store");
    assert!(list["ops"][0]["types"]["q8_0"].as_u64().unwrap() > 0, "{list}");
    let (stdout, ..) = fulmen(&["list", "--cases", "--name", "9728x2560", "--dtype", "q4_k"]);
    assert!(stdout.contains("mul_mat/q4_k/qwen3-4b/m1/9728x2560\n"), "{stdout}");
}

#[test]
fn a_check_prints_counts_coverage_and_the_seed() {
    let (stdout, stderr, code) = fulmen(&["check", "--device", "cpu", "--op", "softmax", "--seed", "7"]);
    assert_eq!((stderr.as_str(), code), ("", Some(0)), "{stdout}");
    assert!(stdout.contains("Cases by op and type:"), "{stdout}");
    assert!(stdout.trim_end().ends_with("seed 7"), "{stdout}");
    assert!(!stdout.contains('\x1b'), "a pipe gets no colors: {stdout:?}");
}

#[test]
fn a_check_as_json_counts_its_cases() {
    let report = json(&["check", "--json", "--op", "argmax", "--op", "rope", "--threads", "1"]);
    assert_eq!(report["rows"], report["passed"]);
    assert_eq!(report["failures"], serde_json::json!([]));
    assert_eq!(report["ops"].as_array().unwrap().len(), 2);
}

#[test]
fn a_check_on_wgpu_runs_graphs_and_the_command_batch() {
    let report = json(&[
        "check", "--device", "wgpu", "--quick", "--json", "--op", "gelu", "--op", "dot", "--op", "rms_norm",
    ]);
    assert_eq!(
        (report["rows"].as_u64(), &report["failures"]),
        (report["passed"].as_u64(), &serde_json::json!([]))
    );
    let rows = |op: &str| {
        let ops = report["ops"].as_array().unwrap();
        ops.iter().find(|line| line["op"] == op).unwrap_or_else(|| panic!("{report}"))["rows"]
            .as_u64()
            .unwrap()
    };
    assert!(rows("gelu") >= 20 && rows("dot") >= 7 && rows("rms_norm") >= 10, "{report}");
    assert!(report["device"].as_str().unwrap().starts_with("wgpu:"), "{report}");
    let (stdout, stderr, code) = fulmen(&["check", "--device", "wgpu:0", "--quick", "--op", "softmax"]);
    assert_eq!((stderr.as_str(), code), ("", Some(0)), "{stdout}");
    assert!(stdout.contains("Cases by op and type:") && stdout.contains("softmax"), "{stdout}");
}

#[test]
fn times_are_compared_with_ceilings() {
    let report = json(&["perf", "--json", "--op", "rms_norm", "--name", "smollm2", "--time", "5"]);
    assert!(report["ceiling"]["read_gb_s"].as_f64().unwrap() > 0.1, "{report}");
    let cases = report["cases"].as_array().unwrap();
    assert!(!cases.is_empty() && cases.iter().all(|case| case["gb_s"].as_f64().unwrap() > 0.0), "{report}");
}

#[test]
fn unknown_ops_and_types_are_wrong_usage_that_lists_the_known_ones() {
    let (_, stderr, code) = fulmen(&["check", "--op", "mulmat"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("unknown op \"mulmat\"") && stderr.contains("mul_mat"), "{stderr}");
    let (_, stderr, code) = fulmen(&["check", "--dtype", "q9"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("Q4_K"), "{stderr}");
    let (_, stderr, code) = fulmen(&["check", "--op", "argmax", "--dtype", "q4_k"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("fulmen ops list"), "{stderr}");
}
