//! `fulmen chat --server`.

use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fulmen_engine::GenerateOptions;
use fulmen_model::template::Message;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use super::answer::{Answer, answer, sampling_fields};
use super::client::{Client, RemoteError};
use crate::chat::command::{self, Command};
use crate::chat::input::{Input, Turn};
use crate::chat::saved::{Saved, SavedError};
use crate::chat::{Overflow, dropped_line, settings, shortened};
use crate::error::CommandError;
use crate::model::interrupt::CancelOnCtrlC;
use crate::output::{counted, tell, tell_dimmed, thousands};
use crate::progress::prefill_spinner;
use crate::wrap::Wrapped;

/// How a conversation with a server begins.
pub(crate) struct Start<'a> {
    /// One of its models; its first one without a name.
    pub(crate) model: Option<String>,
    pub(crate) system: Option<&'a str>,
    pub(crate) think: Option<bool>,
    pub(crate) options: GenerateOptions,
    pub(crate) overflow: Overflow,
    /// The conversation that goes on.
    pub(crate) last: Option<Saved>,
    /// Whether the conversation is kept for `--continue`.
    pub(crate) keeps: bool,
}

/// Why a conversation with a server ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoteChatError {
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error("that is a story, and this is a chat; a story needs the built-in model in this process")]
    Story,
    #[error(transparent)]
    Saved(#[from] SavedError),
    #[error("cannot read the next line: {0}")]
    Read(#[from] ReadlineError),
    #[error("cannot write the answer: {0}")]
    Write(#[from] io::Error),
}

impl RemoteChatError {
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, RemoteChatError::Remote(error) if error.is_usage())
    }
}

/// A conversation that is going on.
struct Talk<'a> {
    client: &'a Client,
    model: String,
    think: Option<bool>,
    options: GenerateOptions,
    overflow: Overflow,
    messages: Vec<Message>,
    last: Option<Answer>,
    /// The last message, if it got no answer.
    unanswered: Option<String>,
    keeps: bool,
}

/// Holds a conversation with a model of a server.
pub(crate) fn chat(client: &Client, start: Start<'_>, input: &mut Input) -> Result<(), RemoteChatError> {
    let model = match start.model {
        Some(model) => model,
        None => client.first_model()?,
    };
    let mut talk = Talk {
        client,
        model,
        think: start.think,
        options: start.options,
        overflow: start.overflow,
        messages: Vec::new(),
        last: None,
        unanswered: None,
        keeps: start.keeps,
    };
    if let Some(last) = &start.last {
        let shown = talk.restore(last)?;
        tell(&format!("going on with the last conversation ({shown})"));
    }
    if let Some(system) = start.system {
        talk.set_system(Some(system));
    }
    if input.is_terminal() {
        tell_dimmed(&format!("{} at {}", talk.model, client.server()));
        tell_dimmed("/help lists the commands, Ctrl-D exits.");
    }
    input.each(|turn| match turn {
        Turn::Message("") => Ok(ControlFlow::Continue(())),
        Turn::Message(line) => talk.say(line),
        Turn::Command(command) => talk.execute(&command),
    })
}

