//! `fulmen ops`: lists, checks and times the ops of a device.

mod check;
mod list;
mod perf;

use std::io;

use clap::Subcommand;
use fulmen_bench::BenchError;
use fulmen_core::DType;
use fulmen_core::device::DeviceInfo;
use fulmen_engine::Device;
use fulmen_testkit::Filter;
use fulmen_testkit::table::ops;
#[cfg(feature = "wgpu")]
use fulmen_wgpu::{AdapterSelector, GpuDevice, GpuError};

use crate::error::CommandError;
use crate::select::{OpenOption, SelectError};
#[cfg(feature = "wgpu")]
use crate::{gpu_option::wgpu_adapter, quiet::quietly};

/// List, check and time every op of a device.
///
/// All three use one table of cases: every op with its shapes (odd ones and those of real models) and types.
/// A case runs in the same way as the graph of a model, and its result is compared with a reference in f64.
/// On wgpu devices `check` also runs a second table: the ops of the command batch and of the matmul cache.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: OpsCommand,
}

const EXAMPLES: &str = "\
Examples:
  fulmen ops list                        list the ops with their types and number of cases
  fulmen ops check                       check every case on the best device
  fulmen ops check --op mul_mat --dtype q4_k --device cpu
  fulmen ops check --device wgpu         check graphs, command batch and matmul cache on a GPU
  fulmen ops perf                        time the shapes of real models";

// Each subcommand's help is the doc comment of its arguments.
#[derive(Debug, Subcommand)]
enum OpsCommand {
    List(list::Args),
    Check(check::Args),
    Perf(perf::Args),
}

/// Which cases of the table are selected.
#[derive(Debug, clap::Args)]
struct CaseFilter {
    /// Only cases of this op; may be given several times.
    #[arg(long = "op", value_name = "OP", value_parser = known_op)]
    ops: Vec<String>,

    /// Only cases with this type (f32, q4_k, …); may be given several times.
    #[arg(long = "dtype", value_name = "TYPE")]
    dtypes: Vec<DType>,

    /// Only cases whose name contains this text, such as `qwen3` or `m1/`.
    #[arg(long, value_name = "TEXT", default_value = "")]
    name: String,
}

impl CaseFilter {
    fn filter(&self) -> Filter {
        let CaseFilter { ops, dtypes, name } = self;
        Filter { ops: ops.clone(), dtypes: dtypes.clone(), name: name.clone(), up_to: None }
    }
}

fn known_op(name: &str) -> Result<String, String> {
    let known = ops();
    #[cfg(feature = "wgpu")]
    let of_gpus = fulmen_testkit::gpu_ops();
    #[cfg(not(feature = "wgpu"))]
    let of_gpus: Vec<&str> = Vec::new();
    if known.contains(&name) || of_gpus.contains(&name) {
        return Ok(name.to_owned());
    }
    Err(format!(
        "unknown op {name:?}; ops of graphs are {}; ops of the wgpu command batch are {}",
        known.join(", "),
        of_gpus.join(", ")
    ))
}

/// The device, and the seed of the data.
#[derive(Debug, clap::Args)]
struct RunOptions {
    #[command(flatten)]
    open: OpenOption,

    /// Seed of the random data. By default a new one for each run, which is printed.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
}

impl RunOptions {
    fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(fulmen_testkit::seed)
    }

    fn threads(&self) -> usize {
        self.open.threads()
    }

    #[cfg(feature = "wgpu")]
    /// Opens the selected wgpu adapter; `None` if another device is selected.
    fn open_gpu(&self) -> Result<Option<(DeviceInfo, GpuDevice)>, OpsError> {
        let Some(adapter) = wgpu_adapter(self.open.device.device) else { return Ok(None) };
        let gpu = quietly(|| GpuDevice::open(&adapter))?;
        let same = |info: &DeviceInfo| match &adapter {
            AdapterSelector::Index(index) => info.index == *index,
            _ => info.name == gpu.info().name,
        };
        let info = quietly(fulmen_wgpu::list_devices)?.into_iter().find(same);
        Ok(info.map(|info| (info, gpu)))
    }

    /// Opens the selected device.
    fn open(&self) -> Result<(DeviceInfo, Device), OpsError> {
        Ok(self.open.open()?)
    }
}

/// Why `fulmen ops` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpsError {
    #[error(transparent)]
    Select(#[from] SelectError),
    #[cfg(feature = "wgpu")]
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error("{failed} of {cases} cases failed")]
    Failed { failed: usize, cases: usize },
    #[error("cannot write the results: {0}")]
    Write(#[from] io::Error),
}

impl CommandError for OpsError {
    fn is_usage(&self) -> bool {
        match self {
            OpsError::Select(error) => error.is_usage(),
            #[cfg(feature = "wgpu")]
            OpsError::Gpu(error) => error.is_usage(),
            OpsError::Bench(error) => error.is_usage(),
            OpsError::Failed { .. } | OpsError::Write(_) => false,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), OpsError> {
    match &args.command {
        OpsCommand::List(args) => list::run(args),
        OpsCommand::Check(args) => check::run(args),
        OpsCommand::Perf(args) => perf::run(args),
    }
}
