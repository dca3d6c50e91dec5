//! Lines of JSON.

use std::time::{Duration, SystemTime};

use super::types::{OllamaAnswer, OllamaCall, OllamaChatLine, OllamaEnd, OllamaTextLine};
use crate::error::{ApiError, ErrorShape};
use crate::generation::{Answer, Encode, Ending, Output, Piece, json_line};
use crate::openai::wire::ChatLogprobs;
use crate::time::rfc3339;

/// What a line holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Chat,
    Text,
}

/// Writes lines.
pub(super) struct LineEncoder {
    model: String,
    form: Form,
    /// How long the model took to be there.
    load: Duration,
    with_logprobs: bool,
    /// Calls that were written.
    calls: usize,
}

impl LineEncoder {
    pub(super) fn new(model: &str, form: Form, load: Duration, with_logprobs: bool) -> LineEncoder {
        LineEncoder { model: model.to_owned(), form, load, with_logprobs, calls: 0 }
    }

    fn write(&mut self, piece: Piece, ending: Option<&Ending>, out: &mut Vec<u8>) {
        let (model, created_at) = (self.model.clone(), rfc3339(SystemTime::now()));
        let (done, end) = (ending.is_some(), ending.map(|ending| OllamaEnd::new(ending, self.load)));
        let logprobs = (self.with_logprobs && !piece.logprobs.is_empty())
            .then(|| ChatLogprobs::new(&piece.logprobs).into_tokens());
        match self.form {
            Form::Chat => {
                let first = self.calls;
                self.calls += piece.calls.len();
                let message = OllamaAnswer {
                    role: "assistant",
                    content: piece.content,
                    thinking: piece.reasoning,
                    tool_calls: piece
                        .calls
                        .into_iter()
                        .zip(first..)
                        .map(|(c, i)| OllamaCall::new(c, i))
                        .collect(),
                };
                json_line(&OllamaChatLine { model, created_at, message, logprobs, done, end }, out);
            }
            Form::Text => {
                let (response, thinking) = (piece.content, piece.reasoning);
                let line = OllamaTextLine { model, created_at, response, thinking, logprobs, done, end };
                json_line(&line, out);
            }
        }
    }

    /// A whole answer in one line.
    pub(super) fn whole(mut self, answer: Answer) -> Vec<u8> {
        let Answer { reasoning, content, calls, logprobs, ending, .. } = answer;
        let mut out = Vec::new();
        let piece = Piece { reasoning, content, calls, logprobs, ..Piece::default() };
        self.write(piece, Some(&ending), &mut out);
        out
    }
}

impl Encode for LineEncoder {
    fn start(&mut self, _: &mut Vec<u8>) {}

    fn output(&mut self, _: usize, output: Output, out: &mut Vec<u8>) {
        match output {
            Output::Piece(piece) => self.write(piece, None, out),
            Output::End(ending) => self.write(Piece::default(), Some(&ending), out),
        }
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        json_line(&error.json(ErrorShape::Ollama), out);
    }

    fn end(&mut self, _: &mut Vec<u8>) {}
}
