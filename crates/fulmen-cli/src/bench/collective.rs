//! `fulmen bench collective`.

use std::time::Duration;

use fulmen_bench::collective::{CollectiveOptions, CollectiveTimes, bench_collectives};
use fulmen_core::device::{DeviceSelector, format_bytes};
use fulmen_engine::{Nodes, RankGroup, TensorParallel};
use serde::Serialize;

use super::BenchCommandError;
use crate::model::ranks::{CollectivesOption, RankOptions};
use crate::model::split::{SplitError, parse_bytes};
use crate::output::{columns, json, print};
use crate::select::{OpenOption, parse_device};

/// Time the collectives of tensor parallelism between devices, as a step of a model runs them: many in one
/// captured program.
///
/// Results are checked first. `GB/s` is what each link must move at least, as NCCL's own tests count it. Of
/// several processes, on one machine or on several, each is started with the same --nodes and --rendezvous
/// and its own --node-rank; they need NCCL.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Ranks of this process. By default one for each of --devices, or 2.
    #[arg(long, value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: Option<u32>,

    /// Devices of the ranks of this process, one for each, such as cuda:0,cuda:1.
    #[arg(long, value_name = "DEVICE,…", value_delimiter = ',', value_parser = parse_device)]
    devices: Vec<DeviceSelector>,

    #[command(flatten)]
    open: OpenOption,

    /// What runs them, as for models: auto, host or nccl.
    #[arg(long, value_name = "auto|host|nccl", value_enum, default_value_t, hide_default_value = true)]
    #[arg(hide_possible_values = true)]
    collectives: CollectivesOption,

    /// Bytes of each rank, separated by commas.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = parse_bytes)]
    #[arg(default_value = "4KiB,20KiB,256KiB,4MiB")]
    bytes: Vec<u64>,

    /// Collectives of a program.
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    calls: u16,

    /// Number of timed runs of each program.
    #[arg(long, short, value_name = "COUNT", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    repeat: u16,

    /// Seconds that ranks wait for each other.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=3600))]
    timeout: u16,

    /// Number of processes.
    #[arg(long, value_name = "COUNT", requires = "rendezvous")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=64))]
    nodes: Option<u32>,

    /// Which of the processes this is, from 0.
    #[arg(long, value_name = "NODE", requires = "nodes", default_value_t = 0)]
    node_rank: u32,

    /// Where the processes meet: an address of node 0, which listens there.
    #[arg(long, value_name = "HOST:PORT", requires = "nodes")]
    rendezvous: Option<String>,

    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen bench collective --devices cuda:0,cuda:1
  fulmen bench collective --device cuda:0 --ranks 1 --collectives nccl   what NCCL costs in a captured step
  fulmen bench collective --device cpu --ranks 2                         through the memory of the host
  fulmen bench collective --device cuda:0 --ranks 1 --nodes 2 --node-rank 0 --rendezvous 10.0.0.1:29500
  fulmen bench collective --device cuda:0 --ranks 1 --nodes 2 --node-rank 1 --rendezvous 10.0.0.1:29500";

/// Field names are those of the JSON output: add, do not rename.
#[derive(Serialize)]
struct Report {
    device: String,
    collectives: String,
    calls: usize,
    tests: Vec<CollectiveTimes>,
}

pub(super) fn run(args: &Args) -> Result<(), BenchCommandError> {
    let ranks = args.ranks.or(args.devices.is_empty().then_some(2));
    let options = RankOptions::new(ranks, args.devices.clone(), args.collectives);
    let opened = options.open(args.open.device.device, args.open.asked_threads())?;
    let Some((info, devices)) = opened else { return Ok(()) };
    let timeout = Duration::from_secs(args.timeout.into());
    let parallel = TensorParallel { devices, timeout, collectives: options.collectives() };
    let timed =
        CollectiveOptions { bytes: args.bytes.clone(), calls: args.calls.into(), repeat: args.repeat.into() };
    let mut group = match (args.nodes, &args.rendezvous) {
        (Some(count), Some(address)) => {
            let nodes = Nodes { count, node: args.node_rank, address: address.clone(), timeout };
            let mut group = RankGroup::join_nodes(parallel, &nodes, timed.fingerprint())?;
            group.watch_nodes()?;
            group
        }
        _ => RankGroup::join(parallel)?,
    };
    let tests = bench_collectives(&mut group, &timed)?;
    let collectives = group.collectives.to_string();
    let device = info.selector().to_string();
    let report = Report { device, collectives, calls: timed.calls, tests };
    Ok(print(&if args.json { json(&report) } else { text(&report) })?)
}

fn text(report: &Report) -> String {
    let row = |test: &CollectiveTimes| {
        vec![
            test.op.to_owned(),
            format_bytes(test.bytes),
            test.ranks.to_string(),
            format!("{:.2}", test.us),
            format!("{:.2}", test.bus_bytes_per_second / 1e9),
            test.launches.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = report.tests.iter().map(row).collect();
    let table = columns(&["collective", "bytes", "ranks", "µs", "GB/s", "launches"], &rows);
    let Report { device, collectives, calls, .. } = report;
    format!(
        "{table}\n{calls} collectives in a program, by {collectives}; rank 0 of this process on {device}\n"
    )
}

impl From<SplitError> for BenchCommandError {
    fn from(error: SplitError) -> BenchCommandError {
        BenchCommandError::Load(error.into())
    }
}
