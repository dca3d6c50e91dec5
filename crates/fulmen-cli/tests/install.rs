//! What an installation needs beside the command: completion scripts, manual pages, the version.

mod common;

use std::process::{Command, Stdio};

use common::{fulmen, output};

const COMMANDS: [&str; 21] = [
    "bench",
    "chat",
    "completions",
    "config",
    "devices",
    "doctor",
    "inspect",
    "kernels",
    "list",
    "ops",
    "ps",
    "pull",
    "quantize",
    "rm",
    "run",
    "serve",
    "show",
    "stop",
    "tokenize",
    "tune",
    "version",
];

#[test]
fn every_shell_gets_a_script_that_completes_all_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let (script, errors, code) = output(&mut fulmen(&["completions", shell]));
        assert_eq!((errors.as_str(), code), ("", Some(0)), "{shell}");
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: {command}");
        }
        assert!(script.contains("verbose") && script.contains("color"), "{shell}: options of all commands");
        assert!(!script.contains("synth"), "{shell} offers a hidden command");
    }
}

#[test]
fn shells_that_are_installed_can_read_their_script() {
    for (shell, arguments) in [("bash", ["-n"]), ("zsh", ["-n"]), ("fish", ["--no-execute"])] {
        let (script, ..) = output(&mut fulmen(&["completions", shell]));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("script");
        std::fs::write(&file, script).unwrap();
        let found = Command::new(shell).args(arguments).arg(&file).stdin(Stdio::null()).output();
        match found {
            Ok(result) => {
                assert!(result.status.success(), "{shell}: {}", String::from_utf8_lossy(&result.stderr));
            }
            Err(error) => println!("NOT TESTED with {shell}: {error}"),
        }
    }
}

#[test]
fn an_unknown_shell_is_wrong_usage() {
    let (text, errors, code) = output(&mut fulmen(&["completions", "cmd"]));
    assert_eq!((text.as_str(), code), ("", Some(2)));
    assert!(errors.contains("possible values: bash, elvish, fish, powershell, zsh"), "{errors}");
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let man = folder.path().join("share/man/man1");
    let (text, errors, code) = output(&mut fulmen(&["man", man.to_str().unwrap()]));
    assert_eq!((text.as_str(), errors.as_str(), code), ("", "", Some(0)));
    let page = |name: &str| std::fs::read_to_string(man.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    for command in COMMANDS {
        let text = page(&format!("fulmen-{command}.1"));
        assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{command}");
    }
    assert!(page("fulmen.1").contains("fulmen\\-run(1)"));
    assert!(!page("fulmen.1").contains("this processor"), "a page is the same on every machine");
    assert!(page("fulmen-bench-decode.1").contains("Examples:"));
    assert!(!man.join("fulmen-synth.1").exists(), "a hidden command has a page");
}

#[test]
fn pages_that_cannot_be_written_are_an_error_with_the_folder() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let folder = file.path().join("man1");
    let (_, errors, code) = output(&mut fulmen(&["man", folder.to_str().unwrap()]));
    assert_eq!(code, Some(1));
    assert!(errors.starts_with(&format!("error: cannot write the manual pages to {}: ", folder.display())));
}

#[test]
fn the_version_has_commit_backends_and_instruction_sets() {
    let (line, _, code) = output(&mut fulmen(&["-V"]));
    assert_eq!(code, Some(0));
    assert_eq!(line.lines().count(), 1);
    assert!(line.starts_with(concat!("fulmen ", env!("CARGO_PKG_VERSION"))), "{line}");
    let (text, errors, code) = output(&mut fulmen(&["--version"]));
    assert_eq!((errors.as_str(), code), ("", Some(0)));
    assert!(text.starts_with(&line), "{text}");
    for name in ["target:", "build:", "backends:", "features:", "instruction sets:", "this processor:"] {
        assert!(text.contains(&format!("\n{name} ")), "{name} in {text}");
    }
    assert_eq!(output(&mut fulmen(&["version"])).0, text);
}

#[test]
fn the_version_as_json_has_the_commit_of_this_repository() {
    let (text, _, code) = output(&mut fulmen(&["version", "--json"]));
    assert_eq!(code, Some(0));
    let details: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(details["version"], env!("CARGO_PKG_VERSION"));
    // Of a build with all of them.
    assert_eq!(details["features"], serde_json::json!(["hub", "constraint", "server"]));
    let selected = &details["instruction_sets"]["selected"];
    assert!(details["instruction_sets"]["available"].as_array().unwrap().contains(selected), "{text}");
    let git = Command::new("git").args(["rev-parse", "HEAD"]).stderr(Stdio::null()).output();
    match git.ok().filter(|git| git.status.success()) {
        Some(git) => {
            let head = String::from_utf8(git.stdout).unwrap();
            let commit = details["commit"].as_str().unwrap();
            assert!(commit.len() >= 9 && head.starts_with(commit), "{commit} in {head}");
        }
        None => assert!(details["commit"].is_null() || details["commit"].is_string()),
    }
}
