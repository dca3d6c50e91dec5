//! `fulmen chat`: a conversation, or a story told in turns.

mod tale;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use fulmen_model::template::Message;
use fulmen_model::{Chat, FinishReason, GenerateOptions, Generated, ModelError, Session};
use rustyline::error::ReadlineError;
use tale::Tale;

use crate::model::interrupt::{self, Answering};
use crate::model::load::{LoadError, Loaded, ModelOptions};
use crate::model::prompt::ChatArgs;
use crate::model::sampling::SamplingOptions;
use crate::model::stats;

/// Talk with a model.
///
/// Each line is a message; the answer comes as it is made. Ctrl-C stops an answer, Ctrl-D leaves. /clear begins anew, /stats
/// says how fast the last answer was, /help lists what there is.
///
/// The small model that is part of the program tells stories: it goes on with what you write, a paragraph at a time.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The model: a GGUF file, a folder with config.json and safetensors files, or a name that was pulled. Without it the small
    /// model that is part of the program.
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
  fulmen chat                                          tell a story together
  fulmen chat model.gguf
  fulmen chat model.gguf --system \"You are a pirate.\" --temp 1
  printf 'Hi!\\nAnd now in French.\\n' | fulmen chat model.gguf";

const HELP: &str = "\
/clear   begin anew
/stats   how fast was the last answer?
/exit    leave (or Ctrl-D)
/help    this list
Ctrl-C stops an answer.";

const TALE: &str = "\
Begin a story, with \"Once upon a time\" or any other words. It goes on for a paragraph after each line that you write; an
empty line lets it go on by itself. /help lists what there is.";

/// Why `fulmen chat` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChatError {
    #[error(
        "the model has no chat template, so it was not made for conversations; --template takes one of a family, and `fulmen run --raw` goes on with a text"
    )]
    NoTemplate,
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("lines cannot be read: {0}")]
    Read(#[from] ReadlineError),
    #[error("the answer could not be written: {0}")]
    Write(#[from] io::Error),
}

pub(crate) fn run(args: &Args) -> Result<(), ChatError> {
    interrupt::install();
    let mut options = args.sampling.generate();
    options.sampling.validate()?;
    let loaded = args.options.load(args.model.as_deref(), args.options.session())?;
    let mut talk = Talk::new(args, &loaded)?;
    if matches!(talk, Talk::Tale(_)) && io::stdin().is_terminal() {
        eprintln!("{TALE}");
    }
    let mut history = Vec::new();
    let mut last = None;
    loop {
        // The first Ctrl-C of a line empties it.
        let line = match read_line(&history) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                eprintln!("(Ctrl-D leaves)");
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let line = line.trim();
        match line {
            "" if !talk.goes_on() => continue,
            "/exit" | "/quit" | "/bye" => return Ok(()),
            "/help" | "/?" => eprintln!("{HELP}"),
            "/clear" => talk.clear(),
            "/stats" => eprintln!("{}", last.as_deref().unwrap_or("nothing was answered yet")),
            command if command.starts_with('/') => {
                eprintln!("there is no {command}; /help lists what there is")
            }
            message => {
                if !message.is_empty() {
                    history.push(message.to_owned());
                }
                match answer(args, &loaded, &mut talk, message, &options)? {
                    Answered::Whole(stats) => last = Some(stats),
                    Answered::TooLong => {}
                    Answered::NobodyReads => return Ok(()),
                }
                // Another answer to the same words may be another one.
                options.sampling.seed = options.sampling.seed.wrapping_add(1);
            }
        }
    }
}

/// What messages go to.
enum Talk {
    Chat(Chat),
    Tale(Tale),
}

impl Talk {
    /// A conversation by the template that is asked for or the model's own; with the model that is part of the program a story.
    fn new(args: &Args, loaded: &Loaded) -> Result<Talk, ChatError> {
        let session = loaded.model.session()?;
        let Some(template) = args.chat.template(&loaded.model)? else {
            return match (&args.model, &args.chat.system) {
                (None, None) => Ok(Talk::Tale(Tale::new(session))),
                _ => Err(ChatError::NoTemplate),
            };
        };
        let mut chat = Chat::with_template(session, template);
        chat.set_options(args.chat.options());
        if let Some(system) = &args.chat.system {
            chat.push(Message::system(system));
        }
        Ok(Talk::Chat(chat))
    }

    /// Whether there is something to say to an empty line.
    fn goes_on(&self) -> bool {
        matches!(self, Talk::Tale(_))
    }

    fn clear(&mut self) {
        match self {
            Talk::Chat(chat) => chat.clear(),
            Talk::Tale(tale) => tale.clear(),
        }
    }

    fn session(&mut self) -> &mut Session {
        match self {
            Talk::Chat(chat) => chat.session(),
            Talk::Tale(tale) => tale.session(),
        }
    }

    fn say(
        &mut self,
        message: &str,
        options: &GenerateOptions,
        piece: impl FnMut(&str),
    ) -> Result<Generated, ModelError> {
        match self {
            Talk::Chat(chat) => chat.say(message, options, piece),
            Talk::Tale(tale) => tale.say(message, options, piece),
        }
    }
}

/// One line. The editor lives for one line only: it takes Ctrl-C over as long as it lives.
fn read_line(history: &[String]) -> Result<String, ReadlineError> {
    let mut editor = rustyline::DefaultEditor::new()?;
    for entry in history {
        // A history that cannot be kept is no reason to stop.
        let _ = editor.add_history_entry(entry);
    }
    editor.readline("> ")
}

/// What came of a message.
enum Answered {
    /// An answer, and how fast it was.
    Whole(String),
    /// The message did not fit.
    TooLong,
    /// The reader of the answers has gone.
    NobodyReads,
}

/// Says something and writes the answer as it comes; gives how fast it was. A message that does not fit is said so.
fn answer(
    args: &Args,
    loaded: &Loaded,
    talk: &mut Talk,
    message: &str,
    options: &GenerateOptions,
) -> Result<Answered, ChatError> {
    let answering = Answering::new(talk.session().cancel_flag());
    let mut stdout = io::stdout().lock();
    let mut failed = None;
    let flag = talk.session().cancel_flag();
    let generated = talk.say(message, options, |piece| {
        if let Err(error) = stdout.write_all(piece.as_bytes()).and_then(|()| stdout.flush()) {
            flag.store(true, std::sync::atomic::Ordering::Relaxed);
            failed.get_or_insert(error);
        }
    });
    drop(answering);
    match failed {
        // Nobody reads any more, which is no failure; nobody is there to be asked for more either.
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Answered::NobodyReads),
        Some(error) => return Err(error.into()),
        None => {}
    }
    let generated = match generated {
        Err(error @ ModelError::PromptTooLong { .. }) => {
            eprintln!("{error}. /clear begins anew; --ctx makes it larger.");
            return Ok(Answered::TooLong);
        }
        generated => generated?,
    };
    // A blank line between answer and next question, for people.
    write!(stdout, "{}", if io::stdout().is_terminal() { "\n\n" } else { "\n" })?;
    stdout.flush()?;
    match generated.reason {
        FinishReason::ContextFull => eprintln!("(the context is full: /clear begins anew)"),
        FinishReason::Cancelled => eprintln!("(stopped)"),
        FinishReason::EndToken(_) if talk.goes_on() => {
            eprintln!("(the end; the next line begins another story)")
        }
        _ => {}
    }
    Ok(Answered::Whole(stats::line(loaded, talk.session(), &generated, args.options.engine.open.threads())))
}
