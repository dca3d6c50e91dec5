//! `fulmen ops`: the op table on a device.

mod check;
mod list;
mod perf;

use std::io;

use clap::Subcommand;
use fulmen_core::DType;
use fulmen_core::device::{BackendKind, DeviceInfo, DeviceSelector};
use fulmen_model::Device;
use fulmen_testkit::table::ops;
use fulmen_testkit::{Filter, gpu_ops};
use fulmen_wgpu::{AdapterSelector, GpuDevice, GpuError};

use crate::select::{OpenOption, SelectError};

/// List, check and time every op of a device.
///
/// All three work from one table of cases: every op with its shapes (odd ones and those of real models) and types. A case
/// is run as a model's graph is run and compared with a reference in f64. `check` on a wgpu device runs a second table, too:
/// the operations of the command batch and of the matmul cache.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: OpsCommand,
}

const EXAMPLES: &str = "\
Examples:
  fulmen ops list                        the ops, how many cases each has, and their types
  fulmen ops check                       every case on the best device
  fulmen ops check --op mul_mat --dtype q4_k --device cpu
  fulmen ops check --device wgpu         graphs, the command batch and the matmul cache on a GPU
  fulmen ops perf                        the shapes of real models, beside what memory and arithmetic allow";

// Each subcommand's help is the doc comment of its arguments.
#[derive(Debug, Subcommand)]
enum OpsCommand {
    List(list::Args),
    Check(check::Args),
    Perf(perf::Args),
}

/// Which rows of the table are taken.
#[derive(Debug, clap::Args)]
struct Rows {
    /// Take rows of this op only; may be given several times.
    #[arg(long = "op", value_name = "OP", value_parser = known_op)]
    ops: Vec<String>,

    /// Take rows about this type only (f32, q4_k, …); may be given several times.
    #[arg(long = "dtype", value_name = "TYPE")]
    dtypes: Vec<DType>,

    /// Take rows whose name contains this, e.g. `qwen3` or `m1/`.
    #[arg(long, value_name = "TEXT", default_value = "")]
    name: String,
}

impl Rows {
    fn filter(&self) -> Filter {
        let Rows { ops, dtypes, name } = self;
        Filter { ops: ops.clone(), dtypes: dtypes.clone(), name: name.clone(), up_to: None }
    }
}

fn known_op(name: &str) -> Result<String, String> {
    let (known, of_gpus) = (ops(), gpu_ops());
    if known.contains(&name) || of_gpus.contains(&name) {
        return Ok(name.to_owned());
    }
    Err(format!(
        "there is no op {name:?} in the tables; graphs have {}; the command batch of wgpu devices has {}",
        known.join(", "),
        of_gpus.join(", ")
    ))
}

/// The device and what belongs to a run on it.
#[derive(Debug, clap::Args)]
struct RunOptions {
    #[command(flatten)]
    open: OpenOption,

    /// Draw the data from this seed. Without it another one is taken each time, and printed.
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

    /// The wgpu adapter that is asked for, opened, and what is known of it; `None` where another device is asked for.
    fn open_gpu(&self) -> Result<Option<(DeviceInfo, GpuDevice)>, OpsError> {
        let adapter = match self.open.device.device {
            DeviceSelector::Backend(BackendKind::Wgpu) => AdapterSelector::Best,
            DeviceSelector::Device(BackendKind::Wgpu, index) => AdapterSelector::Index(index),
            _ => return Ok(None),
        };
        let gpu = GpuDevice::open(&adapter)?;
        let same = |info: &DeviceInfo| match &adapter {
            AdapterSelector::Index(index) => info.index == *index,
            _ => info.name == gpu.info().name,
        };
        let info = fulmen_wgpu::list_devices()?.into_iter().find(same);
        Ok(info.map(|info| (info, gpu)))
    }

    /// The device that is asked for, opened.
    fn open(&self) -> Result<(DeviceInfo, Device), OpsError> {
        Ok(self.open.open()?)
    }
}

/// Why `fulmen ops` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpsError {
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error("no row of the table has this op, type and name; `fulmen ops list` shows what there is")]
    NoRows,
    #[error("{bad} of {rows} rows are not right")]
    Bad { bad: usize, rows: usize },
    #[error("the ceiling of this device could not be measured: {0}")]
    Ceiling(String),
    #[error("the results could not be written: {0}")]
    Write(#[from] io::Error),
}

pub(crate) fn run(args: &Args) -> Result<(), OpsError> {
    match &args.command {
        OpsCommand::List(args) => list::run(args),
        OpsCommand::Check(args) => check::run(args),
        OpsCommand::Perf(args) => perf::run(args),
    }
}

/// Types in the order of [`DType::ALL`], in lower case, as the options take them.
fn type_name(dtype: DType) -> String {
    dtype.name().to_lowercase()
}

/// A bar on stderr that is shown on a terminal and nowhere else.
pub(crate) fn progress_bar(len: usize) -> indicatif::ProgressBar {
    let bar = indicatif::ProgressBar::new(len as u64);
    let style = indicatif::ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}
