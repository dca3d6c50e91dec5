//! `fulmen chat`: a conversation, or a story told in turns.

mod story;

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use fulmen_bench::model::LoadedModel;
use fulmen_model::template::Message;
use fulmen_model::{Chat, FinishReason, GenerateOptions, Generated, ModelError, Session};
use rustyline::error::ReadlineError;
use story::Story;

use crate::error::CommandError;
use crate::model::interrupt::{self, CancelOnCtrlC};
use crate::model::load::{LoadError, ModelOptions};
use crate::model::prompt::{ChatArgs, PromptError};
use crate::model::sampling::SamplingOptions;
use crate::model::stats;
use crate::output::{TextWriter, tell};

/// Chat with a model.
///
/// Each line is a message, and the answer is printed while it is generated. Ctrl-C stops an answer, and
/// Ctrl-D exits. /clear starts a new conversation, /stats shows the speed of the last answer, and /help lists
/// all commands.
///
/// The small built-in model tells stories: it continues what you write, one paragraph at a time.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Model: a GGUF file, a folder with config.json and safetensors files, or the name of a pulled model.
    /// Without it, the small built-in model.
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,

    #[command(flatten)]
    chat: ChatArgs,

    #[command(flatten)]
    sampling: SamplingOptions,

    #[command(flatten)]
    options: ModelOptions,
}

const EXAMPLES: &str = "\
Examples:
  fulmen chat                                          tell a story with the built-in model
  fulmen chat model.gguf
  fulmen chat model.gguf --system \"You are a pirate.\" --temperature 1
  printf 'Hi!\\nAnd now in French.\\n' | fulmen chat model.gguf";

const HELP: &str = "\
/clear   start a new conversation
/stats   show the speed of the last answer
/exit    exit (also Ctrl-D)
/help    show this list
Ctrl-C stops an answer.";

const STORY: &str = "\
Start a story, with \"Once upon a time\" or any other words. The model continues it by a paragraph after each
of your lines, and after an empty line on its own. /help lists the commands.";

