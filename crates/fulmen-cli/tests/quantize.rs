//! `fulmen quantize`, run as users run it.

mod common;

use std::fs;

use common::{fulmen, output};
use fulmen_core::DType;
use fulmen_model::gguf::GgufFile;

/// A small model in a new folder, and the path of a file that does not exist.
fn model(types: &str) -> (tempfile::TempDir, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let [path, out] = ["in.gguf", "out.gguf"].map(|name| folder.path().join(name).display().to_string());
    let (_, stderr, code) =
        output(&mut fulmen(&["synth", "tiny-llama", &path, "--type", types, "--layers", "8"]));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    (folder, path, out)
}

#[test]
fn q4_k_m_is_a_mix_of_types() {
    let (_folder, path, out) = model("f16");
    let (stdout, stderr, code) = output(&mut fulmen(&["quantize", &path, &out, "--type", "q4_k_m"]));
    assert_eq!((stderr.as_str(), code), ("", Some(0)), "no bar in a pipe, nothing to warn of");
    let file = GgufFile::open(&out).unwrap();
    let dtype = |name: &str| file.tensor(name).unwrap().dtype();
    assert_eq!(dtype("token_embd.weight"), DType::Q6_K);
    assert_eq!(dtype("blk.0.attn_norm.weight"), DType::F32);
    let more: Vec<usize> =
        (0..8).filter(|layer| dtype(&format!("blk.{layer}.ffn_down.weight")) == DType::Q6_K).collect();
    assert_eq!(more, [0, 3, 6, 7]);
    assert_eq!(file.metadata().u32("general.file_type"), Ok(15));
    assert!(stdout.starts_with("type  tensors      size\n"), "{stdout}");
    assert!(stdout.contains(&format!("{out}: ")) && stdout.contains(" % of "), "{stdout}");
}

#[test]
fn files_are_replaced_only_with_force() {
    let (_folder, path, out) = model("f16");
    fs::write(&out, b"precious").unwrap();
    let (stdout, stderr, code) = output(&mut fulmen(&["quantize", &path, &out, "--type", "q8_0"]));
    assert_eq!((stdout.as_str(), code), ("", Some(1)));
    assert_eq!(stderr, format!("error: {out} already exists; use --force to overwrite it\n"));
    assert_eq!(fs::read(&out).unwrap(), b"precious");
    let (_, _, code) = output(&mut fulmen(&["quantize", &path, &out, "--type", "Q8_0", "--force"]));
    assert_eq!(code, Some(0));
    assert!(GgufFile::open(&out).is_ok());
    // In place: the old file stays mapped until the new one has its name.
    let (_, stderr, code) = output(&mut fulmen(&["quantize", &out, &out, "--type", "q4_0", "--force"]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stderr.starts_with("warning: the weights are already quantized (57 Q8_0); starting from F16"),
        "{stderr}"
    );
    assert_eq!(GgufFile::open(&out).unwrap().tensor("blk.1.attn_q.weight").unwrap().dtype(), DType::Q4_0);
}

/// A device, a pipe, a directory and a link are what they were, with and without `--force`.
#[cfg(unix)]
#[test]
fn only_regular_files_are_replaced() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    let (folder, path, _) = model("f16");
    let at = |name: &str| folder.path().join(name);
    let target = at("target.gguf");
    fs::write(&target, b"precious").unwrap();
    symlink(&target, at("link.gguf")).unwrap();
    symlink(at("nowhere.gguf"), at("dangling.gguf")).unwrap();
    fs::create_dir(at("folder.gguf")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(at("pipe.gguf")).status().unwrap().success());
    let before = fs::read_dir(folder.path()).unwrap().count();
    for (out, found) in [
        (std::path::PathBuf::from("/dev/null"), "a device, pipe or socket"),
        (at("pipe.gguf"), "a device, pipe or socket"),
        (at("link.gguf"), "a symbolic link"),
        (at("dangling.gguf"), "a symbolic link"),
        (at("folder.gguf"), "a directory"),
    ] {
        let out = out.display().to_string();
        for force in [&["--force"][..], &[]] {
            let args = [&["quantize", &path, &out, "--type", "q8_0"][..], force].concat();
            let (stdout, stderr, code) = output(&mut fulmen(&args));
            assert_eq!((stdout.as_str(), code), ("", Some(1)));
            let expected = format!("error: {out} is {found}; only a regular file can be overwritten\n");
            assert_eq!(stderr, expected);
        }
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), before);
    assert_eq!(fs::read(&target).unwrap(), b"precious");
    let kind = |name: &str| at(name).symlink_metadata().unwrap().file_type();
    assert!(kind("pipe.gguf").is_fifo() && kind("link.gguf").is_symlink() && kind("folder.gguf").is_dir());
}

