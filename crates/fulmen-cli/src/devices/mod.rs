//! `fulmen devices`: what this machine has, as text or as JSON.

mod json;
mod text;

use std::io;

use crate::output::print;
use crate::select::{self, DeviceOption, SelectError};

/// List the devices of this machine, what they can do, and which one is taken.
///
/// Every device of every backend is listed, usable or not, and for each backend without devices the reason. The one
/// that `--device` takes is marked with `*`. If it takes none, the list is printed all the same and the exit code is 1.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    device: DeviceOption,

    /// Print JSON: sizes in bytes, numbers as numbers.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen devices
  fulmen devices --device wgpu      does wgpu have a device to take, and which?
  fulmen devices --json | jq -r .taken";

/// Why the list could not be printed, or no device be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DevicesError {
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error("the list of devices could not be written: {0}")]
    Write(#[from] io::Error),
}

pub(crate) fn run(args: &Args) -> Result<(), DevicesError> {
    let reports = select::reports();
    let asked = args.device.device;
    let taken = select::choose(&reports, asked);
    let output = match args.json {
        true => json::render(&reports, asked, taken.as_ref().ok().copied()),
        false => text::render(&reports, asked, taken.as_ref().ok().copied()),
    };
    print(&output)?;
    taken?;
    Ok(())
}
