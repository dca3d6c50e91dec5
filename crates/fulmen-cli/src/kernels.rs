//! `fulmen kernels`: lists the GPU kernels and prints their final WGSL or PTX.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "wgpu")]
mod wgpu;

use std::io;
use std::str::FromStr;

use clap::Subcommand;
use fulmen_core::device::{BackendName, DeviceSelector};
#[cfg(feature = "wgpu")]
use fulmen_wgpu::GpuError;
use serde::Serialize;

use crate::error::CommandError;
use crate::output::{counted, json, print};
#[cfg(feature = "wgpu")]
use crate::select::WGPU;
use crate::select::{CUDA, parse_device};

/// List the GPU kernels, or print the final WGSL or PTX of one.
///
/// CUDA kernels are embedded in the program and need no GPU to be printed. WGSL is generated for the features
/// and limits of a wgpu device, so --device wgpu:N may print different kernels for different devices.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: KernelsCommand,
}

const EXAMPLES: &str = "\
Examples:
  fulmen kernels list                      every kernel of every GPU backend
  fulmen kernels list --device cuda        CUDA kernels with their files and targets
  fulmen kernels show softmax --device cuda --target sm_90
  fulmen kernels show matmul/gemv_nk --device wgpu > gemv.wgsl";

#[derive(Debug, Subcommand)]
enum KernelsCommand {
    List(ListArgs),
    Show(ShowArgs),
}

/// Whose kernels.
#[derive(Debug, clap::Args)]
struct BackendOption {
    /// Backend or device: wgpu, wgpu:N or cuda; by default all GPU backends.
    #[arg(long, short, value_name = "DEVICE", value_parser = parse_device)]
    device: Option<DeviceSelector>,
}

/// List the kernels of the GPU backends.
#[derive(Debug, clap::Args)]
#[command(after_help = LIST_EXAMPLES)]
struct ListArgs {
    #[command(flatten)]
    backend: BackendOption,

    /// Print the list as JSON.
    #[arg(long)]
    json: bool,
}

const LIST_EXAMPLES: &str = "\
Examples:
  fulmen kernels list
  fulmen kernels list --device wgpu
  fulmen kernels list --json | jq -r '.kernels[].name'";

/// Print the final source of a kernel: WGSL or PTX.
#[derive(Debug, clap::Args)]
#[command(after_help = SHOW_EXAMPLES)]
struct ShowArgs {
    /// Name of the kernel, as `fulmen kernels list` prints it.
    #[arg(value_name = "NAME")]
    name: String,

    #[command(flatten)]
    backend: BackendOption,

    /// Compute capability that the PTX is for, such as sm_80 or sm_90. CUDA only; the newest by default.
    #[arg(long, value_name = "TARGET")]
    target: Option<Target>,

    /// Print the kernel and its source as JSON.
    #[arg(long)]
    json: bool,
}

const SHOW_EXAMPLES: &str = "\
Examples:
  fulmen kernels show softmax --device cuda
  fulmen kernels show softmax --device cuda --target sm_80
  fulmen kernels show matmul/gemv_nk --device wgpu";

/// A compute capability: `sm_90`, `sm_90a` or `90`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target(u32);

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let digits = text.strip_prefix("sm_").unwrap_or(text).trim_end_matches('a');
        let number = digits.parse().ok().filter(|&number: &u32| (50..1000).contains(&number));
        number.map(Target).ok_or_else(|| format!("{text:?} is not a target such as sm_90"))
    }
}

/// A kernel in a list. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Kernel {
    backend: String,
    name: String,
    /// What it does, or the file that it is in.
    about: String,
    /// What it is compiled for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    targets: Vec<String>,
}

/// The kernels of one backend.
trait Catalog {
    fn backend(&self) -> BackendName;

    fn kernels(&self) -> Vec<Kernel>;

    /// The final source of a kernel; `None` if it is not compiled for the target.
    fn source(&self, name: &str, target: Option<Target>) -> Option<String>;
}

/// Why `fulmen kernels` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KernelsError {
    #[error("the {backend} backend has no WGSL or PTX to print; its kernels are compiled Rust code")]
    NoSources { backend: BackendName },
    #[error("--target is for CUDA kernels only")]
    TargetWithoutCuda,
    #[error("unknown kernel {name:?}{}", hint(similar))]
    Unknown { name: String, similar: Vec<String> },
    #[error("kernel {name:?} is not compiled for sm_{target}; it is for {}", targets.join(", "))]
    NoTarget { name: String, target: u32, targets: Vec<String> },
    #[cfg(feature = "wgpu")]
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error("cannot write the kernel: {0}")]
    Write(#[from] io::Error),
}

impl CommandError for KernelsError {
    fn is_usage(&self) -> bool {
        match self {
            #[cfg(feature = "wgpu")]
            KernelsError::Gpu(error) => error.is_usage(),
            KernelsError::Write(_) => false,
            _ => true,
        }
    }
}

/// What to try instead of an unknown name.
fn hint(similar: &[String]) -> String {
    match similar {
        [] => "; `fulmen kernels list` lists all kernels".to_owned(),
        [only] => format!("; did you mean {only}?"),
        [first @ .., last] => format!("; did you mean {} or {last}?", first.join(", ")),
    }
}

pub(crate) fn run(args: &Args) -> Result<(), KernelsError> {
    match &args.command {
        KernelsCommand::List(args) => list(args),
        KernelsCommand::Show(args) => show(args),
    }
}