/// The file is truncated while it is quantized: an error that names it, and no file.
#[test]
fn an_input_truncated_meanwhile_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let [path, out] = ["in.gguf", "out.gguf"].map(|name| folder.path().join(name).display().to_string());
    let args = ["synth", "tiny-llama", &path, "--type", "f16", "--layers", "64"];
    let (_, stderr, code) = output(&mut fulmen(&args));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let args = ["quantize", &path, &out, "--type", "q2_k", "--threads", "1"];
    let mut command = fulmen(&args);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    while fs::read_dir(folder.path()).unwrap().count() < 2 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(5000).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    // A fast machine may have finished before.
    if output.status.code() != Some(0) {
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.starts_with(&format!("error: {path}: changed while it was open: ")), "{stderr}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

/// A Hugging Face folder with one layer, all of it 0.
fn folder(path: &std::path::Path) {
    const SIZE: usize = 32;
    let layer = |part: &str| format!("model.layers.0.{part}.weight");
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![3, SIZE])];
    for part in ["q_proj", "k_proj", "v_proj", "o_proj"] {
        tensors.push((layer(&format!("self_attn.{part}")), vec![SIZE, SIZE]));
    }
    for part in ["gate_proj", "up_proj", "down_proj"] {
        tensors.push((layer(&format!("mlp.{part}")), vec![SIZE, SIZE]));
    }
    for part in ["self_attn.q_norm", "self_attn.k_norm", "input_layernorm", "post_attention_layernorm"] {
        tensors.push((layer(part), vec![SIZE]));
    }
    tensors.push(("model.norm.weight".to_owned(), vec![SIZE]));
    let mut header = Vec::new();
    let mut end = 0;
    for (name, shape) in &tensors {
        let begin = end;
        end += 4 * shape.iter().product::<usize>();
        header
            .push(format!(r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#));
    }
    let header = format!("{{{}}}", header.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + end, 0);
    fs::write(path.join("model.safetensors"), bytes).unwrap();
    let config = r#"{"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 32, "rms_norm_eps": 1e-6,
        "vocab_size": 3, "max_position_embeddings": 8, "tie_word_embeddings": true}"#;
    fs::write(path.join("config.json"), config).unwrap();
}

#[test]
fn a_folder_of_safetensors_becomes_one_file() {
    let input = tempfile::tempdir().unwrap();
    folder(input.path());
    let out = input.path().join("out.gguf").display().to_string();
    let path = input.path().display().to_string();
    let (_, stderr, code) = output(&mut fulmen(&["quantize", &path, &out, "--type", "q8_0"]));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let file = GgufFile::open(&out).unwrap();
    assert_eq!(file.metadata().opt_string("general.architecture"), Ok(Some("qwen3")));
    assert_eq!(file.tensors().len(), 13);
    assert_eq!(file.tensor("blk.0.ffn_down.weight").unwrap().dtype(), DType::Q8_0);
    assert_eq!(file.tensor("blk.0.attn_q_norm.weight").unwrap().dtype(), DType::F32);
}

#[test]
fn unknown_types_are_wrong_usage() {
    let (_, stderr, code) = output(&mut fulmen(&["quantize", "a", "b", "--type", "q9"]));
    assert_eq!(code, Some(2));
    assert!(stderr.contains("unknown type \"q9\" (known: f32, f16, bf16, q8_0"), "{stderr}");
}

