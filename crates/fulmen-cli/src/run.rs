//! `fulmen run`: answers one prompt.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use fulmen_bench::model::LoadedModel;
use fulmen_core::clock::Instant;
use fulmen_core::timeline;
use fulmen_engine::generation::FinishReason;
use fulmen_engine::{Generated, Generation, Model, SessionOptions};
use fulmen_model::ModelError;
use serde_json::json;

use crate::config;
use crate::error::CommandError;
use crate::model::constraint::{ConstraintOptionError, ConstraintOptions};
use crate::model::find::{FindError, find, is_builtin, is_model};
use crate::model::input::{self, InputError};
use crate::model::interrupt::{self, CancelOnCtrlC};
use crate::model::load::{LoadError, ModelOptions};
use crate::model::memory;
use crate::model::prompt::{PromptError, PromptOptions};
use crate::model::sampling::SamplingOptions;
use crate::model::split::cpu_expert_layers;
use crate::model::stats;
use crate::output::{print, tell, tell_dimmed};
use crate::progress::prefill_spinner;
use crate::wrap::Wrapped;

/// Answer a prompt with a model.
///
/// The answer is printed while it is generated. The prompt is an argument, the text of files (--file) and
/// what is piped into the command, in this order, with a blank line between them. Chat models get it as a
/// user message, unless --raw is given. The small built-in model continues it as a story, and tells one of
/// its own without a prompt.
///
/// A pipe gets exactly the text of the answer, without a line break at its end.
///
/// With --schema, --grammar or --regex the answer always matches, as far as --max-tokens and the context
/// let it come to its end.
///
/// The line after the answer shows the speed. "80 % of the memory-bandwidth bound" means 80 % of the speed at
/// which a decode step would only read all weights and the KV cache once, at the memory bandwidth measured in
/// the same run.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Model: a GGUF file, a folder with config.json and safetensors files, or the name of a pulled model.
    /// Without it, or as `builtin`, the small built-in model.
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,

    /// Prompt; piped input is added to it.
    #[arg(value_name = "PROMPT")]
    prompt: Option<String>,

    /// Prompt, as an option.
    #[arg(long = "prompt", short = 'p', value_name = "TEXT", conflicts_with = "prompt")]
    prompt_option: Option<String>,

    /// Add the text of a file to the prompt; may be given several times. `-` is standard input.
    #[arg(long = "file", short = 'f', value_name = "FILE")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    prompts: PromptOptions,

    #[command(flatten)]
    sampling: SamplingOptions,

    #[command(flatten)]
    constraint: ConstraintOptions,

    #[command(flatten)]
    options: ModelOptions,

    #[cfg(feature = "server")]
    #[command(flatten)]
    server: crate::remote::AnsweringServer,

    /// Print the time of each op after the answer. Profiling slows generation down.
    #[arg(long)]
    profile: bool,

    /// Print only the answer: no statistics, and not the start of a story.
    #[arg(long, short)]
    quiet: bool,

    /// Print the answer, its tokens and its times as JSON once it is complete.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen run \"Once upon a time\"
  fulmen run model.gguf \"Why is the sky blue?\"
  fulmen run model.gguf --temperature 0 --max-tokens 100 \"Why is the sky blue?\"
  fulmen run model.gguf \"Summarize this:\" -f notes.txt
  cat notes.txt | fulmen run model.gguf \"Summarize this:\"
  fulmen run model.gguf --json \"Hello\" | jq -r .text
  fulmen run model.gguf --schema person.json \"Who wrote Faust?\"
  fulmen run model.gguf --regex \"yes|no\" \"Is the sky blue?\"
  git diff | fulmen run model.gguf --system \"Write a commit message.\"
  fulmen run model.gguf --raw \"Once upon a time\"       continue the text
  fulmen run --server http://127.0.0.1:8080 \"Hello\"    let a running server answer
  fulmen run model.gguf --profile \"Hello\"              show the time of each op";

