//! `fulmen devices`, run as users run it.

mod common;

use std::process::Command;

use common::{fulmen, output};
use serde_json::Value;

fn json(command: &mut Command) -> Value {
    let (stdout, stderr, code) = output(command);
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error} in {stdout}"))
}

fn backend<'a>(list: &'a Value, name: &str) -> &'a Value {
    let backends = list["backends"].as_array().unwrap();
    backends.iter().find(|b| b["backend"] == name).unwrap_or_else(|| panic!("no {name} in {list}"))
}

#[test]
fn the_text_lists_the_cpu_and_marks_what_auto_selects() {
    let (stdout, stderr, code) = output(&mut fulmen(&["devices"]));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    assert!(stdout.contains("* cpu "), "{stdout}");
    assert!(stdout.contains("instruction sets"), "{stdout}");
    assert!(stdout.ends_with("* auto selects cpu\n"), "{stdout}");
    assert!(!stdout.contains('\x1b'), "a pipe gets no colors: {stdout:?}");
    assert!(stdout.lines().all(|line| line == line.trim_end()), "no stray spaces: {stdout:?}");
}

#[test]
fn the_json_has_every_backend_with_devices_or_a_reason() {
    let list = json(&mut fulmen(&["devices", "--json"]));
    assert_eq!((&list["asked"], &list["taken"]), (&"auto".into(), &"cpu".into()));
    for name in ["cpu", "wgpu", "cuda"] {
        let backend = backend(&list, name);
        let devices = backend["devices"].as_array().unwrap();
        assert_eq!(devices.is_empty(), backend["unavailable"].is_string(), "{backend}");
        for device in devices {
            assert!(!device["name"].as_str().unwrap().is_empty(), "{device}");
            assert_eq!(device["runs_graphs"] == true, device["reason"].is_null(), "{device}");
        }
    }
    let cpu = &backend(&list, "cpu")["devices"][0];
    assert!(cpu["facts"]["threads"].as_u64().unwrap() > 0, "{cpu}");
}

#[test]
fn wgpu_has_an_adapter() {
    let list = json(&mut fulmen(&["devices", "--json"]));
    let wgpu = backend(&list, "wgpu");
    assert!(
        wgpu["unavailable"].is_null(),
        "the tests need a GPU adapter, hardware or software; ./scripts/test installs one on Debian: {}",
        wgpu["unavailable"]
    );
    for device in wgpu["devices"].as_array().unwrap() {
        assert!(device["facts"]["largest storage binding"].as_u64().unwrap() >= 128 << 20, "{device}");
    }
}

#[test]
fn hidden_cuda_devices_are_listed_with_a_reason() {
    let list = json(fulmen(&["devices", "--json"]).env("CUDA_VISIBLE_DEVICES", ""));
    let cuda = backend(&list, "cuda");
    let reason = cuda["unavailable"].as_str().unwrap();
    assert!(reason.contains("NVIDIA driver"), "{reason}");
    assert_eq!(list["taken"], "cpu");
}

#[test]
fn an_unknown_device_is_wrong_usage_that_says_what_is_accepted() {
    for mut command in [fulmen(&["devices", "--device", "gpu"]), {
        let mut command = fulmen(&["devices"]);
        command.env("FULMEN_DEVICE", "gpu");
        command
    }] {
        let (stdout, stderr, code) = output(&mut command);
        assert_eq!((stdout.as_str(), code), ("", Some(2)));
        assert!(stderr.contains("unknown device \"gpu\"; use auto, cpu, wgpu, cuda"), "{stderr}");
    }
}

#[test]
fn a_device_that_does_not_exist_is_wrong_usage_after_the_list() {
    let (stdout, stderr, code) = output(&mut fulmen(&["devices", "--device", "wgpu:99"]));
    assert_eq!(code, Some(2));
    assert!(stdout.ends_with("wgpu:99 selects no device\n"), "{stdout}");
    assert!(stderr.starts_with("error: device wgpu:99 does not exist; "), "{stderr}");
}

#[test]
fn a_device_that_cannot_be_used_is_a_failure() {
    let (_, stderr, code) = output(fulmen(&["devices", "--device", "cuda"]).env("CUDA_VISIBLE_DEVICES", ""));
    assert_eq!(code, Some(1));
    assert!(stderr.starts_with("error: device cuda cannot be used: "), "{stderr}");
}

#[test]
fn help_teaches_with_examples() {
    for args in [&["--help"][..], &["devices", "--help"]] {
        let (stdout, _, code) = output(&mut fulmen(args));
        assert_eq!(code, Some(0));
        assert!(stdout.contains("Examples:") && stdout.contains("fulmen devices --json"), "{stdout}");
    }
}

/// A Vulkan layer that looks for a desktop session complains where there is none.
#[test]
fn drivers_do_not_write_to_stderr_unless_asked() {
    let noisy = |args: &[&str]| {
        let mut command = fulmen(args);
        command.env("XDG_RUNTIME_DIR", "not/absolute");
        command
    };
    for args in [&["devices"][..], &["devices", "--device", "wgpu"], &["kernels", "list", "--device", "wgpu"]]
    {
        assert_eq!(output(&mut noisy(args)).1, "", "{args:?}");
    }
    let told = ["run", "Once upon a time", "-n", "2", "--device", "wgpu", "--quiet"];
    let (stdout, stderr, code) = output(&mut noisy(&told));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    assert!(!stdout.is_empty());
    let verbose =
        [output(&mut noisy(&["devices", "-v"])).1, output(noisy(&["devices"]).env("FULMEN_LOG", "1")).1];
    assert_eq!(verbose[0], verbose[1]);
    println!("the drivers of this machine wrote {} bytes", verbose[0].len());
    // Errors of our own are heard.
    let (_, stderr, code) = output(&mut noisy(&["devices", "--device", "wgpu:99"]));
    assert!(code == Some(2) && stderr.contains("wgpu:99 does not exist"), "{stderr}");
}
