//! `fulmen ps` and `fulmen stop`: the loaded models of a running server.

use std::io;
use std::time::Duration;

use fulmen_core::device::format_bytes;
use serde_json::{Value, json};

use crate::error::CommandError;
use crate::output::{columns_left, json as json_text, print, printable, tell};

/// The running server.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerOption {
    /// Address of the server.
    #[arg(long, value_name = "URL", env = "FULMEN_SERVER", default_value = "http://127.0.0.1:8080")]
    server: String,

    /// API key of the server.
    #[arg(long, value_name = "KEY", env = "FULMEN_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
}

/// List the models that a running server has loaded.
#[derive(Debug, clap::Args)]
#[command(after_help = PS_EXAMPLES)]
pub(crate) struct PsArgs {
    #[command(flatten)]
    server: ServerOption,

    /// Print the list as JSON.
    #[arg(long)]
    json: bool,
}

const PS_EXAMPLES: &str = "\
Examples:
  fulmen ps
  fulmen ps --server http://127.0.0.1:9000 --json";

/// Unload a model of a running server, when its requests have ended.
#[derive(Debug, clap::Args)]
#[command(after_help = STOP_EXAMPLES)]
pub(crate) struct StopArgs {
    /// Name of the model, as `fulmen ps` shows it.
    #[arg(value_name = "NAME")]
    name: String,

    #[command(flatten)]
    server: ServerOption,
}

const STOP_EXAMPLES: &str = "\
Examples:
  fulmen stop qwen3-8b
  fulmen stop qwen3-8b --server http://127.0.0.1:9000";

/// Why a server did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PsError {
    #[error("no server at {server}: {error}; `fulmen serve` starts one")]
    Connect { server: String, error: Box<ureq::Error> },
    #[error("{server}: {message}")]
    Refused { server: String, message: String },
    #[error("cannot write the list: {0}")]
    Write(#[from] io::Error),
}

impl CommandError for PsError {}

impl ServerOption {
    /// Asks the server, and returns its JSON.
    fn ask(&self, path: &str, body: Option<&Value>) -> Result<Value, PsError> {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(60)))
            .http_status_as_error(false)
            .build();
        let agent = ureq::Agent::new_with_config(config);
        let server = self.server.trim_end_matches('/').to_owned();
        let url = format!("{server}{path}");
        let key = self.api_key.as_ref().map(|key| format!("Bearer {}", key.split(',').next().unwrap_or(key)));
        let sent = match body {
            Some(body) => {
                let mut request = agent.post(&url).header("content-type", "application/json");
                if let Some(key) = &key {
                    request = request.header("authorization", key);
                }
                request.send(body.to_string().as_bytes())
            }
            None => {
                let mut request = agent.get(&url);
                if let Some(key) = &key {
                    request = request.header("authorization", key);
                }
                request.call()
            }
        };
        let failed = |error| PsError::Connect { server: server.clone(), error: Box::new(error) };
        let mut response = sent.map_err(failed)?;
        let text = response.body_mut().read_to_string().map_err(failed)?;
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        if !response.status().is_success() {
            let message = match value["error"].as_str() {
                Some(message) => printable(message),
                None => format!("status {}", response.status().as_u16()),
            };
            return Err(PsError::Refused { server, message });
        }
        Ok(value)
    }
}

pub(crate) fn ps(args: &PsArgs) -> Result<(), PsError> {
    let answer = args.server.ask("/api/ps", None)?;
    if args.json {
        return Ok(print(&json_text(&answer["models"]))?);
    }
    let models = answer["models"].as_array().cloned().unwrap_or_default();
    if models.is_empty() {
        tell("no model is loaded");
        return Ok(());
    }
    let text = |value: &Value| printable(value.as_str().unwrap_or_default());
    let rows: Vec<Vec<String>> = models
        .iter()
        .map(|model| {
            vec![
                text(&model["name"]),
                format_bytes(model["size"].as_u64().unwrap_or(0)),
                text(&model["device"]),
                model["context_length"].to_string(),
                model["active_requests"].to_string(),
                model["expires_in"].as_f64().map_or("never".to_owned(), |time| format!("in {time:.0} s")),
            ]
        })
        .collect();
    Ok(print(&columns_left(&["name", "size", "device", "context", "requests", "unloaded"], &rows))?)
}

pub(crate) fn stop(args: &StopArgs) -> Result<(), PsError> {
    let body = json!({ "model": args.name, "keep_alive": 0, "stream": false });
    args.server.ask("/api/generate", Some(&body))?;
    tell(&format!("{} is unloaded when its requests have ended", printable(&args.name)));
    Ok(())
}
