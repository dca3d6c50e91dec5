//! The `fulmen` command: arguments and dispatch. Each subcommand has a file of its own.

mod bench;
mod chat;
mod devices;
mod inspect;
mod model;
mod ops;
mod output;
mod pull;
mod quantize;
mod quiet;
mod run;
mod select;
mod synth;
mod tokenize;
mod tune;

use std::{error::Error, process::ExitCode};

use clap::{Parser, Subcommand};

/// A GPU execution engine for neural networks: on the processor, on any GPU, and at full speed on NVIDIA.
#[derive(Debug, Parser)]
#[command(name = "fulmen", version, propagate_version = true, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

// Each subcommand's help is the doc comment of its arguments.
#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::Args),
    Chat(chat::Args),
    Devices(devices::Args),
    Inspect(inspect::Args),
    Ops(ops::Args),
    Pull(pull::Args),
    Quantize(quantize::Args),
    Run(run::Args),
    #[command(hide = true)]
    Synth(synth::Args),
    Tokenize(tokenize::Args),
    Tune(tune::Args),
}

const EXAMPLES: &str = "\
Examples:
  fulmen pull ORG/NAME         a model from Hugging Face
  fulmen run MODEL PROMPT      an answer from a model
  fulmen chat MODEL            a conversation
  fulmen devices               what this machine has, and what `auto` takes
  fulmen devices --json        the same for programs
  fulmen inspect model.gguf    what is in this file, and does it fit?
  fulmen quantize IN OUT --type q4_k_m
                               the model in smaller types
  fulmen ops check             is every kernel of this device right?
  fulmen ops perf              how fast is it, and how fast could it be?
  fulmen bench batch           how fast is the command batch on this GPU?
  fulmen tokenize MODEL TEXT   the tokens of a text, as a model sees it
  fulmen bench matmul          how fast are products by weights on this GPU?
  fulmen bench decode --shape qwen3-4b
                               how fast would this model be here, and where does the time go?
  fulmen tune                  measure kernels on this GPU and remember the fastest
  fulmen help devices          the options of one command

Exit codes: 0 done, 1 failed, 2 wrong usage.";

impl Command {
    /// Gives the exit code.
    fn run(self) -> Result<i32, Box<dyn Error>> {
        match self {
            Command::Bench(args) => bench::run(&args)?,
            Command::Chat(args) => chat::run(&args)?,
            Command::Devices(args) => devices::run(&args)?,
            Command::Inspect(args) => inspect::run(&args)?,
            Command::Ops(args) => ops::run(&args)?,
            Command::Pull(args) => pull::run(&args)?,
            Command::Synth(args) => synth::run(&args)?,
            Command::Tokenize(args) => tokenize::run(&args)?,
            Command::Quantize(args) => return Ok(quantize::run(&args)?),
            Command::Run(args) => return Ok(run::run(&args)?),
            Command::Tune(args) => tune::run(&args)?,
        }
        Ok(0)
    }
}

fn main() -> ExitCode {
    quiet::quiet_drivers();
    match Cli::parse().command.run() {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            let style = clap::builder::Styles::styled();
            let style = style.get_error();
            anstream::eprintln!("{style}error:{style:#} {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_well_formed() {
        super::Cli::command().debug_assert();
    }
}