/// Why `fulmen run` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("no prompt: pass it as an argument or on standard input; `fulmen chat` holds a conversation")]
    NoPrompt,
    #[error("{0}; if this is a prompt, pass it with --prompt")]
    NotAPrompt(FindError),
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Prompt(#[from] PromptError),
    #[error(transparent)]
    Constraint(#[from] ConstraintOptionError),
    #[error(transparent)]
    Model(ModelError),
    #[error("{error}{}", memory::options(error, memory::Leaves::Nothing))]
    Memory { error: ModelError },
    #[error("{error}; --context makes it larger, up to the model's {limit}")]
    TooLong { error: ModelError, limit: u32 },
    #[cfg(feature = "server")]
    #[error(transparent)]
    Remote(#[from] crate::remote::RemoteRunError),
    #[error("cannot write the answer: {0}")]
    Write(#[from] io::Error),
}

impl From<ModelError> for RunError {
    fn from(error: ModelError) -> RunError {
        match memory::is_short(&error) {
            true => RunError::Memory { error },
            false => RunError::Model(error),
        }
    }
}

impl CommandError for RunError {
    fn is_usage(&self) -> bool {
        match self {
            RunError::NoPrompt => true,
            RunError::Input(error) => error.is_usage(),
            RunError::Load(error) => error.is_usage(),
            RunError::Prompt(error) => error.is_usage(),
            RunError::Constraint(error) => error.is_usage(),
            RunError::Model(error) => error.is_usage(),
            #[cfg(feature = "server")]
            RunError::Remote(error) => error.is_usage(),
            _ => false,
        }
    }
}

impl Args {
    /// The model and the prompt. A single argument is a model if it can be one, and otherwise a prompt for
    /// the built-in model.
    /// Without either, the model is that of the configuration, or the built-in one.
    fn model_and_prompt(&self) -> (Option<&Path>, Option<&str>) {
        let option = self.prompt_option.as_deref();
        let (model, prompt) = match (&self.model, &self.prompt) {
            (Some(word), None) if option.is_none() && !is_model(word) => (None, word.to_str()),
            (model, prompt) => (model.as_deref(), prompt.as_deref().or(option)),
        };
        match model {
            Some(model) if is_builtin(model) => (None, prompt),
            model => (model.or_else(|| config::current().default_model()), prompt),
        }
    }
}

/// The whole prompt: argument, files and piped input.
fn whole_prompt(args: &Args, model: Option<&Path>, prompt: Option<&str>) -> Result<String, RunError> {
    let parts = input::parts(prompt, &args.files)?;
    match model {
        Some(_) if parts.is_empty() => Err(RunError::NoPrompt),
        Some(_) => Ok(parts.join("\n\n")),
        // The story model generates the space before the next word.
        None => Ok(parts.join("\n\n").trim_end().to_owned()),
    }
}

/// A session for a prompt of so many tokens: the default context, or a longer one, up to the model's own, if
/// the prompt and an answer need it.
fn fitting(model: &Model, prompt: usize, max_tokens: usize) -> SessionOptions {
    const ANSWER: usize = 2048;
    let options = *model.session_options();
    let needed = prompt.saturating_add(max_tokens.min(ANSWER)).next_multiple_of(1024);
    let longer = u32::try_from(needed).unwrap_or(u32::MAX).min(model.config().context);
    let context = options.context.max(longer);
    SessionOptions { context, ..options }
}

/// Lets a server answer. A single argument is the prompt.
#[cfg(feature = "server")]
fn run_remote(args: &Args, client: &crate::remote::Client) -> Result<i32, RunError> {
    let option = args.prompt_option.as_deref();
    let (model, prompt) = match (&args.model, &args.prompt) {
        (Some(word), None) if option.is_none() => (None, word.to_str()),
        (model, prompt) => (model.as_deref().and_then(Path::to_str), prompt.as_deref().or(option)),
    };
    let format = args.constraint.response_format()?;
    let parts = input::parts(prompt, &args.files)?;
    if parts.is_empty() {
        return Err(RunError::NoPrompt);
    }
    interrupt::install();
    let options = args.sampling.generate();
    options.sampling.validate()?;
    let question = crate::remote::Question {
        model,
        prompt: &parts.join("\n\n"),
        system: args.prompts.chat.system.as_deref(),
        raw: args.prompts.raw,
        think: args.prompts.chat.template.think,
        format,
        options: &options,
        json: args.json,
        quiet: args.quiet,
    };
    Ok(crate::remote::run(client, &question)?)
}

/// Returns the exit code.
pub(crate) fn run(args: &Args) -> Result<i32, RunError> {
    #[cfg(feature = "server")]
    if let Some(client) = args.server.client().map_err(crate::remote::RemoteRunError::from)? {
        return run_remote(args, &client);
    }
    let (model, prompt) = args.model_and_prompt();
    // A wrong name is reported before anybody is asked for a prompt.
    model.map(find).transpose().map_err(|error| match error {
        FindError::NoSuchName { .. } if prompt.is_none() => RunError::NotAPrompt(error),
        error => LoadError::from(error).into(),
    })?;
    let grammar = args.constraint.read()?;
    let prompt = whole_prompt(args, model, prompt)?;
    interrupt::install();
    let options = args.sampling.generate();
    options.sampling.validate()?;
    let loaded = args.options.load(model, args.options.session())?;
    let first = FirstPiece::after_loading();
    let tokens = args.prompts.tokens(&loaded.model, &prompt)?;
    let constraint = grammar.compile(&loaded.model)?;
    let mut session = match args.options.context {
        Some(_) => loaded.model.session()?,
        None => loaded.model.session_with(fitting(&loaded.model, tokens.len(), options.max_tokens))?,
    };
    if args.profile {
        session.start_profile();
    }
    let cancel = CancelOnCtrlC::new(session.cancel_flag());
    let limit = loaded.model.config().context;
    let hint = |error| match error {
        ModelError::PromptTooLong { context, .. } if context < limit => RunError::TooLong { error, limit },
        error => error.into(),
    };
    let mut generation = session.generate_from(&tokens, &options).map_err(hint)?;
    if let Some(constraint) = constraint {
        generation = generation.constrained(constraint);
    }
    let generated = match args.json {
        true => generation.finish(|_| first.arrived()).map(Some).map_err(RunError::from),
        false => {
            // What must match is the answer alone.
            let is_story = model.is_none() && !args.quiet && !grammar.is_some();
            stream(if is_story { prompt.as_str() } else { "" }, generation, &first)
        }
    };
    drop(cancel);
    let Some(generated) = generated? else { return Ok(0) };
    if args.json {
        print(&as_json(model, &loaded, &generated, &tokens, options.sampling.seed))?;
    } else if !args.quiet {
        if io::stdout().is_terminal() {
            tell("");
        }
        tell_dimmed(&stats::line(&loaded, &session, &generated));
    }
    if let Some(profile) = stats::profile(&session) {
        tell(&format!("\n{profile}"));
    }
    Ok(if generated.reason == FinishReason::Cancelled { interrupt::EXIT_CODE } else { 0 })
}

/// The time from a loaded model to the first piece of text, for the timeline.
struct FirstPiece {
    loaded: Instant,
    arrived: Cell<bool>,
}

impl FirstPiece {
    fn after_loading() -> FirstPiece {
        FirstPiece { loaded: Instant::now(), arrived: Cell::new(false) }
    }

    /// Notes the first piece; further ones change nothing.
    fn arrived(&self) {
        if !self.arrived.replace(true) {
            timeline::record("loaded to first text", 0, self.loaded);
        }
    }
}

/// Writes `start`, and then the answer while it is generated; on a terminal, also the end of the last line.
/// `None` if the reader closed the pipe, which is not an error.
fn stream(
    start: &str,
    mut generation: Generation<'_>,
    first: &FirstPiece,
) -> Result<Option<Generated>, RunError> {
    let mut stdout = Wrapped::stdout();
    let mut next = Some(start.to_owned());
    let mut prefill = Some(prefill_spinner(Some(generation.generated().prompt_tokens)));
    while let Some(piece) = next {
        match stdout.push(&piece) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(None),
            result => result?,
        }
        next = generation.next_piece()?;
        first.arrived();
        prefill.take();
    }
    let generated = generation.generated().clone();
    let line_open = io::stdout().is_terminal() && !generated.text.ends_with('\n');
    match stdout.finish(if line_open { "\n" } else { "" }) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(None),
        result => result.map(|()| Some(generated)).map_err(RunError::from),
    }
}

/// Field names here are an interface: add, do not rename.
fn as_json(
    model: Option<&Path>,
    loaded: &LoadedModel,
    generated: &Generated,
    prompt: &[u32],
    seed: u64,
) -> String {
    let (reason, stop) = match &generated.reason {
        FinishReason::EndToken(_) | FinishReason::Complete => ("end", None),
        FinishReason::StopString(text) => ("stop", Some(text)),
        FinishReason::MaxTokens => ("max_tokens", None),
        FinishReason::ContextFull => ("context_full", None),
        FinishReason::Cancelled => ("cancelled", None),
    };
    let fields = [
        ("model", json!(model.map(|model| model.display().to_string()))),
        ("device", json!(loaded.device.selector().to_string())),
        ("device_layers", json!(loaded.model.placement().stages().last().map(|stage| stage.len()))),
        ("cpu_expert_layers", json!(cpu_expert_layers(&loaded.model))),
        ("text", json!(generated.text)),
        ("reason", json!(reason)),
        ("stop", json!(stop)),
        ("seed", json!(seed)),
        ("prompt_tokens", json!(prompt)),
        ("tokens", json!(generated.tokens)),
        ("load_seconds", json!(loaded.load_time.as_secs_f64())),
        ("prefill_seconds", json!(generated.prefill_time.as_secs_f64())),
        ("prefill_tokens_per_second", json!(generated.prefill_rate())),
        ("decode_seconds", json!(generated.decode_time.as_secs_f64())),
        ("decode_tokens_per_second", json!(generated.decode_rate())),
    ];
    // A line per field: lists of tokens would take a line per token.
    let lines: Vec<String> = fields.iter().map(|(name, value)| format!("  \"{name}\": {value}")).collect();
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}
