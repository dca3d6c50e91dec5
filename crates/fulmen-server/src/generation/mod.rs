//! From a checked request to pieces of text, for all APIs.

mod choice;
mod choices;
mod embed;
mod params;
mod prompt;
mod stream;

pub(crate) use choice::{EndReason, Ending, Output, Piece, TokenLogprob, TokenUsage};
pub(crate) use choices::{Answer, Choices};
pub(crate) use embed::embed;
pub use params::SamplingDefaults;
pub(crate) use params::{GenerationParams, SamplingFields};
pub(crate) use prompt::{ChatInput, Prompt, tokenize};
pub(crate) use stream::{Encode, Streaming, json_line, sse_data, sse_event, stream, stream_ends};
