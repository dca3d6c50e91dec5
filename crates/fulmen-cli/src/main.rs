//! The `fulmen` command.
fn main() {}
