//! `fulmen run`: an answer to one prompt.

use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use fulmen_model::{FinishReason, Generated, Generation, ModelError};
use serde_json::json;

use crate::model::find::is_model;
use crate::model::interrupt::{self, Answering};
use crate::model::load::{LoadError, Loaded, ModelOptions};
use crate::model::prompt::PromptOptions;
use crate::model::sampling::SamplingOptions;
use crate::model::stats;
use crate::output::print;

/// Answer a prompt with a model.
///
/// The text comes as it is made. A prompt is an argument, or what is piped in. Models that were made for conversations get
/// it as a user's message, unless --raw says otherwise. The small model that is part of the program goes on with it as a story,
/// and without a prompt tells one of its own.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The model: a GGUF file, a folder with config.json and safetensors files, or a name that was pulled. Without it the small
    /// model that is part of the program.
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,

    /// The prompt. Without it, it is read from standard input.
    #[arg(value_name = "PROMPT")]
    prompt: Option<String>,

    /// The prompt, as an option.
    #[arg(long = "prompt", short = 'p', value_name = "TEXT", conflicts_with = "prompt")]
    prompt_option: Option<String>,

    #[command(flatten)]
    prompts: PromptOptions,

    #[command(flatten)]
    sampling: SamplingOptions,

    #[command(flatten)]
    options: ModelOptions,

    /// Show the time of each op at the end. Timing makes it slower.
    #[arg(long)]
    profile: bool,

    /// Print nothing but the answer: no stats, and not how a story began.
    #[arg(long, short)]
    quiet: bool,

    /// Print the answer, its tokens and its times as JSON when it is complete.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen run \"Once upon a time\"
  fulmen run model.gguf \"Why is the sky blue?\"
  fulmen run model.gguf --temp 0 --max-tokens 100 \"Why is the sky blue?\"
  git diff | fulmen run model.gguf --system \"Write a commit message.\"
  fulmen run model.gguf --raw \"Once upon a time\"       go on with the text itself
  fulmen run model.gguf --profile \"Hello\"              where does the time go?";

/// Why `fulmen run` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("no prompt: give it as an argument, or pipe it in; `fulmen chat` is for conversations")]
    NoPrompt,
    #[error("the prompt could not be read from standard input: {0}")]
    Read(io::Error),
    #[error("the prompt on standard input is not UTF-8")]
    NotUtf8,
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("{error}; --ctx makes it larger, up to the model's {limit}")]
    TooLong { error: ModelError, limit: u32 },
    #[error("the answer could not be written: {0}")]
    Write(#[from] io::Error),
}

impl Args {
    /// The model and the prompt. One word alone is a model if it can be one, and else a prompt to the model that is part of the
    /// program.
    fn words(&self) -> (Option<&Path>, Option<&str>) {
        let option = self.prompt_option.as_deref();
        match (&self.model, &self.prompt) {
            (Some(word), None) if option.is_none() && !is_model(word) => (None, word.to_str()),
            (model, prompt) => (model.as_deref(), prompt.as_deref().or(option)),
        }
    }
}

/// Gives the exit code.
pub(crate) fn run(args: &Args) -> Result<i32, RunError> {
    let (model, words) = args.words();
    let prompt = match (words, model) {
        (Some(prompt), Some(_)) => prompt.to_owned(),
        (None, Some(_)) => read_prompt()?.ok_or(RunError::NoPrompt)?,
        // Stories go on with a space of their own.
        (Some(prompt), None) => prompt.trim_end().to_owned(),
        (None, None) => read_prompt()?.unwrap_or_default().trim_end().to_owned(),
    };
    interrupt::install();
    let options = args.sampling.generate();
    options.sampling.validate()?;
    let loaded = args.options.load(model, args.options.session())?;
    let tokens = args.prompts.tokens(&loaded.model, &prompt)?;
    let mut session = loaded.model.session()?;
    if args.profile {
        session.start_profile();
    }
    let answering = Answering::new(session.cancel_flag());
    let limit = loaded.model.config().context;
    let hint = |error| match error {
        ModelError::PromptTooLong { context, .. } if context < limit => RunError::TooLong { error, limit },
        error => error.into(),
    };
    let generated = match args.json {
        true => session
            .generate_from(&tokens, &options)
            .map_err(hint)?
            .finish(|_| ())
            .map(Some)
            .map_err(RunError::from),
        false => {
            let begin = if model.is_none() && !args.quiet { prompt.as_str() } else { "" };
            session.generate_from(&tokens, &options).map_err(hint).and_then(|text| stream(begin, text))
        }
    };
    drop(answering);
    let Some(generated) = generated? else { return Ok(0) };
    if args.json {
        print(&as_json(&loaded, &generated, &tokens, options.sampling.seed))?;
    } else if !args.quiet {
        anstream::eprintln!(
            "\n{}",
            dim(&stats::line(&loaded, &session, &generated, args.options.engine.open.threads()))
        );
    }
    if let Some(profile) = stats::profile(&session) {
        anstream::eprintln!("\n{profile}");
    }
    Ok(if generated.reason == FinishReason::Cancelled { interrupt::EXIT_CODE } else { 0 })
}

/// Writes what it begins with and then the answer as it comes. `None` where the reader has gone, which is no failure.
fn stream(begin: &str, mut generation: Generation<'_>) -> Result<Option<Generated>, RunError> {
    let mut stdout = io::stdout().lock();
    let mut next = Some(begin.to_owned());
    while let Some(piece) = next {
        match stdout.write_all(piece.as_bytes()).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(None),
            result => result?,
        }
        next = generation.next_piece()?;
    }
    let generated = generation.generated().clone();
    if !generated.text.ends_with('\n') {
        match writeln!(stdout).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(None),
            result => result?,
        }
    }
    Ok(Some(generated))
}

/// What is piped in, if anything is.
fn read_prompt() -> Result<Option<String>, RunError> {
    let mut stdin = io::stdin();
    if stdin.is_terminal() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    stdin.read_to_end(&mut bytes).map_err(RunError::Read)?;
    let text = String::from_utf8(bytes).map_err(|_| RunError::NotUtf8)?;
    // The line break at the end is the shell's.
    let text = text.strip_suffix('\n').map_or(text.as_str(), |text| text.strip_suffix('\r').unwrap_or(text));
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

/// Field names here are an interface: add, do not rename.
fn as_json(loaded: &Loaded, generated: &Generated, prompt: &[u32], seed: u64) -> String {
    let (reason, stop) = match &generated.reason {
        FinishReason::EndToken(_) => ("end", None),
        FinishReason::StopString(text) => ("stop", Some(text)),
        FinishReason::MaxTokens => ("max_tokens", None),
        FinishReason::ContextFull => ("context_full", None),
        FinishReason::Cancelled => ("cancelled", None),
    };
    let object = json!({
        "text": generated.text,
        "reason": reason,
        "stop": stop,
        "seed": seed,
        "prompt_tokens": prompt,
        "tokens": generated.tokens,
        "device": loaded.device.selector().to_string(),
        "load_seconds": loaded.time.as_secs_f64(),
        "prefill_seconds": generated.prefill_time.as_secs_f64(),
        "prefill_tokens_per_second": generated.prefill_rate(),
        "decode_seconds": generated.decode_time.as_secs_f64(),
        "decode_tokens_per_second": generated.decode_rate(),
    });
    format!("{object:#}\n")
}

/// Less bright than the answer, on a terminal.
fn dim(text: &str) -> String {
    let style = anstyle::Style::new().dimmed();
    format!("{style}{text}{style:#}")
}
