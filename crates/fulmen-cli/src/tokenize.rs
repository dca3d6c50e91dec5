//! `fulmen tokenize`.

use std::{
    io::{self, IsTerminal, Read},
    path::{Path, PathBuf},
    time::Instant,
};

use fulmen_model::gguf::Metadata;
use fulmen_model::source::{self, SourceError};
use fulmen_model::template::{ChatOptions, ChatPrompt, ChatTemplate, Message, TemplateError};
use fulmen_model::tokenizer::{Special, Tokenizer, TokenizerError};
use serde_json::json;

use crate::error::CommandError;
use crate::model::find::{FindError, find};
use crate::model::prompt::{PromptError, TemplateOptions};
use crate::output::{counted, print, print_text, tell};

/// Show the tokens of a text.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Model: a GGUF file, a folder with config.json and safetensors files, a tokenizer.json, or the name of
    /// a pulled model.
    model: PathBuf,

    /// Text; read from standard input if it is not given.
    text: Option<String>,

    /// Parse control tokens such as <|im_end|> instead of reading them as plain text.
    #[arg(long)]
    special: bool,

    /// Do not add the BOS and EOS tokens of the model.
    #[arg(long)]
    bare: bool,

    /// Print only the token ids, on one line.
    #[arg(long)]
    ids: bool,

    /// Print the tokens as JSON.
    #[arg(long, conflicts_with = "ids")]
    json: bool,

    /// TEXT is a conversation, [{"role": "user", "content": "Hello"}, …], which the chat template renders.
    #[arg(long, conflicts_with_all = ["special", "bare", "decode"])]
    chat: bool,

    /// Print the text that the chat template renders instead of its tokens.
    #[arg(long, requires = "chat", conflicts_with_all = ["ids", "json"])]
    text_only: bool,

    #[command(flatten)]
    template: TemplateOptions,

    /// Do not end with the header of the assistant's answer (the generation prompt).
    #[arg(long, alias = "no-answer", requires = "chat")]
    no_generation_prompt: bool,

    /// TEXT is a list of token ids, separated by spaces or commas; print their text.
    #[arg(long, conflicts_with_all = ["special", "bare", "ids", "json"])]
    decode: bool,

    /// TEXT is a JSON list of texts; print a JSON list of lists of ids.
    #[arg(long, hide = true, conflicts_with_all = ["decode", "ids", "json"])]
    batch: bool,

    /// Print the time of encoding (the best of five) and the number of tokens as JSON.
    #[arg(long, hide = true, conflicts_with_all = ["decode", "ids", "json", "batch"])]
    time: bool,

    /// Print the bytes that no token has as JSON.
    #[arg(long, hide = true)]
    missing: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen tokenize model.gguf \"Hello, world\"
  fulmen tokenize model.gguf --ids < prompt.txt
  fulmen tokenize model.gguf --special \"<|im_start|>user\"
  fulmen tokenize model.gguf --chat '[{\"role\": \"user\", \"content\": \"Hello\"}]'
  fulmen tokenize model.gguf --decode \"19556 28 905\"";

