//! The event stream of `/v1/chat/completions`.

use fulmen_model::template::CallPiece;
use serde::Serialize;

use super::wire::{ChatLogprobs, Usage, finish_reason, sse_done, sse_error};
use crate::error::ApiError;
use crate::generation::{Encode, Output, sse_data};
use crate::ids;

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChunkChoice>,
    /// `null` in all chunks but the last one, if the client wants it there.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, PartialEq, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallDelta>,
}

/// What is new of a call. The first one has its id and its name.
#[derive(PartialEq, Serialize)]
struct CallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(PartialEq, Serialize)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

impl From<CallPiece> for CallDelta {
    fn from(piece: CallPiece) -> CallDelta {
        let CallPiece { call, name, arguments, .. } = piece;
        CallDelta {
            index: call,
            id: name.is_some().then(|| ids::unique("call_")),
            kind: name.is_some().then_some("function"),
            function: FunctionDelta { name, arguments },
        }
    }
}

/// Writes chunks.
pub(crate) struct ChatEncoder {
    id: String,
    created: u64,
    model: String,
    choices: usize,
    include_usage: bool,
    with_logprobs: bool,
    usage: Usage,
}

impl ChatEncoder {
    pub(crate) fn new(
        model: String,
        choices: usize,
        include_usage: bool,
        with_logprobs: bool,
    ) -> ChatEncoder {
        ChatEncoder {
            id: ids::unique("chatcmpl-"),
            created: ids::now(),
            model,
            choices,
            include_usage,
            with_logprobs,
            usage: Usage::default(),
        }
    }

    fn write(&self, choices: Vec<ChunkChoice>, usage: Option<Usage>, out: &mut Vec<u8>) {
        let chunk = Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            choices,
            usage: self.include_usage.then_some(usage),
        };
        sse_data(&chunk, out);
    }

    fn write_delta(
        &self,
        index: usize,
        delta: Delta,
        logprobs: Option<ChatLogprobs>,
        finish_reason: Option<&'static str>,
        out: &mut Vec<u8>,
    ) {
        self.write(vec![ChunkChoice { index, delta, logprobs, finish_reason }], None, out);
    }
}

impl Encode for ChatEncoder {
    fn start(&mut self, out: &mut Vec<u8>) {
        for index in 0..self.choices {
            let role = Some("assistant");
            let delta = Delta { role, content: Some(String::new()), ..Delta::default() };
            self.write_delta(index, delta, None, None, out);
        }
    }

    fn output(&mut self, choice: usize, output: Output, out: &mut Vec<u8>) {
        match output {
            Output::Piece(piece) => {
                // The end of a call has no mark of its own here.
                let calls = piece.call_pieces.into_iter();
                let calls = calls.filter(|piece| piece.name.is_some() || !piece.arguments.is_empty());
                let delta = Delta {
                    role: None,
                    content: (!piece.content.is_empty()).then_some(piece.content),
                    reasoning_content: (!piece.reasoning.is_empty()).then_some(piece.reasoning),
                    tool_calls: calls.map(CallDelta::from).collect(),
                };
                if delta == Delta::default() && piece.logprobs.is_empty() {
                    return;
                }
                let logprobs = self.with_logprobs.then(|| ChatLogprobs::new(&piece.logprobs));
                self.write_delta(choice, delta, logprobs, None, out);
            }
            Output::End(ending) => {
                self.usage.add(ending.usage, choice == 0);
                let reason = finish_reason(&ending.reason);
                self.write_delta(choice, Delta::default(), None, Some(reason), out);
            }
        }
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        sse_error(error, out);
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.include_usage {
            self.write(Vec::new(), Some(self.usage), out);
        }
        sse_done(out);
    }
}
