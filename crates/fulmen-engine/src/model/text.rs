//! Text in, text out: requests with a prompt as text, answers as pieces of text.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fulmen_model::ModelError;
use fulmen_model::tokenizer::{Special, StreamDecoder, Tokenizer};

use super::EngineOptions;
use crate::engine::{Engine, RequestHandle, Shutdown};
use crate::error::{EngineError, RequestError};
use crate::generation::{Scanned, StopFinder};
use crate::request::{Constraint, Event, FinishReason, Request, SamplingParams, Stop, Usage};
use crate::scheduler::Stats;
use crate::step::Sampled;
use crate::{Model, Sampling};

/// A request for text.
pub struct TextRequest {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// The largest number of tokens to generate.
    pub max_tokens: u32,
    /// Stop strings: they end the text and are not part of it.
    pub stop: Vec<String>,
    /// Whether an end-of-generation token ends the text.
    pub stop_at_end: bool,
    /// Whether the text of control tokens is part of the text.
    pub show_special: bool,
    /// Control tokens whose text is part of the text.
    pub shown: Vec<u32>,
    /// How many of the most likely tokens are wanted with their log-probabilities; `None` for no
    /// log-probabilities.
    pub logprobs: Option<u8>,
    /// The same for the tokens of the prompt: see [`TextEvent::Prompt`].
    pub prompt_logprobs: Option<u8>,
    /// Ends the request with an error if it has not finished by then.
    pub timeout: Option<Duration>,
    /// Requests of higher priority come first.
    pub priority: i8,
    /// Who asks. Cached prefixes are shared only inside a tenant.
    pub tenant: Arc<str>,
    /// Restricts the tokens.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Whether cached prefixes may be used.
    pub use_prefix_cache: bool,
}

impl TextRequest {
    /// A greedy request that ends at an end-of-generation token, or where the context ends.
    pub fn new(prompt: Vec<u32>) -> TextRequest {
        TextRequest {
            prompt,
            sampling: Sampling::GREEDY,
            max_tokens: u32::MAX,
            stop: Vec::new(),
            stop_at_end: true,
            show_special: false,
            shown: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
            timeout: None,
            priority: 0,
            tenant: Arc::default(),
            constraint: None,
            use_prefix_cache: true,
        }
    }
}

/// Why a text ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextFinish {
    /// The model produced this end-of-generation token.
    EndToken(u32),
    /// This stop string was produced.
    StopString(String),
    /// The largest number of tokens was generated.
    MaxTokens,
    /// The context, or all KV pages together, is full.
    ContextFull,
}

/// An answer to a request for text. `Finished` or `Failed` is the last one.
#[derive(Clone, Debug, PartialEq)]
pub enum TextEvent {
    /// The tokens of the prompt with their log-probabilities, if they are wanted: before the first piece. The
    /// first token has none.
    Prompt(Vec<Sampled>),
    /// A token, and the text that is settled with it: whole characters, and nothing that may be the start of
    /// a stop string. It may be empty.
    Piece {
        /// The text.
        text: String,
        /// The token.
        token: Sampled,
    },
    /// The text is complete.
    Finished {
        /// Text that was held back.
        text: String,
        /// Why it ended.
        reason: TextFinish,
        /// What the request has used.
        usage: Usage,
    },
    /// The request ended with an error.
    Failed(RequestError),
}

/// An engine for a model with a tokenizer.
///
/// ```
/// use fulmen_cpu::CpuDispatcher;
/// use fulmen_engine::{EngineOptions, Model, TextEngine, TextRequest};
///
/// let model = Model::load("../fulmen-cli/assets/story.gguf", Box::new(CpuDispatcher::new()))?;
/// let engine = TextEngine::new(&model, &EngineOptions::default())?;
/// let request = |text: &str| TextRequest { max_tokens: 8, ..TextRequest::new(engine.encode(text)) };
/// let stories = ["Once upon a time", "One day"].map(|text| engine.submit(request(text)));
/// for story in stories {
///     let (text, _usage) = story?.finish(|piece| print!("{piece}"))?;
///     assert!(!text.is_empty());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TextEngine {
    model: Model,
    engine: Engine,
}

impl TextEngine {
    /// Starts an engine for a model. Fails if the model has no tokenizer.
    pub fn new(model: &Model, options: &EngineOptions) -> Result<TextEngine, EngineError> {
        if model.tokenizer().is_none() {
            return Err(ModelError::Without { what: "tokenizer" }.into());
        }
        Ok(TextEngine { model: model.clone(), engine: Engine::for_model(model, options)? })
    }

