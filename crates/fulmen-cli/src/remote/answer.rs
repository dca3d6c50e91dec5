//! A streamed answer of a server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use fulmen_engine::{GenerateOptions, Sampling};
use serde_json::{Value, json};

use super::client::{Client, RemoteError};
use crate::output::counted;

/// A whole answer, or what there is of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answer {
    /// The text without thoughts.
    pub(super) text: String,
    pub(super) reasoning: String,
    /// Why it ended, as the server says; `None` if it was stopped.
    pub(super) reason: Option<String>,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) tokens: u64,
    /// From the request to the first text.
    pub(super) first: Duration,
    /// From the first text to the last.
    pub(super) rest: Duration,
}

impl Answer {
    /// Tokens per second after the first one; 0 if that says nothing.
    pub(super) fn rate(&self) -> f64 {
        let seconds = self.rest.as_secs_f64();
        if self.tokens > 1 && seconds > 0.0 { (self.tokens - 1) as f64 / seconds } else { 0.0 }
    }

    /// Tokens and times in one line.
    pub(super) fn stats(&self, server: &str) -> String {
        let cached = match self.cached_tokens {
            0 => String::new(),
            cached => format!(" ({cached} cached)"),
        };
        let rate = if self.rate() > 0.0 { format!(", {:.1} tok/s", self.rate()) } else { String::new() };
        let mut parts = vec![
            format!("prompt {}{cached}", counted(self.prompt_tokens as usize, "token")),
            format!("answer {}{rate}", counted(self.tokens as usize, "token")),
            format!("first token after {:.0} ms", 1e3 * self.first.as_secs_f64()),
            server.to_owned(),
        ];
        match self.reason.as_deref() {
            None => parts.push("stopped by Ctrl-C".to_owned()),
            Some("length") => parts.push("stopped at --max-tokens, or the context is full".to_owned()),
            Some(_) => {}
        }
        parts.join(" · ")
    }
}

/// The fields of a request that generation options become.
pub(super) fn sampling_fields(options: &GenerateOptions, body: &mut Value) {
    let Sampling { temperature, top_k, top_p, min_p, repeat_penalty, seed, .. } = options.sampling;
    body["temperature"] = json!(temperature);
    body["top_k"] = json!(top_k);
    body["top_p"] = json!(top_p);
    body["min_p"] = json!(min_p);
    body["repetition_penalty"] = json!(repeat_penalty);
    // The API has signed seeds.
    body["seed"] = json!(seed as i64);
    if options.max_tokens != usize::MAX {
        body["max_tokens"] = json!(options.max_tokens);
    }
    if !options.stop.is_empty() {
        body["stop"] = json!(options.stop);
    }
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
}

/// How often a waiting command looks whether it was cancelled.
const POLL: Duration = Duration::from_millis(100);

/// Sends a request on a thread of its own and passes the events on: a server that takes long for its answer,
/// or never gives one, can be left at any time. When the receiver is gone, the thread ends with the next
/// event, which closes the connection.
fn events(client: &Client, path: &'static str, body: Value) -> Receiver<Result<Option<Value>, RemoteError>> {
    let client = client.clone();
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut events = match client.stream(path, &body) {
            Ok(events) => events,
            Err(error) => {
                let _ = send.send(Err(error));
                return;
            }
        };
        loop {
            let event = events.next();
            let last = !matches!(event, Ok(Some(_)));
            if send.send(event).is_err() || last {
                return;
            }
        }
    });
    receive
}

/// The next event; `None` after the last one, or if `cancelled` was set first.
fn next(
    client: &Client,
    events: &Receiver<Result<Option<Value>, RemoteError>>,
    cancelled: &AtomicBool,
) -> Result<Option<Value>, RemoteError> {
    while !cancelled.load(Ordering::Relaxed) {
        match events.recv_timeout(POLL) {
            Ok(event) => return event,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(client.broken_off()),
        }
    }
    Ok(None)
}

/// Sends a request and gives each piece of the answer, thoughts between `<think>` and `</think>`. When
/// `cancelled` is set, the answer ends with what there is.
pub(super) fn answer(
    client: &Client,
    path: &'static str,
    body: Value,
    cancelled: &AtomicBool,
    mut piece: impl FnMut(&str),
) -> Result<Answer, RemoteError> {
    let sent = Instant::now();
    let events = events(client, path, body);
    let mut answer = Answer::default();
    let mut first = None;
    let mut thinking = false;
    while let Some(event) = next(client, &events, cancelled)? {
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            answer.prompt_tokens = usage["prompt_tokens"].as_u64().unwrap_or(0);
            answer.tokens = usage["completion_tokens"].as_u64().unwrap_or(0);
            answer.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        }
        let Some(choice) = event["choices"].get(0) else { continue };
        let (delta, text) = (&choice["delta"], &choice["text"]);
        let reasoning = delta["reasoning_content"].as_str().unwrap_or_default();
        let text = delta["content"].as_str().or(text.as_str()).unwrap_or_default();
        if !reasoning.is_empty() || !text.is_empty() {
            first.get_or_insert_with(Instant::now);
        }
        if !reasoning.is_empty() {
            piece(if thinking { "" } else { "<think>" });
            thinking = true;
            piece(reasoning);
            answer.reasoning += reasoning;
        }
        if !text.is_empty() {
            piece(if std::mem::take(&mut thinking) { "</think>" } else { "" });
            piece(text);
            answer.text += text;
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            answer.reason = Some(reason.to_owned());
        }
    }
    if cancelled.load(Ordering::Relaxed) {
        answer.reason = None;
    }
    if thinking {
        piece("</think>");
    }
    let first = first.unwrap_or_else(Instant::now);
    answer.first = first - sent;
    answer.rest = first.elapsed();
    Ok(answer)
}
