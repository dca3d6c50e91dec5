//! Tells the command what it was built from: the commit, its date, the target, the profile and the compiler.
//!
//! The commit is taken from the environment variable `FULMEN_BUILD_COMMIT` (a build of a distribution), from
//! the file that `cargo package` leaves in a package, or from git. Where none of them knows, it is left out.

use std::path::Path;
use std::process::Command;

const COMMIT: &str = "FULMEN_BUILD_COMMIT";
/// Written by `cargo package`.
const PACKAGED: &str = ".cargo_vcs_info.json";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={COMMIT}");
    let (commit, date) = commit().unwrap_or_default();
    println!("cargo::rustc-env=FULMEN_COMMIT={commit}");
    println!("cargo::rustc-env=FULMEN_COMMIT_DATE={date}");
    println!("cargo::rustc-env=FULMEN_TARGET={}", variable("TARGET"));
    println!("cargo::rustc-env=FULMEN_PROFILE={}", variable("PROFILE"));
    let compiler = output(&variable("RUSTC"), &["--version"]).unwrap_or_default();
    println!("cargo::rustc-env=FULMEN_RUSTC={compiler}");
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// The commit and its date. The date is empty where only the commit is known.
fn commit() -> Option<(String, String)> {
    let given = variable(COMMIT);
    if !given.is_empty() {
        return Some((given, String::new()));
    }
    if Path::new(PACKAGED).exists() {
        println!("cargo::rerun-if-changed={PACKAGED}");
        return packaged(&std::fs::read_to_string(PACKAGED).ok()?).map(|commit| (commit, String::new()));
    }
    // A source archive inside another repository has no commit: this file must be one of the repository.
    output("git", &["ls-files", "--error-unmatch", "build.rs"])?;
    // The files that change with a commit: HEAD, the branch that it names, and where packed branches are.
    let branch = output("git", &["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        if let Some(path) =
            output("git", &["rev-parse", "--git-path", name]).filter(|p| Path::new(p).exists())
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let line = output("git", &["show", "--no-patch", "--format=%h %cs", "--abbrev=9", "HEAD"])?;
    let (commit, date) = line.split_once(' ')?;
    Some((commit.to_owned(), date.to_owned()))
}

/// The commit in what `cargo package` writes: `{ "git": { "sha1": "…" }, … }`.
fn packaged(text: &str) -> Option<String> {
    let value = text.split_once("\"sha1\"")?.1.split('"').nth(1)?;
    value.bytes().all(|b| b.is_ascii_hexdigit()).then(|| value.chars().take(9).collect())
}

/// The first line that a program prints, if it succeeds.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}