/// Why `fulmen chat` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChatError {
    #[error(
        "the model has no chat template, so it is probably not a chat model; \
         --template selects a template, and `fulmen run --raw` continues a text"
    )]
    NoTemplate,
    #[error(transparent)]
    Prompt(#[from] PromptError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("cannot read the next line: {0}")]
    Read(#[from] ReadlineError),
    #[error("cannot write the answer: {0}")]
    Write(#[from] io::Error),
}

impl CommandError for ChatError {
    fn is_usage(&self) -> bool {
        match self {
            ChatError::Prompt(error) => error.is_usage(),
            ChatError::Load(error) => error.is_usage(),
            ChatError::Model(error) => error.is_usage(),
            _ => false,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), ChatError> {
    interrupt::install();
    let mut options = args.sampling.generate();
    options.sampling.validate()?;
    let loaded = args.options.load(args.model.as_deref(), args.options.session())?;
    let mut conversation = Conversation::new(args, &loaded)?;
    if matches!(conversation, Conversation::Story(_)) && io::stdin().is_terminal() {
        eprintln!("{STORY}");
    }
    let mut history = Vec::new();
    let mut last = None;
    loop {
        // Ctrl-C clears the line.
        let line = match read_line(&history) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                eprintln!("(Ctrl-D exits)");
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let line = line.trim();
        match line {
            "" if !conversation.is_story() => continue,
            "/exit" | "/quit" | "/bye" => return Ok(()),
            "/help" | "/?" => eprintln!("{HELP}"),
            "/clear" => conversation.clear(),
            "/stats" => eprintln!("{}", last.as_deref().unwrap_or("there is no answer yet")),
            command if command.starts_with('/') => {
                eprintln!("unknown command {command}; /help lists all commands")
            }
            message => {
                if !message.is_empty() {
                    history.push(message.to_owned());
                }
                match answer(&loaded, &mut conversation, message, &options)? {
                    Answered::Done(stats) => last = Some(stats),
                    Answered::TooLong => {}
                    Answered::PipeClosed => return Ok(()),
                }
                // The same message may get another answer.
                options.sampling.seed = options.sampling.seed.wrapping_add(1);
            }
        }
    }
}

/// What messages are added to.
enum Conversation {
    Chat(Chat),
    Story(Story),
}

impl Conversation {
    /// A chat with the template of the options or the model's own; with the built-in model, a story.
    fn new(args: &Args, loaded: &LoadedModel) -> Result<Conversation, ChatError> {
        let session = loaded.model.session()?;
        let Some(template) = args.chat.template(&loaded.model)? else {
            return match (&args.model, &args.chat.system) {
                (None, None) => Ok(Conversation::Story(Story::new(session))),
                _ => Err(ChatError::NoTemplate),
            };
        };
        let mut chat = Chat::with_template(session, template);
        chat.set_options(args.chat.options());
        if let Some(system) = &args.chat.system {
            chat.push(Message::system(system));
        }
        Ok(Conversation::Chat(chat))
    }

    /// An empty line continues a story.
    fn is_story(&self) -> bool {
        matches!(self, Conversation::Story(_))
    }

    fn clear(&mut self) {
        match self {
            Conversation::Chat(chat) => chat.clear(),
            Conversation::Story(story) => story.clear(),
        }
    }

    fn session(&mut self) -> &mut Session {
        match self {
            Conversation::Chat(chat) => chat.session(),
            Conversation::Story(story) => story.session(),
        }
    }

    fn say(
        &mut self,
        message: &str,
        options: &GenerateOptions,
        piece: impl FnMut(&str),
    ) -> Result<Generated, ModelError> {
        match self {
            Conversation::Chat(chat) => chat.say(message, options, piece),
            Conversation::Story(story) => story.say(message, options, piece),
        }
    }
}

/// Reads one line. The editor lives for one line only, because it handles Ctrl-C while it lives.
fn read_line(history: &[String]) -> Result<String, ReadlineError> {
    let mut editor = rustyline::DefaultEditor::new()?;
    for entry in history {
        // The chat works without a history.
        let _ = editor.add_history_entry(entry);
    }
    editor.readline("> ")
}

/// What came of a message.
enum Answered {
    /// An answer, and its statistics.
    Done(String),
    /// The message did not fit.
    TooLong,
    /// The reader of the answers closed the pipe.
    PipeClosed,
}

/// Sends a message and prints the answer while it is generated.
fn answer(
    loaded: &LoadedModel,
    conversation: &mut Conversation,
    message: &str,
    options: &GenerateOptions,
) -> Result<Answered, ChatError> {
    let cancel = CancelOnCtrlC::new(conversation.session().cancel_flag());
    let mut stdout = TextWriter::stdout();
    let mut failed = None;
    let flag = conversation.session().cancel_flag();
    let generated = conversation.say(message, options, |piece| {
        if let Err(error) = stdout.text(piece) {
            flag.store(true, std::sync::atomic::Ordering::Relaxed);
            failed.get_or_insert(error);
        }
    });
    drop(cancel);
    match failed {
        // A closed pipe ends the chat and is not an error.
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Answered::PipeClosed),
        Some(error) => return Err(error.into()),
        None => {}
    }
    let generated = match generated {
        Err(error @ ModelError::PromptTooLong { .. }) => {
            tell(&format!("{error}; /clear starts a new conversation, --context makes the context larger"));
            return Ok(Answered::TooLong);
        }
        generated => generated?,
    };
    // On a terminal, a blank line between the answer and the next message.
    stdout.text(if io::stdout().is_terminal() { "\n\n" } else { "\n" })?;
    match generated.reason {
        FinishReason::ContextFull => eprintln!("(the context is full; /clear starts a new conversation)"),
        FinishReason::Cancelled => eprintln!("(stopped)"),
        FinishReason::EndToken(_) if conversation.is_story() => {
            eprintln!("(the end; the next line starts another story)")
        }
        _ => {}
    }
    Ok(Answered::Done(stats::line(loaded, conversation.session(), &generated)))
}