    /// The engine, for requests of tokens.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The tokens of a prompt; text that looks like control tokens is text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.encode_with(text, Special::AsText)
    }

    /// The tokens of a prompt.
    pub fn encode_with(&self, text: &str, special: Special) -> Vec<u32> {
        self.model.tokenizer().map_or_else(Vec::new, |tokenizer| tokenizer.encode_prompt(text, special))
    }

    /// Queues a request. Fails if its parameters are out of range; what the scheduler refuses is the only
    /// event of the stream.
    pub fn submit(&self, request: TextRequest) -> Result<TextStream, ModelError> {
        request.sampling.validate()?;
        let stops = StopFinder::new(&request.stop)?;
        let tokenizer = self.model.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
        let ends = if request.stop_at_end { tokenizer.ends().to_vec() } else { Vec::new() };
        let usage = Usage { prompt_tokens: request.prompt.len(), ..Usage::default() };
        let handle = self.engine.submit(Request {
            sampling: SamplingParams::new(request.sampling),
            logprobs: request.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            stop: Stop { tokens: ends.clone(), ..Stop::default() },
            timeout: request.timeout,
            priority: request.priority,
            tenant: request.tenant,
            constraint: request.constraint,
            use_prefix_cache: request.use_prefix_cache,
            ..Request::new(request.prompt, request.max_tokens)
        });
        let decoder = StreamDecoder::continuing().showing(request.shown);
        let decoder = if request.show_special { decoder.show_special() } else { decoder };
        Ok(TextStream {
            model: self.model.clone(),
            handle,
            decoder,
            stops,
            ends,
            last: None,
            usage,
            ended: false,
        })
    }

    /// The statistics after the newest step.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Ends the engine and returns its last statistics.
    pub fn shutdown(self, how: Shutdown) -> Result<Stats, EngineError> {
        self.engine.shutdown(how)
    }
}

/// The text of a request as it is generated. Dropping it cancels the request.
///
/// It is a blocking iterator; [`event`](TextStream::event) and [`poll_event`](TextStream::poll_event) are for
/// asynchronous callers.
pub struct TextStream {
    model: Model,
    handle: RequestHandle,
    decoder: StreamDecoder,
    stops: StopFinder,
    ends: Vec<u32>,
    last: Option<u32>,
    /// What is known of it here: a request that a stop string ends is cancelled.
    usage: Usage,
    ended: bool,
}

impl TextStream {
    /// Waits for the next event up to `timeout`; `None` after the last one, or if none came.
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<TextEvent> {
        if self.ended {
            return None;
        }
        let event = self.handle.next_timeout(timeout)?;
        Some(self.translate(event))
    }

    /// The next event; `None` after the last one.
    pub async fn event(&mut self) -> Option<TextEvent> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    /// The next event if there is one. Otherwise the task is woken when there is.
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<TextEvent>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let Poll::Ready(event) = self.handle.poll_event(context) else { return Poll::Pending };
        Poll::Ready(event.map(|event| self.translate(event)))
    }

    /// Ends the request; its last event follows.
    pub fn cancel(&self) {
        self.handle.cancel();
    }

    /// Waits for the end and returns the whole text; `piece` gets it as it is generated.
    pub fn finish(self, mut piece: impl FnMut(&str)) -> Result<(String, Usage), RequestError> {
        let mut whole = String::new();
        for event in self {
            let (text, last) = match event {
                TextEvent::Prompt(_) => continue,
                TextEvent::Piece { text, .. } => (text, None),
                TextEvent::Finished { text, usage, .. } => (text, Some(usage)),
                TextEvent::Failed(error) => return Err(error),
            };
            if !text.is_empty() {
                piece(&text);
                whole += &text;
            }
            if let Some(usage) = last {
                return Ok((whole, usage));
            }
        }
        Err(RequestError::ShuttingDown)
    }

    fn translate(&mut self, event: Event) -> TextEvent {
        match event {
            Event::Prompt(tokens) => TextEvent::Prompt(tokens),
            Event::Token(token) => self.take(token),
            Event::Finished { reason, usage } => {
                self.ended = true;
                let reason = match (reason, self.last) {
                    (FinishReason::Stop, Some(token)) => TextFinish::EndToken(token),
                    (FinishReason::ContextFull, _) => TextFinish::ContextFull,
                    _ => TextFinish::MaxTokens,
                };
                self.close(reason, usage)
            }
            Event::Failed(error) => {
                self.ended = true;
                TextEvent::Failed(error)
            }
        }
    }

    /// Adds a token and returns the text that it settles.
    fn take(&mut self, token: Sampled) -> TextEvent {
        self.last = Some(token.token);
        self.usage.generated_tokens += 1;
        let ends = self.ends.contains(&token.token);
        let text = match self.model.tokenizer().filter(|_| !ends) {
            Some(tokenizer) => decode(&mut self.decoder, tokenizer, token.token),
            None => String::new(),
        };
        let Scanned { text, stop } = self.stops.push(&text);
        if let Some(stop) = stop {
            // What comes after it is not wanted.
            self.ended = true;
            self.usage.cached_tokens = self.handle.cached_tokens().unwrap_or(0);
            self.handle.cancel();
            return TextEvent::Finished { text, reason: TextFinish::StopString(stop), usage: self.usage };
        }
        TextEvent::Piece { text, token }
    }

    /// The last event, with the text that was held back.
    fn close(&mut self, reason: TextFinish, usage: Usage) -> TextEvent {
        let rest = std::mem::take(&mut self.decoder).finish();
        let Scanned { text, stop } = self.stops.push(&rest);
        match stop {
            Some(stop) => TextEvent::Finished { text, reason: TextFinish::StopString(stop), usage },
            None => TextEvent::Finished { text: text + &self.stops.finish(), reason, usage },
        }
    }
}

/// The text that a token completes; nothing for a token that is not in the vocabulary.
fn decode(decoder: &mut StreamDecoder, tokenizer: &Tokenizer, token: u32) -> String {
    decoder.push(tokenizer, token).unwrap_or_default()
}

impl Iterator for TextStream {
    type Item = TextEvent;

    fn next(&mut self) -> Option<TextEvent> {
        if self.ended {
            return None;
        }
        let event = self.handle.next()?;
        Some(self.translate(event))
    }
}
