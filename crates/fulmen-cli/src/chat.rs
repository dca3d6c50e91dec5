//! `fulmen chat`: a conversation, or a story told in turns.

pub(crate) mod command;
mod conversation;
pub(crate) mod input;
mod message;
pub(crate) mod saved;
pub(crate) mod settings;
mod state;
mod story;

use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use command::Command;
use conversation::Conversation;
use fulmen_bench::model::LoadedModel;
use fulmen_engine::generation::FinishReason;
use fulmen_engine::{GenerateOptions, Generated};
use fulmen_model::ModelError;
use input::{Input, Turn};
use rustyline::error::ReadlineError;
use saved::{Saved, SavedError};
pub(crate) use state::folder as state_folder;

use crate::config;
use crate::error::CommandError;
use crate::model::find::is_builtin;
use crate::model::interrupt::{self, CancelOnCtrlC};
use crate::model::load::{self, LoadError, ModelOptions};
use crate::model::memory;
use crate::model::prompt::{ChatArgs, PromptError};
use crate::model::sampling::SamplingOptions;
use crate::model::split::device_of;
use crate::model::stats;
use crate::output::{counted, printable, tell, tell_dimmed, thousands};
use crate::progress::prefill_spinner;
use crate::wrap::Wrapped;

/// Chat with a model.
///
/// Each line is a message, and the answer is printed while it is generated. Ctrl-C stops an answer, and
/// Ctrl-D exits. /help lists the commands: they change the system prompt and the settings, take a message
/// back, save the conversation and more.
///
/// A line that ends with \ continues in the next one, and """ starts and ends a message of several lines.
///
/// On a terminal, the lines you type and the last conversation are kept for the next chat in files that only
/// you can read; --continue resumes that conversation, and --no-history keeps nothing.
///
/// The small built-in model tells stories: it continues what you write, one paragraph at a time.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Model: a GGUF file, a folder with config.json and safetensors files, or the name of a pulled model.
    /// Without it, or as `builtin`, the small built-in model.
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,

    /// Go on with the last conversation, with its model unless another one is named.
    #[arg(long = "continue", short = 'c')]
    continued: bool,

    /// What happens when the context is full: leave out the oldest turns, or refuse the message.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Overflow::Drop)]
    overflow: Overflow,

    /// Keep neither the lines that are typed nor the conversation.
    #[arg(long)]
    no_history: bool,

    #[command(flatten)]
    chat: ChatArgs,

    #[command(flatten)]
    sampling: SamplingOptions,

    #[command(flatten)]
    options: ModelOptions,

    #[cfg(feature = "server")]
    #[command(flatten)]
    server: crate::remote::AnsweringServer,
}

/// What happens to a message that does not fit into the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Overflow {
    /// The oldest turns are left out
    Drop,
    /// The message is refused
    Refuse,
}

const EXAMPLES: &str = "\
Examples:
  fulmen chat                                          tell a story with the built-in model
  fulmen chat model.gguf
  fulmen chat model.gguf --system \"You are a pirate.\" --temperature 1
  fulmen chat --continue                               continue the last conversation
  fulmen chat --server http://127.0.0.1:8080           talk to a model of a running server
  printf 'Hi!\\nAnd now in French.\\n' | fulmen chat model.gguf";

const STORY: &str = "\
Start a story, with \"Once upon a time\" or any other words. The model continues it by a paragraph after \
each of your lines, and after an empty line on its own. /help lists the commands, Ctrl-D exits.";

