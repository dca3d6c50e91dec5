//! `fulmen ops`: the op table on a device.

mod check;
mod list;
mod perf;

use std::io;

use clap::Subcommand;
use fulmen_core::DType;
use fulmen_core::device::DeviceInfo;
use fulmen_model::Device;
use fulmen_testkit::Filter;
use fulmen_testkit::table::ops;

use crate::select::{OpenOption, SelectError};

/// List, check and time every op of a device.
///
/// All three work from one table of cases: every op with its shapes (odd ones and those of real models) and types. A case
/// is run as a model's graph is run and compared with a reference in f64.
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
    let known = ops();
    if known.contains(&name) {
        return Ok(name.to_owned());
    }
    Err(format!("there is no op {name:?} in the table; there are {}", known.join(", ")))
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
