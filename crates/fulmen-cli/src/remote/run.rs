//! `fulmen run --server`.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fulmen_engine::GenerateOptions;
use serde_json::{Value, json};

use super::answer::{Answer, answer, sampling_fields};
use super::client::{Client, RemoteError};
use crate::error::CommandError;
use crate::model::interrupt::{self, CancelOnCtrlC};
use crate::output::{json as json_text, print, tell, tell_dimmed};
use crate::progress::prefill_spinner;
use crate::wrap::Wrapped;

/// What a server is asked.
pub(crate) struct Question<'a> {
    /// One of its models; its first one without a name.
    pub(crate) model: Option<&'a str>,
    pub(crate) prompt: &'a str,
    pub(crate) system: Option<&'a str>,
    /// Whether the text is continued, instead of answered.
    pub(crate) raw: bool,
    pub(crate) think: Option<bool>,
    /// `response_format` of the API.
    pub(crate) format: Option<Value>,
    pub(crate) options: &'a GenerateOptions,
    pub(crate) json: bool,
    pub(crate) quiet: bool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoteRunError {
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error("cannot write the answer: {0}")]
    Write(#[from] io::Error),
}

impl RemoteRunError {
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, RemoteRunError::Remote(error) if error.is_usage())
    }
}

impl Question<'_> {
    fn request(&self, model: &str) -> (&'static str, Value) {
        let mut body = json!({ "model": model });
        let path = if self.raw {
            body["prompt"] = json!(self.prompt);
            "/v1/completions"
        } else {
            let user = json!({ "role": "user", "content": self.prompt });
            let system = self.system.map(|text| json!({ "role": "system", "content": text }));
            body["messages"] = system.into_iter().chain([user]).collect();
            "/v1/chat/completions"
        };
        if let Some(think) = self.think {
            body["chat_template_kwargs"] = json!({ "enable_thinking": think });
        }
        if let Some(format) = &self.format {
            body["response_format"] = format.clone();
        }
        sampling_fields(self.options, &mut body);
        if self.raw && self.options.max_tokens == usize::MAX {
            // The API's own default is 16.
            body["max_tokens"] = json!(i32::MAX);
        }
        (path, body)
    }
}

/// Asks a server and prints its answer. Returns the exit code.
pub(crate) fn run(client: &Client, question: &Question<'_>) -> Result<i32, RemoteRunError> {
    let model = match question.model {
        Some(model) => model.to_owned(),
        None => client.first_model()?,
    };
    let (path, body) = question.request(&model);
    let flag = Arc::new(AtomicBool::new(false));
    let cancel = CancelOnCtrlC::new(Arc::clone(&flag));
    let (mut out, mut failed) = (Wrapped::stdout(), None);
    let mut spinner = Some(prefill_spinner(None));
    let answered = answer(client, path, body, &flag, |piece| {
        spinner.take();
        if !question.json
            && let Err(error) = out.push(piece)
        {
            flag.store(true, Ordering::Relaxed);
            failed.get_or_insert(error);
        }
    });
    drop(spinner);
    drop(cancel);
    match failed {
        // A closed pipe is no error.
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(0),
        Some(error) => return Err(error.into()),
        None => {}
    }
    let answer = answered?;
    if question.json {
        print(&as_json(client, &model, &answer, question))?;
    } else {
        let line_open = io::stdout().is_terminal() && !answer.text.ends_with('\n');
        match out.finish(if line_open { "\n" } else { "" }) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(0),
            result => result?,
        }
        if !question.quiet {
            if io::stdout().is_terminal() {
                tell("");
            }
            tell_dimmed(&answer.stats(client.server()));
        }
    }
    Ok(if answer.reason.is_none() { interrupt::EXIT_CODE } else { 0 })
}

/// Field names here are an interface: add, do not rename. Where the local command has the same, they are
/// called the same.
fn as_json(client: &Client, model: &str, answer: &Answer, question: &Question<'_>) -> String {
    let reason = match answer.reason.as_deref() {
        None => "cancelled",
        Some("stop") => "end",
        Some("length") => "max_tokens",
        Some(other) => other,
    };
    json_text(&json!({
        "model": model,
        "server": client.server(),
        "text": answer.text,
        "reasoning": (!answer.reasoning.is_empty()).then_some(&answer.reasoning),
        "reason": reason,
        "seed": question.options.sampling.seed,
        "prompt_token_count": answer.prompt_tokens,
        "cached_token_count": answer.cached_tokens,
        "token_count": answer.tokens,
        "first_token_seconds": answer.first.as_secs_f64(),
        "decode_seconds": answer.rest.as_secs_f64(),
        "decode_tokens_per_second": answer.rate(),
    }))
}
