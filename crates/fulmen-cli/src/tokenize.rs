//! `fulmen tokenize`.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Instant,
};

use fulmen_model::gguf::Metadata;
use fulmen_model::source::{self, SourceError};
use fulmen_model::template::{ChatOptions, ChatPrompt, ChatTemplate, Message, TemplateError};
use fulmen_model::tokenizer::{Special, Tokenizer, TokenizerError};
use serde_json::json;

use crate::model::find::{FindError, find};
use crate::output::print;

/// Show the tokens of a text, as a model sees it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A GGUF file, a Hugging Face folder, or a tokenizer.json.
    model: PathBuf,

    /// The text; from standard input if it is not given.
    text: Option<String>,

    /// Read marks such as <|im_end|> as control tokens instead of as text.
    #[arg(long)]
    special: bool,

    /// Leave out begin and end, which the tokenizer may put around a text.
    #[arg(long)]
    bare: bool,

    /// Print only the ids, on one line.
    #[arg(long)]
    ids: bool,

    /// Print JSON.
    #[arg(long, conflicts_with = "ids")]
    json: bool,

    /// Take a conversation, [{"role": "user", "content": "Hello"}, …], and put it into the model's chat template.
    #[arg(long, conflicts_with_all = ["special", "bare", "decode"])]
    chat: bool,

    /// Print the text that the chat template makes, instead of its tokens.
    #[arg(long, requires = "chat", conflicts_with_all = ["ids", "json"])]
    text_only: bool,

    /// Use this file as the chat template instead of the model's own.
    #[arg(long, value_name = "FILE", requires = "chat")]
    template: Option<PathBuf>,

    /// Do not end with the begin of an answer.
    #[arg(long, requires = "chat")]
    no_answer: bool,

    /// Whether the model should think before it answers, if its template asks.
    #[arg(long, value_name = "BOOL", requires = "chat")]
    thinking: Option<bool>,

    /// Take ids, separated by spaces or commas, and print their text.
    #[arg(long, conflicts_with_all = ["special", "bare", "ids", "json"])]
    decode: bool,

    /// Take a JSON list of texts and print a JSON list of lists of ids.
    #[arg(long, hide = true, conflicts_with_all = ["decode", "ids", "json"])]
    batch: bool,

    /// Print how long encoding takes, the best of five, and how many tokens it gives, as JSON.
    #[arg(long, hide = true, conflicts_with_all = ["decode", "ids", "json", "batch"])]
    time: bool,

    /// Print the bytes that have no token, as JSON.
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

#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenizeError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Find(#[from] FindError),
    #[error("{}: has no tokenizer", path.display())]
    None { path: PathBuf },
    #[error("{}: {error}", path.display())]
    Tokenizer { path: PathBuf, error: TokenizerError },
    #[error(transparent)]
    Token(#[from] TokenizerError),
    #[error("standard input: {0}")]
    Stdin(io::Error),
    #[error("{text:?} is not a token id")]
    NotAnId { text: String },
    #[error("the conversation: {0}")]
    Conversation(serde_json::Error),
    #[error("{}: {error}", path.display())]
    Template { path: PathBuf, error: TemplateError },
    #[error("{}: {error}", path.display())]
    TemplateFile { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Render(#[from] TemplateError),
    #[error("{}: has no chat template, and its vocabulary does not tell its family (give one with --template)", path.display())]
    NoTemplate { path: PathBuf },
    #[error("the list of texts: {0}")]
    Batch(serde_json::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

pub(crate) fn run(args: &Args) -> Result<(), TokenizeError> {
    let (tokenizer, metadata) = open(&find(&args.model)?)?;
    if args.missing {
        return Ok(print(&format!("{}\n", json!(tokenizer.missing_bytes())))?);
    }
    let text = match &args.text {
        Some(text) => text.clone(),
        None => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map_err(TokenizeError::Stdin)?;
            text
        }
    };
    if args.chat {
        let prompt = chat(args, &tokenizer, metadata, &text)?;
        let output = if args.text_only { prompt.text } else { shown_ids(args, &tokenizer, &prompt.tokens)? };
        return Ok(print(&output)?);
    }
    let special = if args.special { Special::Parse } else { Special::AsText };
    let encode = |text: &str| match args.bare {
        true => tokenizer.encode(text, special),
        false => tokenizer.encode_prompt(text, special),
    };
    let output = if args.decode {
        tokenizer.decode_with_special(&parse_ids(&text)?)? + "\n"
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
    Ok(print(&output)?)
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
    let template = match &args.template {
        Some(path) => {
            let source = fs::read_to_string(path)
                .map_err(|error| TokenizeError::TemplateFile { path: path.clone(), error })?;
            ChatTemplate::new(&source)
                .map_err(|error| TokenizeError::Template { path: path.clone(), error })?
        }
        None => ChatTemplate::of_model(&metadata, tokenizer)?
            .ok_or_else(|| TokenizeError::NoTemplate { path: args.model.clone() })?,
    };
    let turns: Vec<Turn> = serde_json::from_str(text).map_err(TokenizeError::Conversation)?;
    let messages: Vec<Message> =
        turns.into_iter().map(|turn| Message::new(turn.role, turn.content)).collect();
    let options = ChatOptions {
        add_generation_prompt: !args.no_answer,
        thinking: args.thinking,
        ..ChatOptions::default()
    };
    Ok(template.prompt(tokenizer, &messages, &options)?)
}

/// The shortest time of five in seconds, and the result.
fn time(mut work: impl FnMut() -> usize) -> (f64, usize) {
    let (mut best, mut result) = (f64::INFINITY, 0);
    for _ in 0..5 {
        let start = Instant::now();
        result = work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    (best, result)
}

/// The tokenizer of a file, and what else the file says.
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

/// The text of one token, with quotes; bytes that are no whole character are shown as such.
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
    Ok(out + &format!("{} tokens\n", ids.len()))
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
