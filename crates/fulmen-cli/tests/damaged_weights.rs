//! `fulmen run` with weights that overflow, are NaN or change meanwhile: an error instead of endless empty
//! tokens, on the processor and through wgpu.

mod common;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use common::{fulmen, output};
use fulmen_core::DType;
use fulmen_model::gguf::GgufWriter;
use fulmen_model::synth::{ModelShape, Synth};

/// A small model in which one vector of weights has this value.
fn model(path: &Path, tensor: &str, value: f32) {
    let shape = ModelShape { layers: 2, ..ModelShape::preset("tiny-qwen3").unwrap() };
    let synth = Synth::new(shape, "f16".parse().unwrap(), 1);
    let tensors = synth.tensors().unwrap();
    let mut writer = GgufWriter::create(path, false, &synth.metadata(), &tensors).unwrap();
    for info in &tensors {
        let mut data = synth.data(info).unwrap();
        if info.name() == tensor {
            assert_eq!(info.dtype(), DType::F32);
            data = value.to_le_bytes().repeat(info.elements());
        }
        writer.write(info.name(), &data).unwrap();
    }
    writer.keep().unwrap();
}

#[test]
fn a_run_without_finite_logits_ends_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for (name, tensor, value) in
        [("huge", "output_norm.weight", 3e38), ("nan", "blk.1.ffn_norm.weight", f32::NAN)]
    {
        let path = folder.path().join(format!("{name}.gguf"));
        model(&path, tensor, value);
        let path = path.display().to_string();
        // Through wgpu with one of both temperatures: a software device takes seconds to compile its shaders.
        let on_wgpu = if value.is_nan() { "0" } else { "0.8" };
        for (device, temperature) in [("cpu", "0"), ("cpu", "0.8"), ("wgpu", on_wgpu)] {
            let args = ["run", &path, "--no-check", "--device", device, "-n", "20"];
            let more = ["--temperature", temperature, "Hello"];
            let (stdout, stderr, code) = output(fulmen(&[&args[..], &more].concat()).stdin(Stdio::null()));
            assert_eq!((stdout.trim(), code), ("", Some(1)), "{name} on {device}: {stderr}");
            let words = "error: no logit after token ";
            assert!(stderr.contains(words) && stderr.contains("of sequence 0)"), "{stderr}");
        }
    }
}

/// The file is overwritten in place in the middle of an answer, as `cp` does.
#[test]
fn a_model_that_is_overwritten_ends_the_run_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let [path, other] = ["model.gguf", "other.gguf"].map(|name| folder.path().join(name));
    model(&path, "", 0.0);
    model(&other, "output_norm.weight", 0.5);
    let path = path.display().to_string();
    let args = ["run", &path, "--device", "cpu", "-n", "2000", "--seed", "1", "Hello"];
    let mut command = fulmen(&args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = [0; 1];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    fs::copy(&other, &path).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&format!("error: {path}: ")) && stderr.contains("while it was open"), "{stderr}");
}