/// Why `fulmen chat` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChatError {
    #[error(
        "the model has no chat template, so it is probably not a chat model; \
         --template selects a template, and `fulmen run --raw` continues a text"
    )]
    NoTemplate,
    #[error("that is a story, and this is a chat; a story needs the built-in model")]
    NotAChat,
    #[error("that is a conversation with a chat model, and this is a story")]
    NotAStory,
    #[error("that conversation used a model of a server; pass --server {server}, or a MODEL")]
    UsedServer { server: String },
    #[error(transparent)]
    Saved(#[from] SavedError),
    #[error(transparent)]
    Prompt(#[from] PromptError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Model(ModelError),
    #[error("{error}{}", memory::options(error, memory::Leaves::Nothing))]
    Memory { error: ModelError },
    #[cfg(feature = "server")]
    #[error(transparent)]
    Remote(#[from] crate::remote::RemoteChatError),
    #[error("cannot read the next line: {0}")]
    Read(#[from] ReadlineError),
    #[error("cannot write the answer: {0}")]
    Write(#[from] io::Error),
}

impl From<ModelError> for ChatError {
    fn from(error: ModelError) -> ChatError {
        match memory::is_short(&error) {
            true => ChatError::Memory { error },
            false => ChatError::Model(error),
        }
    }
}

impl CommandError for ChatError {
    fn is_usage(&self) -> bool {
        match self {
            ChatError::Prompt(error) => error.is_usage(),
            ChatError::Load(error) => error.is_usage(),
            ChatError::Model(error) => error.is_usage(),
            #[cfg(feature = "server")]
            ChatError::Remote(error) => error.is_usage(),
            _ => false,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), ChatError> {
    let options = args.sampling.generate();
    options.sampling.validate()?;
    let mut input = Input::new(!args.no_history)?;
    interrupt::install();
    let last = if args.continued { Some(Saved::load_last()?) } else { None };
    #[cfg(feature = "server")]
    if let Some(client) = args.server.client().map_err(crate::remote::RemoteChatError::from)? {
        let start = crate::remote::Start {
            model: args.model.as_ref().map(|model| model.display().to_string()),
            system: args.chat.system.as_deref(),
            think: args.chat.template.think,
            options,
            overflow: args.overflow,
            last,
            keeps: !args.no_history && (args.continued || input.is_terminal()),
        };
        return Ok(crate::remote::chat(&client, start, &mut input)?);
    }
    let model = match (&args.model, &last) {
        (Some(model), _) if is_builtin(model) => None,
        (Some(model), _) => Some(model.clone()),
        (None, Some(Saved { server: Some(server), .. })) => {
            return Err(ChatError::UsedServer { server: printable(server) });
        }
        (None, Some(last)) => last.model.as_ref().map(PathBuf::from),
        (None, None) => config::current().default_model().map(Path::to_owned),
    };
    let loaded = args.options.load(model.as_deref(), args.options.session())?;
    let conversation = Conversation::new(args, model.is_none(), &loaded)?;
    let keeps = !args.no_history && (args.continued || input.is_terminal());
    let model = model.as_deref().map(name_for_file);
    let mut running = Running { args, loaded, conversation, options, last: None, keeps, model };
    if let Some(last) = last {
        running.continue_with(&last)?;
    }
    if input.is_terminal() {
        running.banner();
    }
    input.each(|turn| match turn {
        Turn::Message("") if !running.conversation.is_story() => Ok(ControlFlow::Continue(())),
        Turn::Message(line) => running.answer(line),
        Turn::Command(command) => running.execute(&command),
    })
}

/// How a model is named in a saved conversation: a path that works from any folder, or its name on the hub.
fn name_for_file(model: &Path) -> String {
    let path = if model.exists() { std::path::absolute(model).ok() } else { None };
    path.as_deref().unwrap_or(model).display().to_string()
}

/// A chat that is going on.
struct Running<'a> {
    args: &'a Args,
    loaded: LoadedModel,
    conversation: Conversation,
    options: GenerateOptions,
    /// The last answer.
    last: Option<Generated>,
    /// Whether the conversation is kept for `--continue`.
    keeps: bool,
    model: Option<String>,
}

impl Running<'_> {
    fn banner(&mut self) {
        let name = match &self.model {
            Some(model) => Path::new(model).file_name().map_or(model.clone(), |n| n.display().to_string()),
            None => "the built-in model".to_owned(),
        };
        let context = thousands(self.conversation.session().context() as u64);
        let (summary, device) = (load::summary(&self.loaded.model), &self.loaded.device);
        tell_dimmed(&format!(
            "{name} ({summary}) on {} ({}), context {context} tokens",
            device_of(&self.loaded.model, device),
            device.name
        ));
        let explained = self.conversation.is_story() && !self.args.continued;
        tell_dimmed(if explained { STORY } else { "/help lists the commands, Ctrl-D exits." });
    }

    fn continue_with(&mut self, last: &Saved) -> Result<(), ChatError> {
        let shown = self.conversation.restore(last)?;
        if let (Conversation::Chat(chat), Some(system)) = (&mut self.conversation, &self.args.chat.system) {
            chat.set_system(Some(system));
        }
        tell(&format!("going on with the last conversation ({shown})"));
        if let Some(model) = &last.model
            && last.model != self.model
        {
            tell(&format!("that conversation used {model}"));
        }
        Ok(())
    }

    fn execute(&mut self, command: &Command<'_>) -> Result<ControlFlow<()>, ChatError> {
        match *command {
            Command::Quit => return Ok(ControlFlow::Break(())),
            Command::Retry => return self.retry(),
            Command::Help => tell(&command::help()),
            Command::Clear => {
                self.conversation.clear();
                tell("(a new conversation)");
            }
            Command::Context => match self.conversation.context() {
                Ok(line) => tell(&line),
                Err(error) => tell(&error.to_string()),
            },
            Command::Stats => match &self.last {
                Some(last) => tell(&stats::line(&self.loaded, self.conversation.session(), last)),
                None => tell("there is no answer yet"),
            },
            Command::Set(None) => tell(&settings::list(&self.options)),
            Command::Set(Some((name, value))) => match settings::set(&mut self.options, name, value) {
                Ok(value) => tell(&format!("({name} is now {value})")),
                Err(error) => tell(&error.to_string()),
            },
            Command::System(text) => self.system(text),
            Command::Undo => match self.conversation.undo() {
                Some(message) => {
                    tell(&format!("(forgotten: {})", shortened(&message)));
                    self.keep();
                }
                None => tell("there is nothing to undo"),
            },
            Command::Save(file) => match self.conversation.saved(self.model.clone()).save(file.as_ref()) {
                Ok(()) => tell(&format!("(saved as {file})")),
                Err(error) => tell(&error.to_string()),
            },
            Command::Load(file) => {
                let loaded = Saved::load(file.as_ref()).map_err(ChatError::from);
                match loaded.and_then(|saved| self.conversation.restore(&saved)) {
                    Ok(shown) => tell(&format!("(loaded {shown} from {file})")),
                    Err(error) => tell(&error.to_string()),
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn system(&mut self, text: Option<&str>) {
        let Conversation::Chat(chat) = &mut self.conversation else {
            return tell("a story has no system prompt");
        };
        match text {
            None => tell(chat.system().unwrap_or("there is no system prompt; /system TEXT sets one")),
            Some("\"\"") => {
                chat.set_system(None);
                tell("(no system prompt from now on)");
            }
            Some(text) => {
                chat.set_system(Some(text));
                tell("(the system prompt is set)");
            }
        }
    }

    /// Answers the last message again. The old answer stays if there is no new one.
    fn retry(&mut self) -> Result<ControlFlow<()>, ChatError> {
        let before = self.conversation.saved(None);
        let Some(message) = self.conversation.undo() else {
            tell("there is no message to answer again");
            return Ok(ControlFlow::Continue(()));
        };
        let without = self.conversation.saved(None);
        let flow = self.answer(&message)?;
        if self.conversation.saved(None) == without {
            self.conversation.restore(&before)?;
        }
        Ok(flow)
    }

    /// Sends a message and prints the answer while it is generated.
    fn answer(&mut self, message: &str) -> Result<ControlFlow<()>, ChatError> {
        self.make_room(message)?;
        let generated = match self.print_answer(message)? {
            Printed::Answer(generated) => generated,
            Printed::Refused => return Ok(ControlFlow::Continue(())),
            Printed::PipeClosed => return Ok(ControlFlow::Break(())),
        };
        match generated.reason {
            FinishReason::ContextFull => {
                tell("(the answer is cut: the context is full; /clear starts a new conversation)");
            }
            FinishReason::Cancelled => tell("(stopped)"),
            FinishReason::EndToken(_) if self.conversation.is_story() => {
                tell("(the end; the next line starts another story)");
            }
            _ => {}
        }
        self.last = Some(generated);
        // The same message may get another answer.
        self.options.sampling.seed = self.options.sampling.seed.wrapping_add(1);
        self.keep();
        Ok(ControlFlow::Continue(()))
    }

    /// Makes the context longer if it was not chosen, and otherwise leaves out old turns if that was chosen.
    fn make_room(&mut self, message: &str) -> Result<(), ChatError> {
        let max_tokens = self.options.max_tokens;
        if self.args.options.context.is_none() {
            match self.conversation.grow(&self.loaded.model, message, max_tokens) {
                Ok(Some(context)) => {
                    tell(&format!("(the context grows to {} tokens)", thousands(context as u64)));
                }
                // What the template refuses is reported when the message is sent.
                Ok(None) | Err(ModelError::Template(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if self.args.overflow == Overflow::Refuse {
            return Ok(());
        }
        match self.conversation.make_room(message, max_tokens) {
            Ok(0) | Err(_) => {}
            Ok(dropped) => {
                let what = if self.conversation.is_story() { "paragraph" } else { "turn" };
                tell(&dropped_line(dropped, what));
            }
        }
        Ok(())
    }

    fn print_answer(&mut self, message: &str) -> Result<Printed, ChatError> {
        let flag = self.conversation.session().cancel_flag();
        let cancel = CancelOnCtrlC::new(self.conversation.session().cancel_flag());
        let mut out = Wrapped::stdout();
        let mut failed = None;
        let mut spinner = Some(prefill_spinner(None));
        let generated = self.conversation.say(message, &self.options, |piece| {
            spinner.take();
            if let Err(error) = out.push(piece) {
                flag.store(true, std::sync::atomic::Ordering::Relaxed);
                failed.get_or_insert(error);
            }
        });
        drop(spinner);
        drop(cancel);
        match failed {
            // A closed pipe ends the chat and is not an error.
            Some(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Printed::PipeClosed),
            Some(error) => return Err(error.into()),
            None => {}
        }
        match generated {
            Ok(generated) => {
                // On a terminal, a blank line between the answer and the next message.
                out.finish(if io::stdout().is_terminal() { "\n\n" } else { "\n" })?;
                Ok(Printed::Answer(generated))
            }
            Err(error @ ModelError::PromptTooLong { context, .. }) => {
                let larger = match context < self.loaded.model.config().context {
                    true => ", --context makes the context larger",
                    false => "; this is the model's maximum context",
                };
                let drops = match self.args.overflow {
                    Overflow::Drop => "",
                    Overflow::Refuse => ", --overflow drop leaves out the oldest turns",
                };
                tell(&format!("{error}; /clear starts a new conversation{larger}{drops}"));
                Ok(Printed::Refused)
            }
            // A template may refuse a message; the next one may be right.
            Err(error @ ModelError::Template(_)) => {
                tell(&error.to_string());
                Ok(Printed::Refused)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Keeps the conversation for `--continue`. A failure is told once.
    fn keep(&mut self) {
        if self.keeps
            && let Err(error) = self.conversation.saved(self.model.clone()).save_last()
        {
            tell(&format!("the conversation is not kept: {error}"));
            self.keeps = false;
        }
    }
}

/// What came of a message.
enum Printed {
    Answer(Generated),
    /// It did not fit, or the template refused it.
    Refused,
    /// The reader of the answers closed the pipe.
    PipeClosed,
}

/// What is told when old turns no longer fit: `(context full: dropped the oldest 3 turns)`.
pub(crate) fn dropped_line(dropped: usize, what: &str) -> String {
    let which = if dropped == 1 { what.to_owned() } else { counted(dropped, what) };
    format!("(context full: dropped the oldest {which})")
}

/// The start of a message.
pub(crate) fn shortened(message: &str) -> String {
    const MOST: usize = 60;
    let line = message.lines().next().unwrap_or_default();
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None if line.len() < message.len() => format!("{line}…"),
        None => line.to_owned(),
    }
}
