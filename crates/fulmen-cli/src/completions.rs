//! `fulmen completions`: completion scripts for shells.

use std::io;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::error::CommandError;
use crate::output::print;

/// Print a completion script for a shell.
///
/// Load it in the shell's start-up file, or save it where the shell looks for completions. The packages for
/// Linux install it already.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The shell to complete for.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  fulmen completions bash > ~/.local/share/bash-completion/completions/fulmen
  fulmen completions zsh > ~/.zfunc/_fulmen              with ~/.zfunc in $fpath, before compinit
  fulmen completions fish > ~/.config/fish/completions/fulmen.fish
  fulmen completions powershell >> $PROFILE              in PowerShell";

/// The script cannot be printed.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the completion script: {0}")]
pub(crate) struct CompletionsError(#[from] io::Error);

impl CommandError for CompletionsError {}

pub(crate) fn run(args: &Args) -> Result<(), CompletionsError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible_commands(), "fulmen", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(())
}

/// The command without its hidden subcommands, which the scripts of some shells would offer.
fn visible_commands() -> clap::Command {
    let all = crate::Cli::command();
    let visible = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    clap::Command::new("fulmen")
        .version(crate::version::VERSION)
        .propagate_version(true)
        .args(all.get_arguments())
        .subcommands(visible)
}
