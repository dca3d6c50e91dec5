//! Signals while a file is written: nothing half-written stays, and the exit code names the signal.
#![cfg(unix)]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{fulmen, output};

/// Signals and the exit codes that shells know them by.
const SIGNALS: [(&str, i32); 3] = [("-TERM", 143), ("-HUP", 129), ("-INT", 130)];

fn start(args: &[&str]) -> Child {
    fulmen(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn send(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

/// Waits until a temporary file appears.
fn wait_for_part(folder: &Path) {
    let start = Instant::now();
    let is_part = |name: &str| name.ends_with(".part");
    while !names(folder).iter().any(|name| is_part(name)) {
        assert!(start.elapsed() < Duration::from_secs(60), "no temporary file in {:?}", names(folder));
        thread::sleep(Duration::from_millis(1));
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn quantize_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let [path, out] = ["in.gguf", "out.gguf"].map(|name| folder.path().join(name).display().to_string());
    // Large enough for the signal to arrive in time on most machines.
    let (_, stderr, code) =
        output(&mut fulmen(&["synth", "tiny-llama", &path, "--type", "f16", "--layers", "64"]));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    for (signal, expected) in SIGNALS {
        let child = start(&["quantize", &path, &out, "--type", "q2_k", "--threads", "1", "--force"]);
        wait_for_part(folder.path());
        send(&child, signal);
        let output = child.wait_with_output().unwrap();
        // A fast machine may have finished before the signal arrived.
        if output.status.code() == Some(0) {
            fs::remove_file(&out).unwrap();
            continue;
        }
        assert_eq!(output.status.code(), Some(expected), "{signal}");
        assert_eq!(names(folder.path()), ["in.gguf"], "{signal}");
    }
}

/// Two signals in a row do not leave the temporary file either.
#[test]
fn synth_leaves_nothing_behind() {
    for (signal, expected) in SIGNALS {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out.gguf").display().to_string();
        let child = start(&["synth", "qwen3-0.6b", &out, "--type", "f16", "--layers", "1"]);
        wait_for_part(folder.path());
        send(&child, signal);
        // It may have ended already.
        let _ = Command::new("kill").args([signal, &child.id().to_string()]).stderr(Stdio::null()).status();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(expected), "{signal}");
        assert_eq!(names(folder.path()), [""; 0], "{signal}");
    }
}

/// A signal ends a chat that waits for a line, and an answer that is being generated.
#[test]
fn run_and_chat_end_with_the_code_of_the_signal() {
    for (signal, expected) in [("-TERM", 143), ("-HUP", 129)] {
        let mut chat = fulmen(&["chat", "--device", "cpu"]);
        let mut chat =
            chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut input = chat.stdin.take().unwrap();
        input.write_all(b"Once upon a time\n").unwrap();
        // The answer begins.
        chat.stdout.as_mut().unwrap().read_exact(&mut [0; 30]).unwrap();
        send(&chat, signal);
        assert_eq!(chat.wait().unwrap().code(), Some(expected), "{signal}");

        let mut run = start(&["run", "Once upon a time", "--device", "cpu", "--context", "512"]);
        run.stdout.as_mut().unwrap().read_exact(&mut [0; 30]).unwrap();
        send(&run, signal);
        let code = run.wait().unwrap().code();
        // The story may have ended before the signal arrived.
        assert!(code == Some(expected) || code == Some(0), "{signal}: {code:?}");
    }
}
