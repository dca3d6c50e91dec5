//! `fulmen version`: the version, and what this command was built from and for.

use std::io;
use std::sync::LazyLock;

use fulmen::Registry;
use fulmen_core::BackendName;
#[cfg(feature = "cpu")]
use fulmen_cpu::isa::Isa;
use serde::Serialize;

use crate::error::CommandError;
use crate::output::{json, print};
use crate::select::{CUDA, WGPU};

/// Show the version, the commit, the backends, the features and the instruction sets of this command.
///
/// `fulmen --version` prints the same, and `fulmen -V` the first line alone.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print the details as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen version
  fulmen version --json | jq -r .commit";

/// What `-V` prints after the name: the version, and in parentheses the commit and its date.
pub(crate) const VERSION: &str = match (COMMIT.is_empty(), COMMIT_DATE.is_empty()) {
    (true, _) => env!("CARGO_PKG_VERSION"),
    (false, true) => concat!(env!("CARGO_PKG_VERSION"), " (", env!("FULMEN_COMMIT"), ")"),
    (false, false) => {
        concat!(env!("CARGO_PKG_VERSION"), " (", env!("FULMEN_COMMIT"), " ", env!("FULMEN_COMMIT_DATE"), ")")
    }
};

// Written by build.rs; empty where the commit is not known.
const COMMIT: &str = env!("FULMEN_COMMIT");
const COMMIT_DATE: &str = env!("FULMEN_COMMIT_DATE");

/// What `--version` prints after the name: the version and all details.
pub(crate) fn long() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let text = Details::new().text();
        text.trim_end().trim_start_matches("fulmen ").to_owned()
    });
    &TEXT
}

/// The version cannot be printed.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the version: {0}")]
pub(crate) struct VersionError(#[from] io::Error);

impl CommandError for VersionError {}

pub(crate) fn run(args: &Args) -> Result<(), VersionError> {
    let details = Details::new();
    print(&if args.json { json(&details) } else { details.text() })?;
    Ok(())
}

#[derive(Serialize)]
struct Details {
    version: &'static str,
    commit: Option<&'static str>,
    commit_date: Option<&'static str>,
    target: &'static str,
    profile: &'static str,
    compiler: &'static str,
    /// The backends that are compiled in, each with the interfaces that it can use on this system.
    backends: Vec<Backend>,
    /// The cargo features of this build besides its backends.
    features: Vec<&'static str>,
    /// `None` where the CPU backend is not compiled in.
    instruction_sets: Option<InstructionSets>,
}

#[derive(Serialize)]
struct Backend {
    name: String,
    interfaces: &'static [&'static str],
}

#[derive(Serialize)]
struct InstructionSets {
    /// What the CPU kernels are compiled for.
    compiled: &'static [&'static str],
    /// Which of them this processor has.
    available: Vec<&'static str>,
    /// The one that is used.
    selected: &'static str,
}

const GPU_INTERFACES: &[&str] = if cfg!(target_vendor = "apple") {
    &["Metal"]
} else if cfg!(windows) {
    &["Vulkan", "DX12"]
} else {
    &["Vulkan"]
};

#[cfg(feature = "cpu")]
const COMPILED_SETS: &[&str] = if cfg!(target_arch = "x86_64") {
    &["portable", "avx2", "avx512"]
} else if cfg!(target_arch = "aarch64") {
    &["portable", "neon"]
} else {
    &["portable"]
};

impl Details {
    fn new() -> Self {
        let known = |text: &'static str| (!text.is_empty()).then_some(text);
        Self {
            version: env!("CARGO_PKG_VERSION"),
            commit: known(COMMIT),
            commit_date: known(COMMIT_DATE),
            target: env!("FULMEN_TARGET"),
            profile: env!("FULMEN_PROFILE"),
            compiler: env!("FULMEN_RUSTC"),
            backends: backends(),
            features: features(),
            instruction_sets: instruction_sets(),
        }
    }

    fn text(&self) -> String {
        let backend = |backend: &Backend| match backend.interfaces {
            [] => backend.name.clone(),
            interfaces => format!("{} ({})", backend.name, interfaces.join(", ")),
        };
        let backends: Vec<String> = self.backends.iter().map(backend).collect();
        let mut text = format!("fulmen {VERSION}\n");
        let mut line = |name: &str, value: String| text += &format!("{:<18}{value}\n", format!("{name}:"));
        line("target", self.target.to_owned());
        line("build", format!("{}, {}", self.profile, self.compiler));
        line("backends", backends.join(", "));
        line("features", if self.features.is_empty() { "none".to_owned() } else { self.features.join(", ") });
        if let Some(sets) = &self.instruction_sets {
            line("instruction sets", sets.compiled.join(", "));
            line("this processor", format!("{}; {} is used", sets.available.join(", "), sets.selected));
        }
        text
    }
}

/// The features of `Cargo.toml` that are on and no backends.
fn features() -> Vec<&'static str> {
    let all = [
        ("hub", cfg!(feature = "hub")),
        ("constraint", cfg!(feature = "constraint")),
        ("server", cfg!(feature = "server")),
    ];
    all.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect()
}

/// The backends of this build.
fn backends() -> Vec<Backend> {
    let interfaces = |name: BackendName| match name {
        WGPU => GPU_INTERFACES,
        CUDA => &["NVIDIA driver"],
        _ => &[],
    };
    let names = Registry::builtin().names().into_iter().rev();
    names.map(|name| Backend { name: name.to_string(), interfaces: interfaces(name) }).collect()
}

#[cfg(feature = "cpu")]
fn instruction_sets() -> Option<InstructionSets> {
    Some(InstructionSets {
        compiled: COMPILED_SETS,
        available: Isa::available().into_iter().map(Isa::name).collect(),
        selected: Isa::best().name(),
    })
}

#[cfg(not(feature = "cpu"))]
fn instruction_sets() -> Option<InstructionSets> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_of_this_processor_is_compiled_in() {
        let sets = Details::new().instruction_sets.unwrap();
        for isa in &sets.available {
            assert!(sets.compiled.contains(isa), "{isa}");
        }
    }

    #[test]
    fn the_first_line_is_that_of_the_option() {
        assert_eq!(Details::new().text().lines().next(), Some(&*format!("fulmen {VERSION}")));
    }
}