impl Talk<'_> {
    fn execute(&mut self, command: &Command<'_>) -> Result<ControlFlow<()>, RemoteChatError> {
        match *command {
            Command::Quit => return Ok(ControlFlow::Break(())),
            Command::Retry => return self.retry(),
            Command::Help => tell(&command::help()),
            Command::Clear => {
                self.messages.retain(|message| message.role == "system");
                self.unanswered = None;
                tell("(a new conversation)");
            }
            Command::Context => {
                let used = self.last.as_ref().map_or(0, |last| last.prompt_tokens + last.tokens);
                let messages = counted(self.messages.len(), "message");
                tell(&format!("{} tokens used after the last answer, {messages}", thousands(used)));
            }
            Command::Stats => match &self.last {
                Some(last) => tell(&last.stats(self.client.server())),
                None => tell("there is no answer yet"),
            },
            Command::Set(None) => tell(&settings::list(&self.options)),
            Command::Set(Some(("repeat-window" | "repeat_window", _))) => {
                tell("a server has no repeat-window: it looks at the whole conversation");
            }
            Command::Set(Some((name, value))) => match settings::set(&mut self.options, name, value) {
                Ok(value) => tell(&format!("({name} is now {value})")),
                Err(error) => tell(&error.to_string()),
            },
            Command::System(None) => {
                tell(self.system().unwrap_or("there is no system prompt; /system TEXT sets one"));
            }
            Command::System(Some("\"\"")) => {
                self.set_system(None);
                tell("(no system prompt from now on)");
            }
            Command::System(Some(text)) => {
                self.set_system(Some(text));
                tell("(the system prompt is set)");
            }
            Command::Undo => match self.undo() {
                Some(message) => {
                    tell(&format!("(forgotten: {})", shortened(&message)));
                    self.keep();
                }
                None => tell("there is nothing to undo"),
            },
            Command::Save(file) => match self.saved().save(file.as_ref()) {
                Ok(()) => tell(&format!("(saved as {file})")),
                Err(error) => tell(&error.to_string()),
            },
            Command::Load(file) => {
                let loaded = Saved::load(file.as_ref()).map_err(RemoteChatError::from);
                match loaded.and_then(|saved| self.restore(&saved)) {
                    Ok(shown) => tell(&format!("(loaded {shown} from {file})")),
                    Err(error) => tell(&error.to_string()),
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn system(&self) -> Option<&str> {
        self.messages.first().filter(|first| first.role == "system").map(|first| first.content.as_str())
    }

    fn set_system(&mut self, text: Option<&str>) {
        self.messages.retain(|message| message.role != "system");
        if let Some(text) = text {
            self.messages.insert(0, Message::system(text));
        }
    }

    /// Takes the last turn back and returns the user's message.
    fn undo(&mut self) -> Option<String> {
        self.unanswered = None;
        let at = self.messages.iter().rposition(|message| message.role == "user")?;
        let turn = self.messages.split_off(at);
        turn.into_iter().next().map(|message| message.content)
    }

    fn saved(&self) -> Saved {
        Saved::chat(Some(self.model.clone()), &self.messages).of_server(self.client.server())
    }

    fn restore(&mut self, saved: &Saved) -> Result<String, RemoteChatError> {
        if saved.story.is_some() {
            return Err(RemoteChatError::Story);
        }
        self.messages = saved.messages();
        self.unanswered = None;
        Ok(counted(self.messages.len(), "message"))
    }

    /// Keeps the conversation for `--continue`. A failure is told once.
    fn keep(&mut self) {
        if self.keeps
            && let Err(error) = self.saved().save_last()
        {
            tell(&format!("the conversation is not kept: {error}"));
            self.keeps = false;
        }
    }

    /// Answers the last message again. The old answer stays if there is no new one.
    fn retry(&mut self) -> Result<ControlFlow<()>, RemoteChatError> {
        if let Some(message) = self.unanswered.take() {
            return self.say(&message);
        }
        let before = self.messages.clone();
        let Some(message) = self.undo() else {
            tell("there is no message to answer again");
            return Ok(ControlFlow::Continue(()));
        };
        let without = self.messages.len();
        let flow = self.say(&message)?;
        if self.messages.len() == without {
            self.messages = before;
        }
        Ok(flow)
    }

    fn request(&self) -> Value {
        let message = |m: &Message| json!({ "role": m.role, "content": m.content });
        let messages: Vec<Value> = self.messages.iter().map(message).collect();
        let mut body = json!({ "model": self.model, "messages": messages });
        if let Some(think) = self.think {
            body["chat_template_kwargs"] = json!({ "enable_thinking": think });
        }
        sampling_fields(&self.options, &mut body);
        body
    }

    /// Sends a message and prints the answer while it is generated. What a server refuses or does not finish
    /// is told; the message is no part of the conversation then, and `/retry` sends it again.
    fn say(&mut self, message: &str) -> Result<ControlFlow<()>, RemoteChatError> {
        self.unanswered = None;
        self.messages.push(Message::user(message));
        let answered = loop {
            match self.print_answer() {
                Err(RemoteChatError::Remote(error))
                    if error.is_too_long() && self.overflow == Overflow::Drop && self.drop_oldest() => {}
                answered => break answered,
            }
        };
        let answer = match answered {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(ControlFlow::Break(())),
            Err(RemoteChatError::Remote(
                error @ (RemoteError::Refused { .. }
                | RemoteError::Connect { .. }
                | RemoteError::BrokenOff { .. }),
            )) => {
                self.messages.pop();
                self.unanswered = Some(message.to_owned());
                tell(&format!("{error}; /retry sends the message again"));
                return Ok(ControlFlow::Continue(()));
            }
            Err(error) => return Err(error),
        };
        match answer.reason.as_deref() {
            None => tell("(stopped)"),
            Some("length") => tell("(the answer is cut: at max-tokens, or because the context is full)"),
            Some(_) => {}
        }
        self.messages.push(Message::assistant(&answer.text));
        self.last = Some(answer);
        // The same message may get another answer.
        self.options.sampling.seed = self.options.sampling.seed.wrapping_add(1);
        self.keep();
        Ok(ControlFlow::Continue(()))
    }

    /// Forgets the oldest turn, but neither the system prompt nor the last message.
    fn drop_oldest(&mut self) -> bool {
        let first = usize::from(self.system().is_some());
        let next = self.messages.iter().skip(first + 1).position(|message| message.role == "user");
        let Some(next) = next.map(|at| at + first + 1) else { return false };
        self.messages.drain(first..next);
        tell(&dropped_line(1, "turn"));
        true
    }

    /// `None` if the reader of the answers closed the pipe.
    fn print_answer(&self) -> Result<Option<Answer>, RemoteChatError> {
        let flag = Arc::new(AtomicBool::new(false));
        let cancel = CancelOnCtrlC::new(Arc::clone(&flag));
        let (mut out, mut failed, mut said) = (Wrapped::stdout(), None, false);
        let mut spinner = Some(prefill_spinner(None));
        let answered = answer(self.client, "/v1/chat/completions", self.request(), &flag, |piece| {
            spinner.take();
            said |= !piece.is_empty();
            if let Err(error) = out.push(piece) {
                flag.store(true, Ordering::Relaxed);
                failed.get_or_insert(error);
            }
        });
        drop(spinner);
        drop(cancel);
        match failed {
            Some(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(None),
            Some(error) => return Err(error.into()),
            None => {}
        }
        let end = if io::stdout().is_terminal() { "\n\n" } else { "\n" };
        let answer = match answered {
            Ok(answer) => answer,
            Err(error) => {
                if said {
                    out.finish(end)?;
                }
                return Err(error.into());
            }
        };
        out.finish(end)?;
        Ok(Some(answer))
    }
}
