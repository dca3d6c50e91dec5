//! The commands of a chat: lines that start with a slash.

use crate::output::columns_of_text;

/// What a line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    Clear,
    Context,
    Help,
    Load(&'a str),
    Quit,
    Retry,
    Save(&'a str),
    /// Shows all settings, or changes one.
    Set(Option<(&'a str, &'a str)>),
    Stats,
    /// Shows the system prompt, or replaces it.
    System(Option<&'a str>),
    Undo,
}

/// A command as it is listed.
pub(crate) struct CommandInfo {
    pub(crate) name: &'static str,
    argument: &'static str,
    about: &'static str,
}

const fn info(name: &'static str, argument: &'static str, about: &'static str) -> CommandInfo {
    CommandInfo { name, argument, about }
}

pub(crate) const COMMANDS: &[CommandInfo] = &[
    info("/help", "", "show this list"),
    info("/system", "[TEXT]", "show or replace the system prompt; \"\" removes it"),
    info("/set", "[NAME VALUE]", "show or change settings, such as /set temperature 0.2"),
    info("/retry", "", "answer the last message again"),
    info("/undo", "", "forget the last message and its answer"),
    info("/clear", "", "start a new conversation"),
    info("/context", "", "show how full the context is"),
    info("/stats", "", "show the speed of the last answer"),
    info("/save", "FILE", "save the conversation as JSON"),
    info("/load", "FILE", "continue a saved conversation"),
    info("/quit", "", "exit (also /exit, /bye, Ctrl-D)"),
];

/// A line that starts like a command and is none, or lacks its argument.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("unknown command {name}; /help lists all commands")]
    Unknown { name: String },
    #[error("unknown command {name}; did you mean {similar}?")]
    Similar { name: String, similar: &'static str },
    #[error("{name} takes no argument")]
    NoArgument { name: &'static str },
    #[error("{name} needs a file name: {name} chat.json")]
    NeedsFile { name: &'static str },
    #[error("/set needs a name and a value, such as /set temperature 0.2; /set alone shows all settings")]
    NeedsValue,
}

/// The command on a line; `None` for a message. `/usr/bin` starts a message.
pub(crate) fn parse(line: &str) -> Option<Result<Command<'_>, CommandError>> {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let word = name.strip_prefix('/')?;
    if !word.chars().all(|c| c.is_ascii_alphabetic() || c == '?') {
        return None;
    }
    Some(command(name, rest.trim()))
}

fn command<'a>(name: &str, rest: &'a str) -> Result<Command<'a>, CommandError> {
    let plain = |name, command| match rest {
        "" => Ok(command),
        _ => Err(CommandError::NoArgument { name }),
    };
    let file = |name| if rest.is_empty() { Err(CommandError::NeedsFile { name }) } else { Ok(rest) };
    match name {
        "/help" | "/?" | "/h" => plain("/help", Command::Help),
        "/clear" | "/new" => plain("/clear", Command::Clear),
        "/context" => plain("/context", Command::Context),
        "/retry" => plain("/retry", Command::Retry),
        "/stats" => plain("/stats", Command::Stats),
        "/undo" => plain("/undo", Command::Undo),
        "/quit" | "/exit" | "/bye" | "/q" => plain("/quit", Command::Quit),
        "/load" => file("/load").map(Command::Load),
        "/save" => file("/save").map(Command::Save),
        "/system" => Ok(Command::System((!rest.is_empty()).then_some(rest))),
        "/set" if rest.is_empty() => Ok(Command::Set(None)),
        "/set" => match rest.split_once(char::is_whitespace) {
            Some((name, value)) => Ok(Command::Set(Some((name, value.trim())))),
            None => Err(CommandError::NeedsValue),
        },
        name => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> CommandError {
    let close = |info: &&CommandInfo| {
        info.name.starts_with(name) || (name.len() > 3 && strsim::levenshtein(info.name, name) <= 2)
    };
    let name = name.to_owned();
    match COMMANDS.iter().find(close) {
        Some(info) if name.len() > 1 => CommandError::Similar { name, similar: info.name },
        _ => CommandError::Unknown { name },
    }
}

/// What `/help` shows.
pub(crate) fn help() -> String {
    let rows: Vec<[String; 2]> = COMMANDS
        .iter()
        .map(|info| [format!("{} {}", info.name, info.argument), info.about.to_owned()])
        .collect();
    let more = "\
Ctrl-C stops an answer. Tab completes commands, settings and file names; the arrow keys recall lines.
A line that ends with \\ continues in the next one, and \"\"\" starts and ends a message of several lines.";
    format!("{}{more}", columns_of_text(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_messages() {
        assert_eq!(parse("Hello /help"), None);
        assert_eq!(parse("/usr/bin is what?"), None);
        assert_eq!(parse("/2 + 2"), None);
        assert_eq!(parse("/help"), Some(Ok(Command::Help)));
        assert_eq!(parse("/set"), Some(Ok(Command::Set(None))));
        assert_eq!(parse("/set top-p  0.5 "), Some(Ok(Command::Set(Some(("top-p", "0.5"))))));
        assert_eq!(parse("/system  Be brief. "), Some(Ok(Command::System(Some("Be brief.")))));
        assert_eq!(parse("/save my chat.json"), Some(Ok(Command::Save("my chat.json"))));
    }

    #[test]
    fn mistakes_are_explained() {
        let error = |line| parse(line).unwrap().unwrap_err().to_string();
        assert_eq!(error("/contxt"), "unknown command /contxt; did you mean /context?");
        assert_eq!(error("/re"), "unknown command /re; did you mean /retry?");
        assert_eq!(error("/nonsense"), "unknown command /nonsense; /help lists all commands");
        assert_eq!(error("/"), "unknown command /; /help lists all commands");
        assert_eq!(error("/undo 3"), "/undo takes no argument");
        assert_eq!(error("/load"), "/load needs a file name: /load chat.json");
        assert!(error("/set temperature").starts_with("/set needs a name and a value"));
    }

    #[test]
    fn every_listed_command_is_one() {
        for info in COMMANDS {
            assert!(!matches!(parse(info.name), None | Some(Err(CommandError::Unknown { .. }))));
            assert!(help().contains(info.name));
        }
    }
}