/// Why `fulmen tokenize` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenizeError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Find(#[from] FindError),
    #[error("{} has no tokenizer", path.display())]
    None { path: PathBuf },
    #[error("{}: {error}", path.display())]
    Tokenizer { path: PathBuf, error: TokenizerError },
    #[error(transparent)]
    Token(#[from] TokenizerError),
    #[error("cannot read standard input: {0}")]
    Stdin(io::Error),
    #[error("{text:?} is not a token id")]
    NotAnId { text: String },
    #[error("the conversation is not valid: {0}")]
    Conversation(serde_json::Error),
    #[error(transparent)]
    Template(#[from] PromptError),
    #[error("{option} needs --chat")]
    NeedsChat { option: &'static str },
    #[error(transparent)]
    Render(#[from] TemplateError),
    #[error("{} has no chat template; --template selects one", path.display())]
    NoTemplate { path: PathBuf },
    #[error("the list of texts is not valid: {0}")]
    Batch(serde_json::Error),
    #[error("cannot write the tokens: {0}")]
    Write(#[from] io::Error),
}

impl CommandError for TokenizeError {
    fn is_usage(&self) -> bool {
        match self {
            TokenizeError::NotAnId { .. } | TokenizeError::NeedsChat { .. } => true,
            TokenizeError::Template(error) => error.is_usage(),
            _ => false,
        }
    }
}

/// A text that is the whole output: a terminal gets a line break after it, a pipe exactly the text.
fn text_alone(text: String) -> String {
    if io::stdout().is_terminal() { text + "\n" } else { text }
}

pub(crate) fn run(args: &Args) -> Result<(), TokenizeError> {
    if !args.chat {
        let given =
            [("--template", args.template.template.is_some()), ("--think", args.template.think.is_some())];
        if let Some((option, _)) = given.into_iter().find(|(_, given)| *given) {
            return Err(TokenizeError::NeedsChat { option });
        }
    }
    let (tokenizer, metadata) = open(&find(&args.model)?)?;
    if args.missing {
        return Ok(print(&format!("{}\n", json!(tokenizer.missing_bytes())))?);
    }
    let text = match &args.text {
        Some(text) => text.clone(),
        None => {
            if io::stdin().is_terminal() {
                tell("type the text; a line with Ctrl-D alone ends it");
            }
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map_err(TokenizeError::Stdin)?;
            text
        }
    };
    if args.chat {
        let prompt = chat(args, &tokenizer, metadata, &text)?;
        let output = match args.text_only {
            true => text_alone(prompt.text),
            false => shown_ids(args, &tokenizer, &prompt.tokens)?,
        };
        return Ok(print_text(&output)?);
    }
    let special = if args.special { Special::Parse } else { Special::AsText };
    let encode = |text: &str| match args.bare {
        true => tokenizer.encode(text, special),
        false => tokenizer.encode_prompt(text, special),
    };
    let output = if args.decode {
        text_alone(tokenizer.decode_with_special(&parse_ids(&text)?)?)
    } else if args.batch {
        let texts: Vec<String> = serde_json::from_str(&text).map_err(TokenizeError::Batch)?;
        let ids: Vec<Vec<u32>> = texts.iter().map(|text| encode(text)).collect();
        json!(ids).to_string() + "\n"
    } else if args.time {
        let (seconds, tokens) = time(|| encode(&text).len());
        json!({ "seconds": seconds, "tokens": tokens }).to_string() + "\n"
    } else {
        shown_ids(args, &tokenizer, &encode(&text))?
    };
    Ok(print_text(&output)?)
}

fn shown_ids(args: &Args, tokenizer: &Tokenizer, ids: &[u32]) -> Result<String, TokenizerError> {
    match (args.ids, args.json) {
        (true, _) => Ok(ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ") + "\n"),
        (_, true) => as_json(tokenizer, ids),
        _ => as_table(tokenizer, ids),
    }
}

#[derive(serde::Deserialize)]
struct Turn {
    role: String,
    content: String,
}

/// The prompt of a conversation that is given as JSON.
fn chat(
    args: &Args,
    tokenizer: &Tokenizer,
    metadata: Metadata,
    text: &str,
) -> Result<ChatPrompt, TokenizeError> {
    let template = match args.template.load()? {
        Some(template) => template,
        None => ChatTemplate::of_model(&metadata, tokenizer)?
            .ok_or_else(|| TokenizeError::NoTemplate { path: args.model.clone() })?,
    };
    let turns: Vec<Turn> = serde_json::from_str(text).map_err(TokenizeError::Conversation)?;
    let messages: Vec<Message> =
        turns.into_iter().map(|turn| Message::new(turn.role, turn.content)).collect();
    let options = ChatOptions {
        add_generation_prompt: !args.no_generation_prompt,
        thinking: args.template.think,
        ..ChatOptions::default()
    };
    Ok(template.prompt(tokenizer, &messages, &options)?)
}

/// The shortest of five times in seconds, and the result.
fn time(mut work: impl FnMut() -> usize) -> (f64, usize) {
    let (mut best, mut result) = (f64::INFINITY, 0);
    for _ in 0..5 {
        let start = Instant::now();
        result = work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    (best, result)
}

/// The tokenizer and the metadata of a file.
fn open(path: &Path) -> Result<(Tokenizer, Metadata), TokenizeError> {
    let at = |error| TokenizeError::Tokenizer { path: path.to_owned(), error };
    if path.extension().is_some_and(|extension| extension == "json") {
        return Ok((Tokenizer::from_json_file(path).map_err(at)?, Metadata::new()));
    }
    let source = source::open(path)?;
    let tokenizer = Tokenizer::from_source(source.as_ref()).map_err(at)?;
    let tokenizer = tokenizer.ok_or_else(|| TokenizeError::None { path: path.to_owned() })?;
    Ok((tokenizer, source.metadata().clone()))
}

fn parse_ids(text: &str) -> Result<Vec<u32>, TokenizeError> {
    let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
    words.map(|word| word.parse().map_err(|_| TokenizeError::NotAnId { text: word.to_owned() })).collect()
}

/// The text of one token in quotes; bytes of an incomplete character are escaped.
fn shown(tokenizer: &Tokenizer, id: u32) -> Result<String, TokenizerError> {
    let text = tokenizer.token_bytes(id)?;
    Ok(match std::str::from_utf8(text) {
        Ok(text) => format!("{text:?}"),
        Err(_) => format!("\"{}\"", text.escape_ascii()),
    })
}

fn as_table(tokenizer: &Tokenizer, ids: &[u32]) -> Result<String, TokenizerError> {
    let width = ids.iter().max().map_or(0, |id| id.to_string().len()).max(2);
    let mut out = format!("{:>width$}  text\n", "id");
    for &id in ids {
        let mark = if tokenizer.is_special(id) { "  (special)" } else { "" };
        out += &format!("{id:>width$}  {}{mark}\n", shown(tokenizer, id)?);
    }
    Ok(out + &counted(ids.len(), "token") + "\n")
}

fn as_json(tokenizer: &Tokenizer, ids: &[u32]) -> Result<String, TokenizerError> {
    let mut tokens = Vec::new();
    for &id in ids {
        let bytes = tokenizer.token_bytes(id)?;
        let text = std::str::from_utf8(bytes).ok();
        tokens.push(json!({ "id": id, "text": text, "bytes": bytes, "special": tokenizer.is_special(id) }));
    }
    Ok(format!("{:#}\n", json!({ "ids": ids, "tokens": tokens })))
}
