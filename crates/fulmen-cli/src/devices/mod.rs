//! `fulmen devices`: the devices of this machine, as text or as JSON.

pub(crate) mod json;
pub(crate) mod text;

use std::io;

use crate::error::CommandError;
use crate::output::print;
use crate::select::{self, DeviceOption, SelectError};

/// List the devices of this machine, what they can do, and which one is selected.
///
/// Every device of every backend is listed, usable or not; a backend without devices is listed with the
/// reason. The device that --device selects is marked with `*`. If no device can be selected, the list is
/// printed as well, and the exit status is 1 for a device that cannot be used and 2 for one that does not
/// exist.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    device: DeviceOption,

    /// Print the list as JSON, with sizes in bytes.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen devices
  fulmen devices --device wgpu           which device would --device wgpu select?
  fulmen devices --json | jq -r .taken";

/// Why the list could not be printed, or no device could be selected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DevicesError {
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error("cannot write the list of devices: {0}")]
    Write(#[from] io::Error),
}

impl CommandError for DevicesError {
    fn is_usage(&self) -> bool {
        match self {
            DevicesError::Select(error) => error.is_usage(),
            DevicesError::Write(_) => false,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), DevicesError> {
    let reports = select::reports();
    let asked = args.device.device;
    let selected = select::choose(&reports, asked);
    let output = match args.json {
        true => json::render(&reports, asked, selected.as_ref().ok().copied()),
        false => text::render(&reports, asked, selected.as_ref().ok().copied()),
    };
    print(&output)?;
    selected?;
    Ok(())
}
