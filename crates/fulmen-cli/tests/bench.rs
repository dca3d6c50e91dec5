//! `fulmen bench`, run as people run it.

use std::process::{Command, Output};

use serde_json::Value;

fn fulmen(args: &[&str]) -> (String, String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
    let output = command.arg("bench").args(args).env_remove("FULMEN_DEVICE").output();
    let Output { status, stdout, stderr } = output.expect("the fulmen binary starts");
    (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap(), status.code())
}

const WORKS: [&str; 8] =
    ["pass", "ffn/m1", "ffn/m32", "ffn/m256", "chain/fused", "chain/unfused", "chain/mixed", "layers"];

#[test]
fn every_work_is_right_and_has_its_numbers() {
    let trace = std::env::temp_dir().join(format!("fulmen-bench-{}.json", std::process::id()));
    let path = trace.to_str().unwrap();
    let (stdout, stderr, code) = fulmen(&["batch", "--quick", "--json", "--repeat", "2", "--trace", path]);
    assert_eq!((stderr.as_str(), code), ("", Some(0)), "{stdout}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    let works = report["works"].as_array().unwrap();
    let names: Vec<_> = works.iter().map(|work| work["work"].as_str().unwrap()).collect();
    assert_eq!(names, WORKS);
    for work in works {
        for number in ["execute_us", "submit_us", "submit_us_per_op", "floor_us"] {
            assert!(work[number].as_f64().unwrap() > 0.0, "{number} of {work}");
        }
        assert_eq!(work["execute_read_us"].is_null(), work["work"] == "pass", "{work}");
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
fn what_cannot_run_batches_is_refused() {
    for device in ["cpu", "cuda", "cuda:0"] {
        let (stdout, stderr, code) = fulmen(&["batch", "--device", device]);
        assert_eq!((stdout.as_str(), code), ("", Some(1)));
        assert!(stderr.contains("wgpu devices only") && stderr.contains(device), "{stderr}");
    }
    let (_, stderr, code) = fulmen(&["batch", "--quick", "--trace", "/no/such/folder/trace.json"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("trace"), "{stderr}");
    let (_, stderr, code) = fulmen(&["batch", "--quick", "--device", "wgpu:99"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("number 99"), "{stderr}");
}
