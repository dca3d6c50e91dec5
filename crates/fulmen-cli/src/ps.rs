//! `fulmen ps` and `fulmen stop`: the loaded models of a running server.

use std::io;

use fulmen_core::device::format_bytes;
use serde_json::{Value, json};

use crate::error::CommandError;
use crate::output::{columns_left, json as json_text, print, printable, tell};
use crate::remote::{RemoteError, ServerOption};

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

/// Why there is no list.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PsError {
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error("cannot write the list: {0}")]
    Write(#[from] io::Error),
}

impl CommandError for PsError {
    fn is_usage(&self) -> bool {
        matches!(self, PsError::Remote(error) if error.is_usage())
    }
}

pub(crate) fn ps(args: &PsArgs) -> Result<(), PsError> {
    let answer = args.server.client()?.ask("/api/ps", None)?;
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
    args.server.client()?.ask("/api/generate", Some(&body))?;
    tell(&format!("{} will be unloaded when its requests finish", printable(&args.name)));
    Ok(())
}
