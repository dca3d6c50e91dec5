//! `fulmen kernels`.

mod common;

use common::{fulmen, output};
use serde_json::Value;

fn kernels(args: &[&str]) -> (String, String, Option<i32>) {
    output(fulmen(&["kernels"]).args(args))
}

fn good(args: &[&str]) -> String {
    let (stdout, stderr, code) = kernels(args);
    assert_eq!((stderr.as_str(), code), ("", Some(0)), "{args:?}");
    stdout
}

#[test]
fn the_list_has_the_kernels_of_both_gpu_backends() {
    let list: Value = serde_json::from_str(&good(&["list", "--json"])).unwrap();
    let kernels = list["kernels"].as_array().unwrap();
    for backend in ["cuda", "wgpu"] {
        assert!(kernels.iter().filter(|kernel| kernel["backend"] == backend).count() > 20, "{backend}");
    }
    let text = good(&["list", "--device", "cuda"]);
    let softmax = text.lines().find(|line| line.starts_with("softmax ")).unwrap();
    let words: Vec<&str> = softmax.split_whitespace().collect();
    assert_eq!(words, ["softmax", "cuda", "sm_80", "sm_90", "softmax.cu"]);
    assert!(!text.contains(" wgpu ") && text.trim_end().ends_with(" kernels"), "{text}");
}

#[test]
fn ptx_is_printed_for_a_target() {
    for (target, printed) in [("sm_80", "sm_80"), ("sm_89", "sm_80"), ("sm_90", "sm_90"), ("sm_120", "sm_90")]
    {
        let ptx = good(&["show", "softmax", "--device", "cuda", "--target", target]);
        assert!(ptx.contains(&format!(".target {printed}\n")) && ptx.contains(".entry softmax("), "{ptx}");
    }
    let newest = good(&["show", "softmax", "--device", "cuda"]);
    assert_eq!(newest, good(&["show", "softmax", "--device", "cuda", "--target", "sm_90"]));
}

#[test]
fn every_wgsl_kernel_can_be_printed() {
    let list: Value = serde_json::from_str(&good(&["list", "--json", "--device", "wgpu"])).unwrap();
    let kernels = list["kernels"].as_array().unwrap();
    for kernel in kernels.iter().step_by(kernels.len() / 8 + 1) {
        let name = kernel["name"].as_str().unwrap();
        let wgsl = good(&["show", name, "--device", "wgpu"]);
        assert!(wgsl.contains("@compute") && wgsl.contains("fn "), "{name}: {wgsl}");
    }
}

/// The printed sources, byte by byte. `FULMEN_UPDATE=1 cargo test` rewrites the files.
#[test]
fn printed_kernels_match_their_snapshots() {
    for (name, device, file) in
        [("copy/vectors", "wgpu", "copy_vectors.wgsl"), ("copy1", "cuda", "copy1.sm_80.ptx")]
    {
        let mut args = vec!["show", name, "--device", device];
        if device == "cuda" {
            args.extend(["--target", "sm_80"]);
        }
        // The first line of PTX is a hash of the sources.
        let source = good(&args);
        let printed: String = source.split_inclusive('\n').filter(|line| !line.starts_with("// ")).collect();
        let path = format!("{}/tests/snapshots/{file}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("FULMEN_UPDATE").is_some() {
            std::fs::write(&path, &printed).unwrap();
        }
        assert_eq!(printed, std::fs::read_to_string(&path).unwrap_or_default(), "{path}");
    }
}

#[test]
fn mistakes_are_wrong_usage_with_a_hint() {
    for (args, part) in [
        (&["show", "sofmax", "--device", "cuda"][..], "unknown kernel \"sofmax\"; did you mean softmax"),
        (&["show", "fill", "--device", "wgpu"], "did you mean elementwise/fill"),
        (&["show", "zzzzzzzz", "--device", "cuda"], "`fulmen kernels list` lists all kernels"),
        (&["show", "softmax", "--device", "cuda", "--target", "sm_75"], "not compiled for sm_75"),
        (&["show", "softmax", "--device", "cuda", "--target", "hopper"], "is not a target such as sm_90"),
        (&["show", "softmax", "--device", "wgpu", "--target", "sm_90"], "--target is for CUDA kernels only"),
        (&["list", "--device", "cpu"], "the cpu backend has no WGSL or PTX to print"),
        (&["list", "--device", "wgpu:99"], "99"),
    ] {
        let (stdout, stderr, code) = kernels(args);
        assert_eq!((stdout.as_str(), code), ("", Some(2)), "{args:?}: {stderr}");
        assert!(stderr.contains(part), "{args:?}: {stderr}");
    }
}
