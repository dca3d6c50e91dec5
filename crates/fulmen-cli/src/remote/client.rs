//! Requests to a server.

use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body};

use crate::config::ConfigError;
use crate::error::CommandError;
use crate::output::printable;

/// How long a server may take for an answer that is not streamed, or for the first byte of one that is.
const PATIENCE: Duration = Duration::from_secs(600);
/// An event longer than this is no event.
const LONGEST_LINE: usize = 64 << 20;

/// Why a server did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoteError {
    #[error("no server at {server}: {error}; `fulmen serve` starts one")]
    Connect { server: String, error: Box<ureq::Error> },
    #[error("{server}: {message}")]
    Refused { server: String, message: String, code: Option<String> },
    #[error("{server}: the answer broke off: {error}")]
    BrokenOff { server: String, error: io::Error },
    #[error("{server} does not speak the OpenAI API: {reason}")]
    Protocol { server: String, reason: String },
    #[error("{0:?} is not the address of a server; expected http://HOST:PORT or https://HOST")]
    Address(String),
    #[error("cannot read the API key of {}: {error}", path.display())]
    KeyFile { path: PathBuf, error: io::Error },
    #[error("{} has no API key", path.display())]
    NoKey { path: PathBuf },
    #[error("the API key has characters that no header can have")]
    KeyCharacters,
    #[error(transparent)]
    Config(ConfigError),
}

impl CommandError for RemoteError {
    fn is_usage(&self) -> bool {
        matches!(self, RemoteError::Address(_) | RemoteError::KeyCharacters)
    }
}

impl RemoteError {
    /// Whether the prompt is longer than the context.
    pub(crate) fn is_too_long(&self) -> bool {
        matches!(self, RemoteError::Refused { code: Some(code), .. } if code == "context_length_exceeded")
    }
}

/// A server and the key for it.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    agent: Agent,
    server: String,
    authorization: Option<String>,
}

impl Client {
    pub(crate) fn new(server: &str, key: Option<String>) -> Result<Client, RemoteError> {
        let host = server.strip_prefix("http://").or_else(|| server.strip_prefix("https://"));
        if host.is_none_or(|host| host.is_empty() || host.starts_with('/')) {
            return Err(RemoteError::Address(server.to_owned()));
        }
        if key.as_ref().is_some_and(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(RemoteError::KeyCharacters);
        }
        let config = Agent::config_builder()
            .timeout_connect(Some(Duration::from_secs(10)))
            .timeout_recv_response(Some(PATIENCE))
            .http_status_as_error(false)
            .build();
        Ok(Client {
            agent: Agent::new_with_config(config),
            // Both the address of the server and that of its API are known as base URL.
            server: server.trim_end_matches('/').trim_end_matches("/v1").to_owned(),
            authorization: key.map(|key| format!("Bearer {key}")),
        })
    }

    /// The address.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// Asks the server, and returns its JSON.
    pub(crate) fn ask(&self, path: &str, body: Option<&Value>) -> Result<Value, RemoteError> {
        let mut response = self.send(path, body)?;
        let text = response.body_mut().read_to_string().map_err(|error| self.unreachable(error))?;
        serde_json::from_str(&text)
            .map_err(|error| self.protocol(format!("the answer to {path} is not JSON: {error}")))
    }

    /// The name of the first model.
    pub(crate) fn first_model(&self) -> Result<String, RemoteError> {
        let models = self.ask("/v1/models", None)?;
        let name = models["data"][0]["id"].as_str();
        name.map(str::to_owned).ok_or_else(|| self.protocol("/v1/models names no model".to_owned()))
    }

    /// Sends a request whose answer is an event stream.
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Result<Events<'_>, RemoteError> {
        let response = self.send(path, Some(body))?;
        Ok(Events { client: self, reader: BufReader::new(Box::new(response.into_body().into_reader())) })
    }

    /// A response with a status of success.
    fn send(&self, path: &str, body: Option<&Value>) -> Result<Response<Body>, RemoteError> {
        let url = format!("{}{path}", self.server);
        let sent = match body {
            Some(body) => {
                let mut request = self.agent.post(&url).header("content-type", "application/json");
                if let Some(key) = &self.authorization {
                    request = request.header("authorization", key);
                }
                request.send(body.to_string().as_bytes())
            }
            None => {
                let mut request = self.agent.get(&url);
                if let Some(key) = &self.authorization {
                    request = request.header("authorization", key);
                }
                request.call()
            }
        };
        let mut response = sent.map_err(|error| self.unreachable(error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let text = response.body_mut().read_to_string().unwrap_or_default();
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        Err(self.refused(&value).unwrap_or_else(|| {
            let message = format!("status {status}");
            RemoteError::Refused { server: self.server.clone(), message, code: None }
        }))
    }

    /// The error of a JSON object, in the shape of OpenAI or Ollama.
    pub(crate) fn refused(&self, value: &Value) -> Option<RemoteError> {
        let error = &value["error"];
        let message = printable(error["message"].as_str().or_else(|| error.as_str())?);
        let code = error["code"].as_str().map(str::to_owned);
        Some(RemoteError::Refused { server: self.server.clone(), message, code })
    }

    fn unreachable(&self, error: ureq::Error) -> RemoteError {
        RemoteError::Connect { server: self.server.clone(), error: Box::new(error) }
    }

    /// The answer ended before its last event.
    pub(super) fn broken_off(&self) -> RemoteError {
        let error = io::Error::from(io::ErrorKind::UnexpectedEof);
        RemoteError::BrokenOff { server: self.server.clone(), error }
    }

    pub(super) fn protocol(&self, reason: String) -> RemoteError {
        RemoteError::Protocol { server: self.server.clone(), reason }
    }
}

/// The events of a stream. Dropping it closes the connection, which cancels the answer.
pub(crate) struct Events<'a> {
    client: &'a Client,
    reader: BufReader<Box<dyn io::Read + 'a>>,
}

impl Events<'_> {
    /// The data of the next event; `None` after `[DONE]`.
    pub(super) fn next(&mut self) -> Result<Option<Value>, RemoteError> {
        loop {
            let mut line = Vec::new();
            let mut limited = io::Read::take(&mut self.reader, LONGEST_LINE as u64);
            let read = limited.read_until(b'\n', &mut line);
            let server = &self.client.server;
            let count = read.map_err(|error| RemoteError::BrokenOff { server: server.clone(), error })?;
            if count == 0 || count == LONGEST_LINE {
                return Err(self.client.broken_off());
            }
            let Some(data) = line.strip_prefix(b"data:") else { continue };
            let data = data.trim_ascii();
            if data == b"[DONE]" {
                return Ok(None);
            }
            let value: Value = serde_json::from_slice(data)
                .map_err(|error| self.client.protocol(format!("an event is not JSON: {error}")))?;
            return match self.client.refused(&value) {
                Some(error) => Err(error),
                None => Ok(Some(value)),
            };
        }
    }
}
