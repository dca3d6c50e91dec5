//! Running the command as users run it.

// Each test file uses a part of this.
#![allow(dead_code)]

#[cfg(unix)]
pub(crate) mod terminal;

use std::process::{Command, Output};

pub(crate) fn fulmen(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
    // Without the configuration of whoever runs the tests.
    command.args(args).env_remove("FULMEN_DEVICE").env_remove("FULMEN_LOG").env("FULMEN_CONFIG", "");
    // Chats on a terminal keep their lines there.
    command.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command
}

/// Sets the context length that a model file of the architecture qwen3 claims.
pub(crate) fn set_context(path: &str, tokens: u32) {
    let mut bytes = std::fs::read(path).unwrap();
    let key = b"qwen3.context_length";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len();
    assert_eq!(bytes[at..at + 4], 4_u32.to_le_bytes(), "the type u32");
    bytes[at + 4..at + 8].copy_from_slice(&tokens.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}

/// What it wrote to stdout and stderr, and its exit code.
pub(crate) fn output(command: &mut Command) -> (String, String, Option<i32>) {
    let Output { status, stdout, stderr } = command.output().expect("the fulmen binary starts");
    (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap(), status.code())
}
