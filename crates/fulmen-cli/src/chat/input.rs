//! Where messages come from: a terminal with line editing, or lines of standard input.

use std::io::{self, BufRead, IsTerminal};
use std::ops::ControlFlow;

use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Context, Editor, Helper};

use super::command::{self, COMMANDS, Command};
use super::message::{is_complete, joined};
use super::settings;
use super::state::History;
use crate::output::tell;

/// A line of a chat.
pub(crate) enum Turn<'a> {
    /// A message; it may be empty.
    Message(&'a str),
    Command(Command<'a>),
}

/// What came in.
enum Next {
    /// A message or a command.
    Line(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    /// The end of the input, or Ctrl-D.
    End,
}

/// A source of messages.
pub(crate) enum Input {
    Terminal(Box<Terminal>),
    Lines(Lines),
}

impl Input {
    /// A line editor if stdin and stdout are a terminal that can move its cursor, otherwise plain lines.
    ///
    /// Create it before [`crate::model::interrupt::install`]: the editor takes Ctrl-C for itself when it is
    /// created, and the handler that is installed last gets it. At the prompt, Ctrl-C is a key.
    pub(crate) fn new(history: bool) -> Result<Input, ReadlineError> {
        let dumb =
            cfg!(unix) && std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let terminal = io::stdin().is_terminal();
        if terminal && io::stdout().is_terminal() && !dumb {
            return Ok(Input::Terminal(Box::new(Terminal::new(history)?)));
        }
        Ok(Input::Lines(Lines { number: 0, prompt: terminal }))
    }

    /// Whether a person types.
    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal(_)) || io::stdin().is_terminal()
    }

    /// Passes messages and commands on, until the input ends or `take` breaks. What starts like a command and
    /// is none is reported and left out.
    pub(crate) fn each<E: From<ReadlineError>>(
        &mut self,
        mut take: impl FnMut(Turn<'_>) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        loop {
            let line = match self.next()? {
                Next::Line(line) => line,
                Next::Interrupted => {
                    tell("(Ctrl-D exits)");
                    continue;
                }
                Next::End => return Ok(()),
            };
            let turn = match command::parse(&line) {
                None => Turn::Message(&line),
                Some(Ok(command)) => Turn::Command(command),
                Some(Err(mistake)) => {
                    tell(&mistake.to_string());
                    continue;
                }
            };
            if take(turn)?.is_break() {
                return Ok(());
            }
        }
    }

    /// The next message or command. Lines that are not UTF-8 are reported and left out.
    fn next(&mut self) -> Result<Next, ReadlineError> {
        match self {
            Input::Terminal(terminal) => terminal.next(),
            Input::Lines(lines) => Ok(lines.next(&mut io::stdin().lock())?),
        }
    }
}

/// A line editor. It lives as long as the chat: lines that were typed while an answer was printed are in its
/// buffer.
pub(crate) struct Terminal {
    editor: Editor<Assistant, DefaultHistory>,
    history: Option<History>,
}

