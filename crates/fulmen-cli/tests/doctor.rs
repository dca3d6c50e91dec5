//! `fulmen doctor`, run as users run it.

mod common;

use std::fs;
use std::process::Command;

use common::{fulmen, output};
use serde_json::Value;

/// The command with folders of its own.
fn doctor(folder: &std::path::Path, args: &[&str]) -> Command {
    let mut command = fulmen(&[&["doctor"], args].concat());
    command.env("HF_HUB_CACHE", folder.join("hub")).env("FULMEN_CACHE_DIR", folder.join("kernels"));
    command.env("XDG_STATE_HOME", folder.join("state")).env_remove("FULMEN_CACHE");
    command
}

#[test]
fn every_usable_device_is_tested() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("hub/models--a--b/blobs")).unwrap();
    fs::write(folder.path().join("hub/models--a--b/blobs/0"), [0; 4096]).unwrap();
    let (stdout, stderr, code) = output(&mut doctor(folder.path(), &["--json"]));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&report["usable"], &report["asked"]), (&true.into(), &"auto".into()));
    for backend in report["backends"].as_array().unwrap() {
        for device in backend["devices"].as_array().unwrap() {
            assert_eq!(device["test"]["passed"], true, "{device}");
            assert!(device["test"]["run_seconds"].as_f64().unwrap() > 0.0);
        }
    }
    let models = &report["folders"][0];
    assert_eq!(
        (&models["name"], &models["files"], &models["bytes"]),
        (&"models".into(), &1.into(), &4096.into())
    );
    assert!(cfg!(not(unix)) || models["free_bytes"].as_u64().unwrap() > 0);
    assert!(report["advice"].as_array().unwrap().iter().all(Value::is_string));
}

#[test]
fn the_text_has_devices_folders_and_advice() {
    let folder = tempfile::tempdir().unwrap();
    let (stdout, stderr, code) = output(&mut doctor(folder.path(), &["--device", "cpu", "--no-test"]));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    for part in ["* cpu", "instruction sets: ", "files", "models", "suggestions", "cpu selects cpu"] {
        assert!(stdout.contains(part), "{part} in {stdout}");
    }
    assert!(!stdout.contains('\x1b') && stdout.lines().all(|line| line.chars().count() <= 130), "{stdout}");
}

#[test]
fn a_device_that_cannot_be_used_is_exit_code_1() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = doctor(folder.path(), &["--device", "wgpu:99", "--no-test"]);
    let (stdout, stderr, code) = output(&mut command);
    assert_eq!((stderr.as_str(), code), ("", Some(1)));
    assert!(stdout.contains("wgpu:99 selects no device: "), "{stdout}");
    let mut command = doctor(folder.path(), &["--device", "cuda", "--no-test", "--json"]);
    let (stdout, _, code) = output(command.env("CUDA_VISIBLE_DEVICES", ""));
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &report["usable"], &report["taken"]), (Some(1), &false.into(), &Value::Null));
}
