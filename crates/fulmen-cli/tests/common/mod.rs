//! Running the command as users run it.

use std::process::{Command, Output};

pub(crate) fn fulmen(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
    // Without the configuration of whoever runs the tests.
    command.args(args).env_remove("FULMEN_DEVICE").env("FULMEN_CONFIG", "");
    command
}

/// What it wrote to stdout and stderr, and its exit code.
pub(crate) fn output(command: &mut Command) -> (String, String, Option<i32>) {
    let Output { status, stdout, stderr } = command.output().expect("the fulmen binary starts");
    (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap(), status.code())
}
