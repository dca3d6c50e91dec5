//! The log of requests on stderr.

use std::sync::Arc;

use fulmen_model::template::{ParsedText, ToolCall};
use serde_json::{Value, json};

use crate::generation::{EndReason, TokenUsage};
use crate::ids;
use crate::options::LogFormat;
use crate::record::Line;
use crate::registry::Lease;

/// The name of a request, for its log.
#[derive(Clone, Debug)]
pub(crate) struct RequestName(pub(crate) Arc<str>);

/// Writes the line of a request. What comes from the client is escaped.
pub(crate) fn request(format: LogFormat, line: &Line<'_>) {
    let Line { request, method, path, status, time, answer, cut } = line;
    let (seconds, millis) = (ids::now(), time.as_secs_f64() * 1e3);
    match format {
        LogFormat::Off => {}
        LogFormat::Text => {
            let (request, path) = (request.escape_debug(), path.escape_debug());
            let answer = answer.map_or(String::new(), |(model, tokens)| {
                format!(" {} {tokens} tokens", model.escape_debug())
            });
            let cut = if *cut { " cut off" } else { "" };
            eprintln!("{seconds} {request} {method} {path} {status} {millis:.1} ms{answer}{cut}");
        }
        LogFormat::Json => {
            let mut value = json!({
                "time": seconds, "request": request, "method": method.as_str(), "path": path,
                "status": status, "ms": (millis * 10.0).round() / 10.0, "cut": cut,
            });
            if let Some((model, tokens)) = answer {
                value["model"] = json!(model);
                value["completion_tokens"] = json!(tokens);
            }
            eprintln!("{value}");
        }
    }
}

/// Logs the prompts and answers of a request; only made where the operator asks for it.
#[derive(Clone, Debug)]
pub(crate) struct PromptLog {
    format: LogFormat,
    request: Arc<str>,
}

impl PromptLog {
    pub(crate) fn new(format: LogFormat, request: Arc<str>) -> PromptLog {
        PromptLog { format, request }
    }

    /// The record of an answer that begins now.
    pub(crate) fn answer(&self, lease: &Lease, prompt: &[u32]) -> AnswerLog {
        let prompt = lease.tokenizer().decode_with_special(prompt).unwrap_or_default();
        let model = lease.spec().name.clone();
        AnswerLog { log: self.clone(), model, prompt, text: ParsedText::default() }
    }
}

/// A prompt and as much of its answer as there is.
#[derive(Debug)]
pub(crate) struct AnswerLog {
    log: PromptLog,
    model: String,
    prompt: String,
    text: ParsedText,
}

impl AnswerLog {
    pub(crate) fn push(&mut self, parsed: &ParsedText) {
        self.text.append(parsed.clone());
    }

    /// Writes a line. `reason` is `None` for an answer that was cancelled.
    pub(crate) fn write(self, reason: Option<&EndReason>, usage: &TokenUsage) {
        let AnswerLog { log, model, prompt, text } = self;
        let (time, request) = (ids::now(), &log.request);
        let reason = match reason {
            None => "cancelled",
            Some(EndReason::Stop | EndReason::StopString(_)) => "stop",
            Some(EndReason::Length) => "length",
            Some(EndReason::ToolCalls) => "tool_calls",
        };
        match log.format {
            LogFormat::Off => {}
            LogFormat::Text => eprintln!(
                "{time} {} {} prompt {prompt:?} answer {:?} {reason}",
                request.escape_debug(),
                model.escape_debug(),
                text.content,
            ),
            LogFormat::Json => {
                let call = |call: &ToolCall| json!({ "name": call.name, "arguments": call.arguments });
                let calls: Vec<Value> = text.calls.iter().map(call).collect();
                let line = json!({
                    "time": time, "request": request.as_ref(), "model": model, "prompt": prompt,
                    "reasoning": text.reasoning, "answer": text.content, "calls": calls, "end": reason,
                    "prompt_tokens": usage.prompt, "completion_tokens": usage.generated,
                });
                eprintln!("{line}");
            }
        }
    }
}
