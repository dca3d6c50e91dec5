//! `fulmen man`: the manual pages, one per command.

use std::io;
use std::path::PathBuf;

use clap::CommandFactory;

use crate::error::CommandError;

/// Write the manual pages into a folder.
///
/// One page per command: `fulmen.1`, `fulmen-run.1`, `fulmen-bench-decode.1` and so on. Packages install them
/// into `share/man/man1`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The folder to write to. It is created if it does not exist; pages in it are overwritten.
    #[arg(value_name = "DIR")]
    out: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  fulmen man ~/.local/share/man/man1";

/// The pages cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the manual pages to {}: {error}", folder.display())]
pub(crate) struct ManError {
    folder: PathBuf,
    error: io::Error,
}

impl CommandError for ManError {}

pub(crate) fn run(args: &Args) -> Result<(), ManError> {
    let folder = &args.out;
    // The long version says what this machine has.
    let command = crate::Cli::command().long_version(None);
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .map_err(|error| ManError { folder: folder.clone(), error })
}