impl Terminal {
    fn new(history: bool) -> Result<Terminal, ReadlineError> {
        let config = Config::builder().completion_type(CompletionType::List).build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(Assistant { files: FilenameCompleter::new() }));
        let history = if history { History::new() } else { None };
        for line in history.iter().flat_map(History::lines) {
            editor.add_history_entry(line)?;
        }
        Ok(Terminal { editor, history })
    }

    fn next(&mut self) -> Result<Next, ReadlineError> {
        loop {
            match self.editor.readline("> ") {
                Ok(line) => {
                    if !line.trim().is_empty() && self.editor.add_history_entry(&line)? {
                        self.history.iter().for_each(|history| history.add(&line));
                    }
                    return Ok(Next::Line(joined(&line)));
                }
                Err(ReadlineError::Interrupted) => return Ok(Next::Interrupted),
                Err(ReadlineError::Eof) => return Ok(Next::End),
                Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    tell("that line is not UTF-8; it is left out");
                }
                // The window has another size: the line is asked for again.
                Err(ReadlineError::Signal(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Completes commands, their arguments and messages of several lines.
struct Assistant {
    files: FilenameCompleter,
}

impl Helper for Assistant {}
impl Hinter for Assistant {
    type Hint = String;
}
impl Highlighter for Assistant {}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match is_complete(context.input()) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = &line[..position];
        let (command, argument) = before.split_once(' ').map_or((before, None), |(a, b)| (a, Some(b)));
        match (command, argument) {
            ("/load" | "/save", Some(_)) => self.files.complete_path(line, position),
            ("/set", Some(name)) => Ok((position - name.len(), candidates(settings::NAMES, name))),
            (command, None) if command.starts_with('/') => {
                let names: Vec<&str> = COMMANDS.iter().map(|info| info.name).collect();
                Ok((0, candidates(&names, command)))
            }
            _ => Ok((position, Vec::new())),
        }
    }
}

/// The names that start with some letters, and a space after each.
fn candidates(names: &[&str], start: &str) -> Vec<Pair> {
    let matching = names.iter().filter(|name| name.starts_with(start));
    matching.map(|name| Pair { display: (*name).to_owned(), replacement: format!("{name} ") }).collect()
}

/// Plain lines of standard input.
pub(crate) struct Lines {
    /// The number of the last line.
    number: usize,
    /// Whether a prompt is shown.
    prompt: bool,
}

impl Lines {
    fn next(&mut self, input: &mut impl BufRead) -> io::Result<Next> {
        let mut text = String::new();
        loop {
            if self.prompt {
                eprint!("> ");
            }
            let mut bytes = Vec::new();
            let count = input.read_until(b'\n', &mut bytes)?;
            if count == 0 {
                return Ok(if text.is_empty() { Next::End } else { Next::Line(joined(&text)) });
            }
            self.number += 1;
            if bytes.ends_with(b"\n") {
                bytes.pop();
            }
            if bytes.ends_with(b"\r") {
                bytes.pop();
            }
            match String::from_utf8(bytes) {
                Ok(line) => text += &line,
                Err(error) => {
                    let at = error.utf8_error().valid_up_to();
                    let number = self.number;
                    tell(&format!(
                        "line {number} is not UTF-8 (the first bad byte is at offset {at}); it is left out"
                    ));
                    // The rest of a message of several lines may still make sense.
                    if text.is_empty() {
                        continue;
                    }
                }
            }
            if is_complete(&text) {
                return Ok(Next::Line(joined(&text)));
            }
            text.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut bytes: &[u8]) -> Vec<String> {
        let mut lines = Lines { number: 0, prompt: false };
        let mut found = Vec::new();
        while let Next::Line(line) = lines.next(&mut bytes).unwrap() {
            found.push(line);
        }
        found
    }

    #[test]
    fn lines_are_messages() {
        assert_eq!(all(b""), [""; 0]);
        assert_eq!(all(b"one\r\n\n two \nthree"), ["one", "", "two", "three"]);
        assert_eq!(all(b"one\\\ntwo\nthree\\"), ["one\ntwo", "three"]);
        assert_eq!(all(b"\"\"\"\na\n\nb\n\"\"\"\nc\n\"\"\"\nd"), ["a\n\nb", "c", "d"]);
    }

    #[test]
    fn a_line_that_is_not_utf_8_is_left_out() {
        assert_eq!(all(b"one\n\xff\xfe\ntwo\ncaf\xe9"), ["one", "two"]);
        assert_eq!(all(b"\"\"\"\na\n\xff\nb\"\"\"\n"), ["a\n\nb"]);
    }

    #[test]
    fn commands_settings_and_nothing_else_are_completed() {
        let assistant = Assistant { files: FilenameCompleter::new() };
        let history = DefaultHistory::new();
        let complete = |line: &str| {
            let found = assistant.complete(line, line.len(), &Context::new(&history)).unwrap();
            (found.0, found.1.into_iter().map(|pair| pair.replacement).collect::<Vec<_>>())
        };
        assert_eq!(complete("/con"), (0, vec!["/context ".to_owned()]));
        assert_eq!(complete("/s").1, ["/system ", "/set ", "/stats ", "/save "]);
        assert_eq!(complete("/set top"), (5, vec!["top-k ".to_owned(), "top-p ".to_owned()]));
        assert_eq!(complete("hello /con").1.len(), 0);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("talk.json"), "").unwrap();
        let (_, found) = complete(&format!("/load {}/ta", folder.path().display()));
        assert!(found.len() == 1 && found[0].ends_with("talk.json"), "{found:?}");
    }
}