/// Ctrl-C, as a terminal sends it, leaves no file and no temporary file.
#[cfg(unix)]
#[test]
fn ctrl_c_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let [path, out] = ["in.gguf", "out.gguf"].map(|name| folder.path().join(name).display().to_string());
    // Large enough for the signal to arrive in time on most machines.
    let (_, stderr, code) =
        output(&mut fulmen(&["synth", "tiny-llama", &path, "--type", "f16", "--layers", "64"]));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let args = ["quantize", &path, &out, "--type", "q2_k", "--threads", "1"];
    let child =
        fulmen(&args).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn();
    let child = child.unwrap();
    let partial = || fs::read_dir(folder.path()).unwrap().count() > 1;
    while !partial() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    // A fast machine may have finished before the signal arrived.
    if output.status.code() != Some(0) {
        assert_eq!(
            (output.status.code(), stderr.as_str()),
            (Some(130), "stopped by Ctrl-C; nothing was written\n")
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn a_dry_run_shows_the_types_and_writes_nothing() {
    let (folder, path, out) = model("f16");
    let types = ["--type", "q4_k_s", "--tensor-type", "ffn_up=q8_0", "--tensor-type", "token_embd=f16"];
    let dry = [&["quantize", &path, "--dry-run"][..], &types].concat();
    let (stdout, stderr, code) = output(&mut fulmen(&dry));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let dtype = |name: &str| {
        let line = stdout.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().rev().nth(2).unwrap().to_owned()
    };
    let names = ["token_embd.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight", "blk.5.attn_v.weight"];
    assert_eq!(names.map(dtype), ["F16", "Q8_0", "Q5_K", "Q4_K"]);
    assert!(stdout.ends_with("; nothing was written\n"), "{stdout}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    // The same types are written.
    let (_, stderr, code) = output(&mut fulmen(&[&["quantize", &path, &out][..], &types].concat()));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let file = GgufFile::open(&out).unwrap();
    for name in names {
        assert_eq!(file.tensor(name).unwrap().dtype().to_string(), dtype(name), "{name}");
    }
    for (wrong, message) in [
        ("nothing=q8_0", "no matrix has \"nothing\" in its name"),
        ("ffn_up=q4_k_m", "is a mix of types"),
        ("ffn_up", "expected TEXT=TYPE"),
        ("ffn_up=q9", "unknown type \"q9\" (known: f32, f16, bf16, q4_0, "),
        ("ffn_up=q8_k", "unknown type \"q8_k\""),
        ("ffn_up=u32", "unknown type \"u32\""),
    ] {
        let arguments = ["quantize", &path, "--dry-run", "--type", "q8_0", "--tensor-type", wrong];
        let (_, stderr, code) = output(&mut fulmen(&arguments));
        assert!(stderr.contains(message) && code != Some(0), "{wrong}: {stderr}");
    }
}

/// Every type that a matrix can have may be named, also those that no recipe has as its own.
#[test]
fn tensors_can_have_any_type() {
    let (_folder, path, out) = model("f16");
    let types = ["ffn_up=mxfp4", "ffn_down=IQ4_NL", "attn_q=iq4_xs"];
    let types: Vec<&str> = types.iter().flat_map(|dtype| ["--tensor-type", dtype]).collect();
    let args = [&["quantize", &path, &out, "--type", "q8_0"][..], &types].concat();
    let (_, stderr, code) = output(&mut fulmen(&args));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let file = GgufFile::open(&out).unwrap();
    let dtype = |name: &str| file.tensor(name).unwrap().dtype();
    assert_eq!(dtype("blk.0.ffn_up.weight"), DType::MXFP4);
    assert_eq!(dtype("blk.3.ffn_down.weight"), DType::IQ4_NL);
    assert_eq!(dtype("blk.7.attn_q.weight"), DType::IQ4_XS);
}

/// An importance matrix in the older format, with the same entries for all layers of the model above.
fn importance(path: &std::path::Path, parts: &[&str], width: impl Fn(&str) -> usize) {
    let number = |number: usize| i32::try_from(number).unwrap().to_le_bytes();
    let mut bytes = number(8 * parts.len()).to_vec();
    for layer in 0..8 {
        for part in parts {
            let name = format!("blk.{layer}.{part}.weight");
            bytes.extend(number(name.len()));
            bytes.extend(name.as_bytes());
            bytes.extend(number(2));
            let values = width(part);
            bytes.extend(number(values));
            for column in 0..values {
                let value = if column % 17 == 3 { 90f32 } else { 0.1 };
                bytes.extend(value.to_le_bytes());
            }
        }
    }
    bytes.extend(number(12));
    bytes.extend(number(8));
    bytes.extend(b"wiki.txt");
    fs::write(path, bytes).unwrap();
}

#[test]
fn an_importance_matrix_weights_errors() {
    let (folder, path, out) = model("f16");
    let file = GgufFile::open(&path).unwrap();
    let matrix = folder.path().join("imatrix.dat");
    let width = |part: &str| file.tensor(&format!("blk.0.{part}.weight")).unwrap().width();
    importance(&matrix, &["attn_q", "ffn_up", "ffn_down"], width);
    let matrix = matrix.display().to_string();
    let types = ["--type", "q4_k_s", "--imatrix", &matrix, "--tensor-type", "attn_q=q8_0"];

    let dry = [&["quantize", &path, "--dry-run"][..], &types].concat();
    let (stdout, stderr, code) = output(&mut fulmen(&dry));
    assert_eq!(code, Some(0), "{stderr}");
    let missing = "warning: the importance matrix has no entry for token_embd.weight, blk.0.";
    assert!(stderr.starts_with(missing) && stderr.ends_with(" more\n"), "{stderr}");
    let uses = |name: &str| {
        let line = stdout.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().next_back().unwrap().to_owned()
    };
    let names =
        ["blk.0.ffn_up.weight", "blk.7.ffn_down.weight", "blk.0.attn_q.weight", "blk.0.attn_v.weight"];
    assert_eq!(names.map(uses), ["yes", "yes", "no", "no"]);

    let (_, _, code) = output(&mut fulmen(&[&["quantize", &path, &out][..], &types].concat()));
    assert_eq!(code, Some(0));
    let plain = folder.path().join("plain.gguf").display().to_string();
    let args = ["quantize", &path, &plain, "--type", "q4_k_s", "--tensor-type", "attn_q=q8_0"];
    assert_eq!(output(&mut fulmen(&args)).2, Some(0));
    let (weighted, plain) = (GgufFile::open(&out).unwrap(), GgufFile::open(&plain).unwrap());
    for (name, same) in names.into_iter().zip([false, false, true, true]) {
        assert_eq!(weighted.data(name).unwrap()[..] == plain.data(name).unwrap()[..], same, "{name}");
    }
    let keys = weighted.metadata();
    assert_eq!(keys.string("quantize.imatrix.file"), Ok("imatrix.dat"));
    assert_eq!(keys.string("quantize.imatrix.dataset"), Ok("wiki.txt"));
    assert_eq!(keys.u32("quantize.imatrix.entries_count"), Ok(24));
    assert_eq!(keys.u32("quantize.imatrix.chunks_count"), Ok(12));
}

#[test]
fn importance_matrices_that_do_not_fit_are_refused() {
    let (folder, path, out) = model("f16");
    let matrix = folder.path().join("imatrix.dat");
    importance(&matrix, &["ffn_up"], |_| 31);
    let run = |matrix: &std::path::Path| {
        let matrix = matrix.display().to_string();
        let (stdout, stderr, code) =
            output(&mut fulmen(&["quantize", &path, &out, "--type", "q4_0", "--imatrix", &matrix]));
        assert_eq!((stdout.as_str(), code), ("", Some(1)));
        stderr
    };
    let said = run(&matrix);
    assert!(said.starts_with("error: tensor blk.0.ffn_up.weight ["), "{said}");
    assert!(said.contains(" F16: ") || said.contains(" Q4_0: "), "{said}");
    assert!(said.contains("the importance matrix has 31 values, expected "), "{said}");
    let said = run(std::path::Path::new(&path));
    let of_model = format!("error: {path}: is not an importance matrix: general.type is ");
    assert!(said.starts_with(&of_model) && said.ends_with(", expected \"imatrix\"\n"), "{said}");
    fs::write(&matrix, b"some text of a few words").unwrap();
    let said = run(&matrix);
    assert!(said.contains("is not an importance matrix, or damaged: it would have "), "{said}");
    let said = run(&folder.path().join("nowhere"));
    assert!(said.contains("nowhere: cannot open it: "), "{said}");
    assert!(!fs::exists(&out).unwrap());
}
