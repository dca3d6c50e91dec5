//! `fulmen tune`, run as users run it.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn fulmen(folder: &Path, args: &[&str]) -> (String, String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
    command.env_remove("FULMEN_DEVICE").env_remove("FULMEN_CACHE").env("FULMEN_CACHE_DIR", folder);
    let Output { status, stdout, stderr } = command.args(args).output().expect("the fulmen binary starts");
    (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap(), status.code())
}

#[test]
fn tuned_kernels_are_stored_and_used_by_the_next_process() {
    let folder = std::env::temp_dir().join(format!("fulmen-cli-tune-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let matmul = ["--dtype", "q8_0", "--shape", "48x64", "--m", "2"];
    let tune = |more: &[&str]| {
        let args: Vec<&str> = ["tune"].iter().chain(&matmul).chain(more).copied().collect();
        let (stdout, stderr, code) = fulmen(&folder, &args);
        assert_eq!((stderr.as_str(), code), ("", Some(0)), "{stdout}");
        stdout
    };
    let table = tune(&["--table"]);
    assert!(table.contains("q8_0 m=2 48x64") && table.contains("table  gemv Q8"), "{table}");
    let text = tune(&["--dry-run", "--list"]);
    assert!(text.contains("nothing was stored") && text.contains("q8_0 m=2 48x64"), "{text}");
    let bench = || {
        let args =
            ["bench", "matmul", "--quick", "--json", "--repeat", "1", "--m", "2", "--k", "64", "--n", "48"];
        let args: Vec<&str> = args.iter().chain(&["--dtype", "q8_0"]).copied().collect();
        let (stdout, stderr, code) = fulmen(&folder, &args);
        assert_eq!((stderr.as_str(), code), ("", Some(0)), "{stdout}");
        serde_json::from_str::<Value>(&stdout).unwrap()
    };
    assert_eq!(bench()["tuned_shapes"], 0);
    let report: Value = serde_json::from_str(&tune(&["--json"])).unwrap();
    let line = &report["matmuls"][0];
    let candidates = line["candidates"].as_array().unwrap();
    assert!(candidates.len() > 10, "{line}");
    assert!(candidates.iter().all(|candidate| candidate["outcome"] != "wrong"), "{line}");
    let best = line["best"].as_str().unwrap();
    assert!(line["best_us"].as_f64().unwrap() > 0.0, "{line}");
    let table = tune(&["--table"]);
    assert!(table.contains(&format!("measured  {best}")), "{table}");
    let used = bench();
    assert_eq!(used["tuned_shapes"], 1);
    let kernels = used["matmuls"][0]["kernels"].as_array().unwrap();
    assert!(kernels.iter().any(|kernel| kernel.as_str().unwrap().contains(best)), "{used} {best}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn impossible_requests_are_wrong_usage() {
    let folder = std::env::temp_dir();
    for (args, part, code) in [
        (&["tune", "--shape", "12"][..], "is not a shape", 2),
        (&["tune", "--shape", "0x4"], "is not a shape", 2),
        (&["tune", "--device", "cpu"], "wgpu devices only", 2),
        (
            &["tune", "--dtype", "q2_k", "--shape", "1x256", "--m", "1", "--dry-run"],
            "no matmul kernel for q2_k",
            2,
        ),
    ] {
        let (_, stderr, got) = fulmen(&folder, args);
        assert_eq!(got, Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(part), "{args:?}: {stderr}");
    }
}
