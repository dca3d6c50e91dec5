//! `fulmen bench decode` and `fulmen bench prefill`: models with random weights.

use serde_json::Value;

mod common;

fn bench(args: &[&str]) -> (String, String, Option<i32>) {
    let mut command = common::fulmen(&["bench"]);
    // Kernels that were tuned on this machine must not change the results.
    common::output(command.args(args).env("FULMEN_CACHE", "off"))
}

fn report(args: &[&str]) -> Value {
    let (stdout, stderr, code) = bench(args);
    assert_eq!((stderr.as_str(), code), ("", Some(0)), "{stdout}");
    serde_json::from_str(&stdout).unwrap()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} of {value}"))
}

/// The times of the ops and of the gaps add up to the total.
fn adds_up(test: &Value, total_us: f64) {
    let profile = &test["profile"];
    let ops = profile["ops"].as_array().unwrap();
    let sum: f64 = ops.iter().map(|op| number(op, "us")).sum();
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * total_us;
    assert!(near(sum, number(profile, "sum_us")), "{profile}");
    assert!(near(sum + number(profile, "gaps_us"), total_us), "{profile}");
    assert!(near(number(profile, "total_us"), total_us), "{profile}");
    for op in ops {
        assert!(number(op, "us") >= 0.0 && number(op, "bytes") > 0.0, "{op}");
        assert!(number(op, "calls") >= 1.0 && number(op, "kernels") >= number(op, "calls"), "{op}");
    }
}

fn calls(test: &Value, starts: &str) -> u64 {
    let ops = test["profile"]["ops"].as_array().unwrap().iter();
    let named = ops.filter(|op| op["op"].as_str().unwrap().contains(starts));
    named.map(|op| op["calls"].as_u64().unwrap()).sum()
}

const DECODE: [&str; 8] =
    ["decode", "--shape", "tiny-qwen3-untied", "--steps", "4", "--repeat", "2", "--depth"];

#[test]
fn steps_are_timed_for_every_depth_and_batch() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("step.json");
    let more = ["33,64", "--batch", "1,3", "--device", "cpu", "--json", "--trace", trace.to_str().unwrap()];
    let report = report(&[&DECODE[..], &more].concat());
    assert_eq!((&report["shape"], &report["type"]), (&"tiny-qwen3-untied".into(), &"q4_k_m".into()));
    assert!(number(&report, "weight_bytes") > 0.0 && number(&report, "memory_bytes_per_second") > 0.0);
    let tests = report["tests"].as_array().unwrap();
    let which: Vec<_> = tests.iter().map(|test| (number(test, "depth"), number(test, "batch"))).collect();
    assert_eq!(which, [(33.0, 1.0), (33.0, 3.0), (64.0, 1.0), (64.0, 3.0)]);
    for test in tests {
        let (step_us, batch) = (number(test, "step_us"), number(test, "batch"));
        assert!((number(test, "tokens_per_second") * step_us / 1e6 / batch - 1.0).abs() < 1e-9, "{test}");
        assert!((number(test, "bound_us") / step_us / number(test, "share_of_bound") - 1.0).abs() < 1e-9);
        assert_eq!(test["runs"].as_array().unwrap().len(), 2);
        // The CPU has no captured steps: every op is a launch.
        assert!(number(test, "launches") > 20.0 && test["launches"] == test["kernels"], "{test}");
        assert!(number(test, "host_us") > 0.0, "{test}");
        assert_eq!(test["profile"]["clock"], "host");
        assert_eq!((calls(test, "Attention"), calls(test, "GateUp")), (3, 3), "{test}");
        adds_up(test, step_us);
    }
    // Each further position adds two key rows and value rows of 64 f16 values in each of 3 layers.
    let read = |at: usize| number(&tests[at], "read_bytes");
    assert_eq!(read(2) - read(0), 31.0 * 3.0 * 2.0 * 64.0 * 2.0);
    assert_eq!(read(3) - read(2), 2.0 * 66.0 * 3.0 * 2.0 * 64.0 * 2.0);

    let events: Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    let events = events["traceEvents"].as_array().unwrap();
    let names = events.iter().filter(|event| event["ph"] == "M").count();
    assert_eq!(names, 4);
    let kernels: Vec<_> = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == 0).collect();
    let in_table: f64 =
        tests[0]["profile"]["ops"].as_array().unwrap().iter().map(|op| number(op, "kernels")).sum();
    assert_eq!(kernels.len() as f64, in_table);
    // Kernels do not overlap.
    for pair in kernels.windows(2) {
        assert!(number(pair[0], "ts") + number(pair[0], "dur") <= number(pair[1], "ts") + 0.002, "{pair:?}");
    }
}

