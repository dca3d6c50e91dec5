//! The `fulmen` command: arguments and dispatch. Each subcommand has a file of its own.

mod bench;
mod chat;
mod completions;
mod config;
mod devices;
mod doctor;
mod error;
#[cfg(feature = "wgpu")]
mod gpu_option;
mod inspect;
mod kernels;
mod man;
mod model;
mod models;
mod ops;
mod output;
mod progress;
#[cfg(feature = "server")]
mod ps;
#[cfg(feature = "hub")]
mod pull;
mod quantize;
mod quiet;
#[cfg(feature = "server")]
mod remote;
mod run;
mod select;
#[cfg(feature = "server")]
mod serve;
mod synth;
mod tokenize;
#[cfg(feature = "wgpu")]
mod tune;
mod version;
mod wrap;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use error::Failure;
use fulmen_core::timeline;

/// Run large language models on the CPU, on any GPU through wgpu, and at full speed on NVIDIA GPUs through
/// CUDA.
#[derive(Debug, Parser)]
#[command(name = "fulmen", version = version::VERSION, long_version = version::long())]
#[command(propagate_version = true)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    global: config::GlobalOptions,

    #[command(subcommand)]
    command: Command,

    /// Show what drivers write to stderr, and how long each part of loading took (also FULMEN_LOG=1).
    #[arg(long, short, global = true, help_heading = "Global options")]
    verbose: bool,
}

// Each subcommand's help is the doc comment of its arguments.
#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::Args),
    Chat(chat::Args),
    Completions(completions::Args),
    Config(config::Args),
    Devices(devices::Args),
    Doctor(doctor::Args),
    Inspect(inspect::Args),
    Kernels(kernels::Args),
    List(models::ListArgs),
    #[command(hide = true)]
    Man(man::Args),
    Ops(ops::Args),
    #[cfg(feature = "hub")]
    Pull(pull::Args),
    #[cfg(feature = "server")]
    Ps(ps::PsArgs),
    Quantize(quantize::Args),
    Rm(models::RmArgs),
    Run(run::Args),
    #[cfg(feature = "server")]
    Serve(serve::Args),
    Show(models::ShowArgs),
    #[cfg(feature = "server")]
    Stop(ps::StopArgs),
    #[command(hide = true)]
    Synth(synth::Args),
    Tokenize(tokenize::Args),
    #[cfg(feature = "wgpu")]
    Tune(tune::Args),
    Version(version::Args),
}

const EXAMPLES: &str = "\
Examples:
  fulmen run \"Once upon a time\"     try it with the small built-in model
  fulmen pull ORG/NAME              download a model from Hugging Face
  fulmen run MODEL PROMPT           answer a prompt
  fulmen chat MODEL                 hold a conversation
  fulmen serve MODEL                serve a model over HTTP, with a chat page
  fulmen list                       list downloaded models; `fulmen rm` removes one
  fulmen config show                show the settings and where they come from
  fulmen devices                    list devices, and the one that `auto` selects
  fulmen devices --json             the same for scripts
  fulmen doctor                     check this machine, and say what would make it faster
  fulmen inspect model.gguf         show what a model file contains and whether it fits
  fulmen quantize IN OUT --type q4_k_m
                                    store a model in smaller types
  fulmen tokenize MODEL TEXT        show the tokens of a text
  fulmen ops check                  check every kernel of a device
  fulmen ops perf                   time every op of a device
  fulmen kernels show NAME          print the final WGSL or PTX of a kernel
  fulmen bench decode --shape qwen3-4b
                                    time decode steps of a model, kernel by kernel
  fulmen bench matmul               time matmuls on a GPU
  fulmen tune                       find the fastest matmul kernels for this GPU
  fulmen completions bash           print a completion script for a shell
  fulmen version                    show what this command was built from and for
  fulmen help bench decode          the options of one command

Exit status: 0 for success, 1 for a failure, 2 for wrong usage, 128 + N after signal N (Ctrl-C: 130).";

impl Command {
    /// Returns the exit code.
    fn run(self) -> Result<i32, Failure> {
        match self {
            Command::Bench(args) => bench::run(&args)?,
            Command::Chat(args) => chat::run(&args)?,
            Command::Completions(args) => completions::run(&args)?,
            Command::Config(args) => config::run(&args)?,
            Command::Devices(args) => devices::run(&args)?,
            Command::Doctor(args) => return Ok(doctor::run(&args)?),
            Command::Inspect(args) => inspect::run(&args)?,
            Command::Kernels(args) => kernels::run(&args)?,
            Command::List(args) => models::list(&args)?,
            Command::Man(args) => man::run(&args)?,
            Command::Ops(args) => ops::run(&args)?,
            #[cfg(feature = "hub")]
            Command::Pull(args) => pull::run(&args)?,
            #[cfg(feature = "server")]
            Command::Ps(args) => ps::ps(&args)?,
            Command::Rm(args) => return Ok(models::rm(&args)?),
            #[cfg(feature = "server")]
            Command::Serve(args) => serve::run(&args)?,
            Command::Show(args) => models::show(&args)?,
            #[cfg(feature = "server")]
            Command::Stop(args) => ps::stop(&args)?,
            Command::Synth(args) => synth::run(&args)?,
            Command::Tokenize(args) => tokenize::run(&args)?,
            Command::Quantize(args) => return Ok(quantize::run(&args)?),
            Command::Run(args) => return Ok(run::run(&args)?),
            #[cfg(feature = "wgpu")]
            Command::Tune(args) => tune::run(&args)?,
            Command::Version(args) => version::run(&args)?,
        }
        Ok(0)
    }
}

fn main() -> ExitCode {
    let cli = match config::parse::<Cli>() {
        Ok(cli) => cli,
        Err(error) => return Failure::from(error).report(),
    };
    quiet::install(cli.verbose);
    cli.global.set_color();
    let done = cli.command.run();
    let spans = timeline::spans();
    if !spans.is_empty() {
        output::tell(&format!("\n{}", timeline::table(&spans).trim_end()));
    }
    match done {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_well_formed() {
        super::Cli::command().debug_assert();
    }

    /// Every command that can be run, below one.
    fn leaves(command: &clap::Command, path: String, found: &mut Vec<(String, clap::Command)>) {
        if command.get_subcommands().next().is_none() {
            found.push((path.clone(), command.clone()));
        }
        for below in command.get_subcommands() {
            leaves(below, format!("{path} {}", below.get_name()), found);
        }
    }

    #[test]
    fn every_command_has_examples() {
        let mut commands = Vec::new();
        leaves(&super::Cli::command(), "fulmen".to_owned(), &mut commands);
        assert!(commands.len() > 12);
        for (path, command) in commands {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("  {path}")), "{path} has no example:\n{help}");
        }
    }

    /// One name for one thing: an option with a well-known meaning is called the same in every command.
    #[test]
    fn old_option_names_are_hidden_aliases() {
        let mut commands = Vec::new();
        leaves(&super::Cli::command(), "fulmen".to_owned(), &mut commands);
        for (path, command) in commands {
            for argument in command.get_arguments() {
                let visible = argument.get_long_and_visible_aliases().unwrap_or_default();
                for old in ["ctx", "temp", "thinking", "pp", "tg", "no-answer"] {
                    assert!(!visible.contains(&old), "{path} --{old}");
                }
            }
        }
    }
}
