//! `fulmen bench parallel`.

use fulmen_bench::model::{DecodeOptions, Link, ParallelTimes, bench_rank};
use fulmen_core::device::format_bytes;
use serde::Serialize;

use super::BenchCommandError;
use super::random_model::RandomModelOptions;
use crate::output::{columns, json, print};
use crate::progress::with_bar;

/// Predict decoding by tensor parallelism on several devices, from one of them.
///
/// A model of random weights is divided among ranks, and the part of one rank runs on the device: those times
/// are measured. The collectives of a step are added by a model: a latency that grows with the ranks, and
/// bytes over the bandwidth of the link. The speeds of links are assumptions; --link-latency and
/// --link-bandwidth replace them by measured ones, such as those of `fulmen bench collective`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    model: RandomModelOptions,

    /// Numbers of ranks, separated by commas.
    #[arg(long, value_name = "RANKS", value_delimiter = ',', default_value = "1,2,4,8")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: Vec<u32>,

    /// What connects the devices: nvlink, pcie or ib (InfiniBand).
    #[arg(long, value_name = "LINK", default_value = "nvlink", value_parser = link)]
    link: Link,

    /// Time of a small collective of 2 ranks in µs, instead of the assumed one.
    #[arg(long, value_name = "MICROSECONDS", value_parser = positive)]
    link_latency: Option<f64>,

    /// Bandwidth of collectives in GB/s, instead of the assumed one.
    #[arg(long, value_name = "GB/S", value_parser = positive)]
    link_bandwidth: Option<f64>,

    /// Tokens in the KV cache before the first step, separated by commas.
    #[arg(long, alias = "context", value_name = "TOKENS", value_delimiter = ',', default_value = "1024")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    depth: Vec<u32>,

    /// Number of sequences that decode together, separated by commas.
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    batch: Vec<u32>,

    /// Decode steps per run.
    #[arg(long, value_name = "STEPS", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=16_384))]
    steps: u16,

    /// Number of timed runs of each test.
    #[arg(long, short, value_name = "COUNT", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeat: u16,

    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen bench parallel --shape qwen3-8b --ranks 1,2,4,8 --link nvlink
  fulmen bench parallel --shape qwen3-8b --type q8_0 --batch 1,16 --link pcie
  fulmen bench parallel --shape qwen3-8b --link nvlink --link-latency 9.5 --link-bandwidth 280";

fn link(text: &str) -> Result<Link, String> {
    let found = Link::KNOWN.into_iter().find(|link| link.name == text);
    found.ok_or_else(|| "the link can be nvlink, pcie or ib".to_owned())
}

fn positive(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok().filter(|&number: &f64| number > 0.0 && number < 1e9);
    number.ok_or_else(|| "expected a number above 0".to_owned())
}

/// Field names are those of the JSON output: add, do not rename.
#[derive(Serialize)]
struct Report {
    device: String,
    name: String,
    shape: &'static str,
    #[serde(rename = "type")]
    recipe: String,
    layers: usize,
    link: Link,
    tests: Vec<ParallelTimes>,
    /// Numbers of ranks that the model cannot be divided among, and why.
    refused: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<(), BenchCommandError> {
    let link = args.link();
    let options = DecodeOptions {
        depths: args.depth.clone(),
        batches: args.batch.clone(),
        steps: args.steps,
        steps_ahead: 1,
        repeat: args.repeat,
        session: args.model.engine.session(0),
    };
    let (mut tests, mut refused, mut device) = (Vec::new(), Vec::new(), None);
    for &ranks in &args.ranks {
        let loaded = match args.model.load_rank(ranks, options.session_options()) {
            Ok(loaded) => loaded,
            Err(error) if error.is_sharding() => {
                refused.push(error.to_string());
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        tests.extend(with_bar(|progress| bench_rank(&loaded, ranks, &options, &link, progress))?);
        device.get_or_insert(loaded.device);
    }
    let shape = args.model.shape();
    let (device, name) =
        device.map_or_else(Default::default, |device| (device.selector().to_string(), device.name));
    let (recipe, layers) = (args.model.recipe().to_string(), shape.layers);
    let report = Report { device, name, shape: shape.name, recipe, layers, link, tests, refused };
    Ok(print(&if args.json { json(&report) } else { text(&report) })?)
}

impl Args {
    /// The link, with what was measured of it.
    fn link(&self) -> Link {
        let link = self.link;
        let base_us = self.link_latency.map_or(link.base_us, |us| (us - link.hop_us).max(0.0));
        let bytes_per_second = self.link_bandwidth.map_or(link.bytes_per_second, |rate| 1e9 * rate);
        Link { base_us, bytes_per_second, ..link }
    }
}

fn text(report: &Report) -> String {
    let row = |test: &ParallelTimes| {
        let alone = report
            .tests
            .iter()
            .find(|other| (other.ranks, other.depth, other.batch) == (1, test.depth, test.batch));
        vec![
            test.ranks.to_string(),
            test.depth.to_string(),
            test.batch.to_string(),
            format_bytes(test.rank_weight_bytes),
            format!("{:.1}", test.rank_us),
            (test.collectives.all_reduces + test.collectives.all_gathers).to_string(),
            format!("{:.1}", test.collectives_us),
            format!("{:.1}", test.step_us),
            format!("{:.1}", test.tokens_per_second),
            alone.map_or(String::new(), |alone| format!("{:.2}×", alone.step_us / test.step_us)),
        ]
    };
    let rows: Vec<Vec<String>> = report.tests.iter().map(row).collect();
    let header = [
        "ranks",
        "depth",
        "batch",
        "weights",
        "rank µs",
        "collectives",
        "their µs",
        "step µs",
        "tok/s",
        "speedup",
    ];
    let Link { name, base_us, hop_us, bytes_per_second } = report.link;
    let refused: String = report.refused.iter().map(|reason| format!("{reason}\n")).collect();
    format!(
        "{}\n{refused}Measured: the part of one rank, on {} ({}). Model: collectives over {name}, {base_us} \
         + {hop_us} · log2(ranks) µs and {} GB/s.\n{} {}, {} layers\n",
        columns(&header, &rows),
        report.device,
        report.name,
        bytes_per_second / 1e9,
        report.shape,
        report.recipe,
        report.layers,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_known_by_their_names() {
        for name in ["nvlink", "pcie", "ib"] {
            assert_eq!(link(name).unwrap().name, name);
        }
        assert_eq!(link("usb"), Err("the link can be nvlink, pcie or ib".to_owned()));
        assert!(positive("0").is_err() && positive("nan").is_err() && positive("9.5") == Ok(9.5));
    }
}
