//! Lines of JSON.

use std::time::{Duration, SystemTime};

use super::time::rfc3339;
use super::types::{OllamaAnswer, OllamaChatLine, OllamaEnd, OllamaTextLine};
use crate::error::{ApiError, ErrorShape};
use crate::generation::{Answer, Encode, Ending, Output, Piece, json_line};

/// What a line holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Chat,
    Text,
}

/// Writes lines.
pub(super) struct LineEncoder {
    pub(super) model: String,
    pub(super) form: Form,
    /// How long the model took to be there.
    pub(super) load: Duration,
}

impl LineEncoder {
    fn write(&self, piece: Piece, ending: Option<&Ending>, out: &mut Vec<u8>) {
        let (model, created_at) = (self.model.clone(), rfc3339(SystemTime::now()));
        let (done, end) = (ending.is_some(), ending.map(|ending| OllamaEnd::new(ending, self.load)));
        match self.form {
            Form::Chat => {
                let message = OllamaAnswer {
                    role: "assistant",
                    content: piece.content,
                    thinking: piece.reasoning,
                    tool_calls: piece.calls.into_iter().map(Into::into).collect(),
                };
                json_line(&OllamaChatLine { model, created_at, message, done, end }, out);
            }
            Form::Text => {
                let (response, thinking) = (piece.content, piece.reasoning);
                json_line(&OllamaTextLine { model, created_at, response, thinking, done, end }, out);
            }
        }
    }

    /// A whole answer in one line.
    pub(super) fn whole(&self, answer: Answer) -> Vec<u8> {
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