#[test]
fn the_text_has_the_step_its_ops_and_the_gaps() {
    let (stdout, stderr, code) = bench(&[&DECODE[..], &["16", "--device", "cpu"]].concat());
    assert_eq!((stderr.as_str(), code), ("", Some(0)), "{stdout}");
    let line = |start: &str| {
        let mut lines = stdout.lines().filter(|line| line.starts_with(start));
        let line = lines.next().unwrap_or_else(|| panic!("{start} in {stdout}"));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(line("16")[..2], ["16", "1"]);
    let step: f64 = line("16")[5].parse().unwrap();
    assert_eq!(line("[all]")[1].parse::<f64>().unwrap(), step);
    let rest = if stdout.contains("[gaps]") { "[gaps]" } else { "[overlap]" };
    assert_eq!(line(rest)[1].starts_with('-'), rest == "[overlap]", "{stdout}");
    for part in [
        "MulMat 1024x256 Q6_K",
        "Advance",
        "tiny-qwen3-untied q4_k_m: qwen3, 3 layers",
        "on cpu",
        "of bound: % of the speed",
    ] {
        assert!(stdout.contains(part), "{part} in {stdout}");
    }
}

#[test]
fn prefills_are_timed_for_every_length_and_depth() {
    let args = ["prefill", "--shape", "tiny-llama", "--layers", "2", "--tokens", "5,20", "--depth", "0,7"];
    let more = ["--chunk", "16", "--repeat", "2", "--device", "cpu", "--json"];
    let report = report(&[&args[..], &more].concat());
    assert_eq!((&report["layers"], &report["chunk"]), (&2.into(), &16.into()));
    let tests = report["tests"].as_array().unwrap();
    let which: Vec<_> = tests.iter().map(|test| (number(test, "depth"), number(test, "tokens"))).collect();
    assert_eq!(which, [(0.0, 5.0), (0.0, 20.0), (7.0, 5.0), (7.0, 20.0)]);
    for test in tests {
        let seconds = number(test, "seconds");
        adds_up(test, 1e6 * seconds);
        assert!((number(test, "flops_per_second") * seconds / number(test, "flops") - 1.0).abs() < 1e-9);
        assert!(test["share_of_peak"].is_null(), "{test}");
        // 20 tokens are a chunk of 16 and one of 4: two calls per layer.
        let chunks = if number(test, "tokens") > 16.0 { 2 } else { 1 };
        assert_eq!(calls(test, "Attention"), 2 * chunks, "{test}");
    }
    // Seven more positions for 5 tokens, in 2 layers with 4 heads of 64.
    assert_eq!(number(&tests[2], "flops") - number(&tests[0], "flops"), 4.0 * 35.0 * 2.0 * 256.0);
}

#[test]
fn a_captured_step_is_timed_kernel_by_kernel() {
    let args = [&DECODE[..], &["9", "--device", "wgpu", "--json"]].concat();
    let report = report(&args);
    let test = &report["tests"][0];
    assert_eq!(test["launches"], 1, "{test}");
    assert!(number(test, "host_us") > 0.0, "{test}");
    assert_eq!((calls(test, "Attention"), calls(test, "GateUp")), (3, 3), "{test}");
    adds_up(test, number(test, "step_us"));
    if test["profile"]["clock"] == "device" {
        let ops = test["profile"]["ops"].as_array().unwrap();
        let kernels: f64 = ops.iter().map(|op| number(op, "kernels")).sum();
        assert_eq!(number(test, "kernels"), kernels, "{test}");
    }
}

#[test]
fn bad_values_are_wrong_usage_and_bad_paths_are_failures() {
    for (args, parts, expected) in [
        (&["decode", "--shape", "gpt-5"][..], &["gpt-5", "qwen3-4b", "llama3.2-1b"][..], 2),
        (&["prefill"], &["--shape"], 2),
        (&["decode", "--shape", "tiny-llama", "--depth", "0"], &["--depth"], 2),
        (&["decode", "--shape", "tiny-llama", "--batch", "1,0"], &["--batch"], 2),
        (&["decode", "--shape", "tiny-llama", "--type", "q9"], &["q9"], 2),
        (&["decode", "--shape", "tiny-llama", "--device", "cpu", "--context", "2048"], &["2048"], 2),
        (&["prefill", "--shape", "tiny-llama", "--device", "cpu", "--tokens", "9999"], &["2048"], 2),
        (&["decode", "--shape", "tiny-llama", "--trace", "/no/such/folder/t.json"], &["/no/such/folder"], 1),
    ] {
        let (stdout, stderr, code) = bench(args);
        assert_eq!((stdout.as_str(), code), ("", Some(expected)), "{args:?}: {stderr}");
        assert!(parts.iter().all(|part| stderr.contains(part)), "{args:?}: {stderr}");
    }
}

#[test]
fn a_matrix_has_a_cell_for_each_value_of_each_axis() {
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().join("matrix.svg");
    let args = [
        "matrix",
        "--shape",
        "tiny-qwen3",
        "--device",
        "cpu",
        "--batch",
        "3,1",
        "--types",
        "q4_k_m,q8_0",
        "--caches",
        "f16,q8_0",
        "--contexts",
        "20,40",
        "--depth",
        "20",
        "--steps",
        "4",
        "--repeat",
        "1",
        "--json",
        "--svg",
        chart.to_str().unwrap(),
    ];
    let (out, err, code) = bench(&args);
    assert_eq!(code, Some(0), "{err}");
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let cells = report["cells"].as_array().unwrap();
    let values: Vec<String> = cells
        .iter()
        .map(|cell| {
            assert!(cell["step_us"].as_f64().unwrap() > 0.0 && cell["error"].is_null(), "{cell}");
            format!(
                "{} {} {} {} {}",
                cell["axis"].as_str().unwrap(),
                cell["rows"],
                cell["type"].as_str().unwrap(),
                cell["kv"].as_str().unwrap(),
                cell["depth"]
            )
        })
        .collect();
    assert_eq!(
        values,
        [
            "rows 1 q4_k_m f16 20",
            "rows 3 q4_k_m f16 20",
            "type 1 q4_k_m f16 20",
            "type 1 q8_0 f16 20",
            "cache 1 q4_k_m f16 20",
            "cache 1 q4_k_m q8_0 20",
            "context 1 q4_k_m f16 20",
            "context 1 q4_k_m f16 40",
        ]
    );
    let svg = std::fs::read_to_string(chart).unwrap();
    assert_eq!(svg.matches("rx=\"4\"").count(), 8);
    let (_, err, code) = bench(&["matrix", "--shape", "tiny-qwen3", "--batch", "0"]);
    assert_eq!(code, Some(2), "{err}");
}

#[test]
fn an_engine_is_timed_for_every_concurrency() {
    let args = ["engine", "--shape", "tiny-llama", "--layers", "2", "--concurrency", "1,3", "--input", "20"];
    let more = ["--output", "12", "--requests", "4", "--extra-input", "30", "--extra-rate", "50"];
    let report = report(&[&args[..], &more, &["--device", "cpu", "--json"]].concat());
    assert_eq!((&report["shape"], &report["layers"]), (&"tiny-llama".into(), &2.into()));
    let tests = report["tests"].as_array().unwrap();
    assert_eq!(tests.iter().map(|test| number(test, "concurrency")).collect::<Vec<_>>(), [1.0, 3.0]);
    for test in tests {
        let tokens = number(test, "output_tokens_per_second") * number(test, "seconds");
        assert!((tokens - 48.0).abs() < 1e-6, "{test}");
        let bound = number(test, "bound_seconds") / number(test, "seconds");
        assert!((bound / number(test, "share_of_bound") - 1.0).abs() < 1e-9, "{test}");
        for latency in ["time_to_first_token_ms", "inter_token_ms"] {
            let at = |key| number(&test[latency], key);
            assert!(0.0 < at("p50") && at("p50") <= at("p95") && at("p95") <= at("p99"), "{test}");
        }
        assert!(number(test, "pages_used") >= 1.0 && number(test, "extra_prompts") >= 1.0, "{test}");
    }
    let args = ["engine", "--shape", "tiny-gemma3", "--layers", "2", "-c", "2", "--input", "300"];
    let report = self::report(&[&args[..], &["--output", "12", "--device", "cpu", "--json"]].concat());
    let test = &report["tests"][0];
    assert!(number(test, "window_pages") >= number(test, "window_pages_used"), "{test}");
    assert!(number(test, "window_pages_used") >= 1.0, "{test}");
    let (stdout, stderr, code) =
        bench(&["engine", "--device", "cpu", "-c", "2", "--output", "3", "--no-bound"]);
    assert_eq!((stderr.as_str(), code), ("", Some(0)), "{stdout}");
    assert!(stdout.contains("TTFT") && stdout.contains("qwen3, 8 layers"), "{stdout}");
}

#[test]
fn decoding_on_several_ranks_is_predicted_from_one() {
    let args = ["parallel", "--shape", "tiny-qwen3", "--type", "f16", "--device", "cpu", "--ranks", "1,2,7"];
    let more = ["--depth", "8", "--steps", "2", "--repeat", "1", "--link", "pcie", "--link-latency", "30"];
    let report = report(&[&args[..], &more, &["--json"]].concat());
    assert_eq!(report["link"]["base_us"].as_f64(), Some(24.0), "30 µs of two ranks, 6 of which are a hop");
    let tests = report["tests"].as_array().unwrap();
    let ranks: Vec<f64> = tests.iter().map(|test| number(test, "ranks")).collect();
    assert_eq!(ranks, [1.0, 2.0]);
    assert!(report["refused"][0].as_str().unwrap().contains("7"), "{report}");
    assert!(number(&tests[1], "rank_weight_bytes") < number(&tests[0], "rank_weight_bytes"));
    assert_eq!(number(&tests[0], "collectives_us"), 0.0);
    let layers = number(&report, "layers");
    let collectives = &tests[1]["collectives"];
    let counts = (number(collectives, "all_reduces"), number(collectives, "all_gathers"));
    // One for the embedding and two in each layer; the largest logit of each rank and its token.
    assert_eq!(counts, (2.0 * layers + 1.0, 2.0), "{collectives}");
    assert_eq!(number(collectives, "all_gather_bytes"), 4.0 * number(&tests[1], "batch"), "{collectives}");
    for test in tests {
        let sum = number(test, "rank_us") + number(test, "collectives_us");
        assert!((number(test, "step_us") - sum).abs() < 1e-6 && number(test, "rank_us") > 0.0, "{test}");
    }
    assert!(number(&tests[1], "collectives_us") >= 30.0 * (2.0 * layers + 3.0), "{tests:?}");
}

#[test]
fn collectives_are_checked_and_timed() {
    let args = ["collective", "--device", "cpu", "--ranks", "3", "--bytes", "4,4KiB", "--calls", "3"];
    let report = report(&[&args[..], &["--repeat", "2", "--json"]].concat());
    assert_eq!(report["collectives"], "the host");
    let tests = report["tests"].as_array().unwrap();
    let which: Vec<(&str, f64)> =
        tests.iter().map(|test| (test["op"].as_str().unwrap(), number(test, "bytes"))).collect();
    let expected = [("all_reduce", 4.0), ("all_gather", 4.0), ("all_reduce", 4096.0), ("all_gather", 4096.0)];
    assert_eq!(which, expected);
    assert!(tests.iter().all(|test| number(test, "us") > 0.0 && number(test, "ranks") == 3.0));
}

#[test]
fn collectives_that_are_not_possible_are_clear_errors() {
    let nodes = ["--nodes", "2", "--rendezvous", "127.0.0.1:1", "--timeout", "1"];
    for (args, part, expected) in [
        (&["--ranks", "1", "--collectives", "nccl"][..], "collectives of a group of 1 inside a program", 1),
        // Before anybody is waited for.
        (&nodes, "collectives of a group of 1 inside a program", 1),
        (&["--nodes", "2"], "--rendezvous", 2),
        (&["--node-rank", "1"], "--nodes", 2),
        (&["--collectives", "mpi"], "auto", 2),
        (&["--bytes", "x"], "expected bytes", 2),
    ] {
        let (stdout, stderr, code) = bench(&[&["collective", "--device", "cpu"][..], args].concat());
        assert_eq!((stdout.as_str(), code), ("", Some(expected)), "{args:?}: {stderr}");
        assert!(stderr.contains(part), "{args:?}: {stderr}");
    }
}