/// Newer than every target of a kernel: the newest one is printed.
const NEWEST: Target = Target(999);

/// The catalogs of the selected backends. Without a selection, a missing wgpu adapter only leaves its kernels
/// out.
fn catalogs(option: &BackendOption) -> Result<Vec<Box<dyn Catalog>>, KernelsError> {
    let (backend, _adapter) = match option.device {
        None | Some(DeviceSelector::Auto) => (None, None),
        Some(DeviceSelector::Backend(backend)) => (Some(backend), None),
        Some(DeviceSelector::Device(backend, index)) => (Some(backend), Some(index)),
    };
    #[cfg_attr(not(any(feature = "cuda", feature = "wgpu")), expect(unused_mut))]
    let mut all: Vec<Box<dyn Catalog>> = Vec::new();
    #[cfg(feature = "cuda")]
    if backend.is_none_or(|backend| backend == CUDA) {
        all.push(Box::new(cuda::Cuda));
    }
    #[cfg(feature = "wgpu")]
    if backend.is_none_or(|backend| backend == WGPU) {
        match wgpu::Wgpu::new(_adapter) {
            Ok(wgpu) => all.push(Box::new(wgpu)),
            Err(error) if backend.is_some() => return Err(error.into()),
            Err(error) => anstream::eprintln!("the kernels of wgpu are left out: {error}"),
        }
    }
    match backend {
        Some(backend) if all.is_empty() => Err(KernelsError::NoSources { backend }),
        _ => Ok(all),
    }
}

fn list(args: &ListArgs) -> Result<(), KernelsError> {
    let kernels: Vec<Kernel> =
        catalogs(&args.backend)?.iter().flat_map(|catalog| catalog.kernels()).collect();
    if args.json {
        return Ok(print(&json(&serde_json::json!({ "kernels": kernels })))?);
    }
    let rows: Vec<[String; 4]> = kernels
        .iter()
        .map(|kernel| {
            let targets = kernel.targets.join(" ");
            [kernel.name.clone(), kernel.backend.clone(), targets, kernel.about.clone()]
        })
        .collect();
    let out = left_columns(["kernel", "backend", "targets", "about"], &rows);
    Ok(print(&(out + &counted(kernels.len(), "kernel") + "\n"))?)
}

/// A table with left-aligned columns.
fn left_columns<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> String {
    let header = header.map(str::to_owned);
    let width =
        |at: usize| rows.iter().chain([&header]).map(|row| row[at].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &w)| format!("{cell:<w$}")).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    [&header].into_iter().chain(rows).map(line).collect()
}

fn show(args: &ShowArgs) -> Result<(), KernelsError> {
    let catalogs = catalogs(&args.backend)?;
    if args.target.is_some() && !catalogs.iter().any(|catalog| catalog.backend() == CUDA) {
        return Err(KernelsError::TargetWithoutCuda);
    }
    let mut names = Vec::new();
    for catalog in &catalogs {
        let kernels = catalog.kernels();
        let Some(kernel) = kernels.iter().find(|kernel| kernel.name == args.name) else {
            names.extend(kernels.into_iter().map(|kernel| kernel.name));
            continue;
        };
        let Some(source) = catalog.source(&kernel.name, args.target) else {
            let target = args.target.unwrap_or(NEWEST).0;
            let (name, targets) = (kernel.name.clone(), kernel.targets.clone());
            return Err(KernelsError::NoTarget { name, target, targets });
        };
        let output = match args.json {
            true => json(&serde_json::json!({ "kernel": kernel, "source": source })),
            false => source.trim_end().to_owned() + "\n",
        };
        return Ok(print(&output)?);
    }
    Err(KernelsError::Unknown { name: args.name.clone(), similar: similar(&args.name, &names) })
}

/// Up to three names that are close to `name`, the closest first.
fn similar(name: &str, known: &[String]) -> Vec<String> {
    let limit = name.chars().count() / 3 + 1;
    let mut close: Vec<(usize, &String)> = known
        .iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .collect();
    close.sort();
    close.dedup();
    close.into_iter().take(3).map(|(_, candidate)| candidate.clone()).collect()
}

/// How far a name is from that of a kernel, with or without its family: 0 for the name without the family, 1
/// for a prefix, otherwise the edit distance.
fn distance(name: &str, kernel: &str) -> usize {
    let short = kernel.rsplit('/').next().unwrap_or(kernel);
    if short == name {
        return 0;
    }
    if short.starts_with(name) || kernel.starts_with(name) {
        return 1;
    }
    strsim::levenshtein(name, kernel).min(strsim::levenshtein(name, short))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_compute_capabilities() {
        for (text, number) in [("sm_90", 90), ("sm_90a", 90), ("80", 80), ("sm_120", 120)] {
            assert_eq!(text.parse(), Ok(Target(number)));
        }
        for text in ["", "sm_", "sm_9", "hopper", "sm_-1"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    #[test]
    fn close_names_are_found() {
        let known = ["softmax", "rms_norm", "rope", "rope_store"].map(str::to_owned);
        assert_eq!(similar("sofmax", &known), ["softmax"]);
        assert_eq!(similar("rop", &known), ["rope", "rope_store"]);
        assert!(similar("attention", &known).is_empty());
        let known = ["elementwise/fill", "attention/prefill_tiled", "copy/vectors"].map(str::to_owned);
        assert_eq!(similar("fill", &known), ["elementwise/fill"]);
        assert_eq!(similar("copy", &known), ["copy/vectors"]);
    }
}
