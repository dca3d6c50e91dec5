//! A running server: where it is, its key, and what it answers.

mod answer;
mod chat;
mod client;
mod run;

pub(crate) use chat::{RemoteChatError, Start, chat};
pub(crate) use client::{Client, RemoteError};
pub(crate) use run::{Question, RemoteRunError, run};

use std::path::Path;

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::config;

/// Where `fulmen serve` listens without options.
const DEFAULT_SERVER: &str = "http://127.0.0.1:8080";

/// A key in the environment; of several, separated by commas, the first one counts.
const KEY_VARIABLE: &str = "FULMEN_API_KEY";

/// The server that a command asks.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerOption {
    /// Address of the server.
    #[arg(long, value_name = "URL", default_value = DEFAULT_SERVER)]
    server: String,

    #[command(flatten)]
    key: KeyOption,
}

/// The key of a server.
#[derive(Debug, clap::Args)]
pub(crate) struct KeyOption {
    /// API key of the server; also FULMEN_API_KEY, or a file that the configuration names.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
}

/// A server that answers instead of a model in this process.
#[derive(Debug, clap::Args)]
pub(crate) struct AnsweringServer {
    /// Let a running server answer (`fulmen serve`, or another one with the OpenAI API), such as
    /// http://127.0.0.1:8080. MODEL is then the name of one of its models, by default the first.
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,

    /// API key of the server; also FULMEN_API_KEY, or a file that the configuration names.
    #[arg(long, value_name = "KEY", requires = "server")]
    api_key: Option<String>,
}

/// Options that only a model in this process has.
const LOCAL_OPTIONS: [&str; 11] = [
    "device",
    "threads",
    "kv",
    "chunk",
    "eager",
    "context",
    "no_check",
    "template",
    "ahead",
    "repeat_window",
    "profile",
];

/// The option of a model in this process that was given together with a server. Values of the environment and
/// of the configuration are for other runs.
pub(crate) fn misplaced_option(matches: &ArgMatches) -> Option<&'static str> {
    let (_, matches) = matches.subcommand().filter(|(name, _)| ["run", "chat"].contains(name))?;
    let given = |id: &str| {
        matches!(matches.try_contains_id(id), Ok(true))
            && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    LOCAL_OPTIONS.into_iter().filter(|_| given("server")).find(|id| given(id))
}

impl ServerOption {
    pub(crate) fn client(&self) -> Result<Client, RemoteError> {
        Client::new(&self.server, key(self.key.api_key.as_deref())?)
    }
}

impl AnsweringServer {
    /// The server, if one was named.
    pub(crate) fn client(&self) -> Result<Option<Client>, RemoteError> {
        let Some(server) = &self.server else { return Ok(None) };
        Ok(Some(Client::new(server, key(self.api_key.as_deref())?)?))
    }
}

/// The key of the option, of the environment, or of the file that the configuration names.
fn key(option: Option<&str>) -> Result<Option<String>, RemoteError> {
    let first =
        |text: &str| text.split([',', '\n']).map(str::trim).find(|key| !key.is_empty()).map(str::to_owned);
    if let Some(key) = option {
        return Ok(first(key));
    }
    if let Some(key) = std::env::var(KEY_VARIABLE).ok().as_deref().and_then(first) {
        return Ok(Some(key));
    }
    let Some(path) = config::current().server_key_file().map_err(RemoteError::Config)? else {
        return Ok(None);
    };
    read_key(&path).map(Some)
}

fn read_key(path: &Path) -> Result<String, RemoteError> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| RemoteError::KeyFile { path: path.to_owned(), error })?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.next().map(str::to_owned).ok_or_else(|| RemoteError::NoKey { path: path.to_owned() })
}
