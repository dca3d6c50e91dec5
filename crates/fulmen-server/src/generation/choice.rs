//! One generated text: tokens become pieces of text, thoughts and calls of tools.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use fulmen_engine::generation::{Scanned, StopFinder};
use fulmen_engine::step::Sampled;
use fulmen_engine::{Event, FinishReason, RequestHandle, Usage};
use fulmen_model::template::{AnswerParser, CallPiece, ParsedText, ToolCall};
use fulmen_model::tokenizer::{StreamDecoder, Tokenizer, TokenizerError};

use crate::error::ApiError;
use crate::log::AnswerLog;
use crate::metrics::Metrics;
use crate::record::Figures;
use crate::registry::Lease;

/// A token with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenLogprob {
    pub(crate) token: u32,
    /// The bytes of the token; not necessarily whole characters.
    pub(crate) bytes: Vec<u8>,
    /// `None` for the first token of a prompt, which follows nothing.
    pub(crate) logprob: Option<f32>,
    /// The most likely tokens at this position.
    pub(crate) top: Vec<(Vec<u8>, f32)>,
    /// Bytes of text before it.
    pub(crate) offset: usize,
    /// Characters of text before it.
    pub(crate) characters: usize,
}

/// What is new in a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Piece {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<ToolCall>,
    /// The same calls as they are written, if the answer is streamed so.
    pub(crate) call_pieces: Vec<CallPiece>,
    pub(crate) logprobs: Vec<TokenLogprob>,
    /// All tokens of the prompt, if their log-probabilities are wanted: before the first token.
    pub(crate) prompt: Vec<TokenLogprob>,
}

/// Why a text ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// The model ended it.
    Stop,
    /// This stop string came.
    StopString(String),
    /// A limit was reached.
    Length,
    /// The model calls tools.
    ToolCalls,
}

/// Tokens that an answer has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenUsage {
    pub(crate) prompt: usize,
    /// Tokens of the prompt that came from the prefix cache.
    pub(crate) cached: usize,
    pub(crate) generated: usize,
    /// Tokens of thoughts.
    pub(crate) reasoning: usize,
}

/// The end of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) reason: EndReason,
    pub(crate) usage: TokenUsage,
    /// From the request to the first token.
    pub(crate) prefill: Duration,
    /// From the first token to the last.
    pub(crate) decode: Duration,
}

/// The next thing that happens to a text. `End` is the last.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Output {
    Piece(Piece),
    End(Ending),
}

/// A text that is being generated. Dropping it cancels the request.
pub(crate) struct Choice {
    handle: RequestHandle,
    lease: Arc<Lease>,
    metrics: Arc<Metrics>,
    decoder: StreamDecoder,
    stops: StopFinder,
    parser: AnswerParser,
    one_call: bool,
    wants_logprobs: bool,
    scores_prompt: bool,
    ignore_eos: bool,
    /// Tokens whose text has not been passed on.
    pending: VecDeque<TokenLogprob>,
    /// Bytes that were decoded, and bytes that are settled: no stop string can begin in them.
    decoded: usize,
    /// Characters that were decoded.
    characters: usize,
    settled: usize,
    usage: TokenUsage,
    started: Instant,
    first: Option<Instant>,
    ready: VecDeque<Output>,
    ended: bool,
    /// Where prompt and answer are logged, if they are.
    log: Option<AnswerLog>,
    figures: Arc<Figures>,
}

/// How a text is read.
pub(super) struct Reading {
    pub(super) stops: StopFinder,
    pub(super) parser: AnswerParser,
    /// Whether the text ends after its first call of a tool.
    pub(super) one_call: bool,
    pub(super) wants_logprobs: bool,
    /// Whether the tokens of the prompt have log-probabilities, too. Then every generated token has one, also
    /// the one that ends the text: evaluation harnesses count tokens from the end.
    pub(super) scores_prompt: bool,
    pub(super) ignore_eos: bool,
    pub(super) prompt_tokens: usize,
    pub(super) log: Option<AnswerLog>,
    pub(super) figures: Arc<Figures>,
}

impl Choice {
    pub(super) fn new(
        handle: RequestHandle,
        lease: Arc<Lease>,
        metrics: Arc<Metrics>,
        reading: Reading,
    ) -> Choice {
        let tags = reading.parser.tags(lease.tokenizer());
        Choice {
            handle,
            lease,
            metrics,
            decoder: StreamDecoder::continuing().showing(tags),
            stops: reading.stops,
            parser: reading.parser,
            one_call: reading.one_call,
            wants_logprobs: reading.wants_logprobs,
            scores_prompt: reading.scores_prompt,
            ignore_eos: reading.ignore_eos,
            pending: VecDeque::new(),
            decoded: 0,
            characters: 0,
            settled: 0,
            usage: TokenUsage { prompt: reading.prompt_tokens, ..TokenUsage::default() },
            started: Instant::now(),
            first: None,
            ready: VecDeque::new(),
            ended: false,
            log: reading.log,
            figures: reading.figures,
        }
    }

    /// The next output; `None` after the last one.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Output, ApiError>>> {
        loop {
            if let Some(output) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(output)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let event = match self.handle.poll_event(context) {
                Poll::Ready(event) => event,
                Poll::Pending => return Poll::Pending,
            };
            let taken = match event {
                Some(Event::Prompt(tokens)) => self.take_prompt(&tokens),
                Some(Event::Token(sampled)) => self.take_token(&sampled),
                Some(Event::Finished { reason, usage }) => {
                    self.finish(reason, usage);
                    Ok(())
                }
                Some(Event::Failed(error)) => Err(error.into()),
                None => Err(ApiError::internal("the engine has ended without a last event")),
            };
            if let Err(error) = taken {
                self.ended = true;
                return Poll::Ready(Some(Err(error)));
            }
        }
    }

    /// Passes on the tokens of the prompt.
    fn take_prompt(&mut self, tokens: &[Sampled]) -> Result<(), ApiError> {
        let tokenizer = self.lease.tokenizer();
        let (mut decoder, mut offset, mut characters) = (StreamDecoder::new(), 0, 0);
        let mut prompt = Vec::with_capacity(tokens.len());
        for sampled in tokens {
            prompt.push(token_logprob(tokenizer, sampled, offset, characters));
            let text = decoder.push(tokenizer, sampled.token).map_err(outside_vocabulary)?;
            offset += text.len();
            characters += text.chars().count();
        }
        self.ready.push_back(Output::Piece(Piece { prompt, ..Piece::default() }));
        Ok(())
    }

    fn take_token(&mut self, sampled: &Sampled) -> Result<(), ApiError> {
        self.usage.generated += 1;
        if self.first.is_none() {
            self.first = Some(Instant::now());
            self.metrics.first_token(self.started.elapsed());
        }
        let lease = Arc::clone(&self.lease);
        let tokenizer = lease.tokenizer();
        let id = sampled.token;
        if tokenizer.is_end(id) && !self.ignore_eos {
            if self.scores_prompt {
                self.pending.push_back(token_logprob(tokenizer, sampled, self.decoded, self.characters));
            }
            return Ok(());
        }
        let text = self.decoder.push(tokenizer, id).map_err(outside_vocabulary)?;
        if self.wants_logprobs {
            self.pending.push_back(token_logprob(tokenizer, sampled, self.decoded, self.characters));
        }
        let stop = self.take_text(&text);
        let reason = match stop {
            _ if self.has_its_call() => Some(EndReason::ToolCalls),
            stop => stop.map(EndReason::StopString),
        };
        if let Some(reason) = reason {
            self.usage.cached = self.handle.cached_tokens().unwrap_or(0);
            self.handle.cancel();
            self.end(reason);
        }
        Ok(())
    }

    /// Whether the one call is there that the text may have.
    fn has_its_call(&self) -> bool {
        self.one_call && self.parser.calls() > 0
    }

    /// Passes text on. Returns the stop string that ends it.
    fn take_text(&mut self, text: &str) -> Option<String> {
        self.decoded += text.len();
        self.characters += text.chars().count();
        let Scanned { text, stop } = self.stops.push(text);
        self.pass_on(&text);
        stop
    }

    fn pass_on(&mut self, settled: &str) {
        self.settled += settled.len();
        let parsed = self.parse(settled);
        if !parsed.reasoning.is_empty() {
            self.usage.reasoning += 1;
        }
        let here = self.settled;
        let count = self.pending.iter().take_while(|token| token.offset < here).count();
        let logprobs = self.pending.drain(..count).collect();
        self.emit(parsed, logprobs);
    }

    fn parse(&mut self, text: &str) -> ParsedText {
        if !self.one_call || self.parser.is_plain() {
            return self.parser.push(text);
        }
        // By characters, so that nothing is taken from behind the call.
        let mut all = ParsedText::default();
        for (at, character) in text.char_indices() {
            if self.parser.calls() > 0 {
                break;
            }
            all.append(self.parser.push(&text[at..at + character.len_utf8()]));
        }
        first_call(all)
    }

    fn emit(&mut self, parsed: ParsedText, logprobs: Vec<TokenLogprob>) {
        if let Some(log) = &mut self.log {
            log.push(&parsed);
        }
        if !parsed.is_empty() || !logprobs.is_empty() {
            let ParsedText { reasoning, content, calls, call_pieces } = parsed;
            let piece = Piece { reasoning, content, calls, call_pieces, logprobs, ..Piece::default() };
            self.ready.push_back(Output::Piece(piece));
        }
    }

    fn finish(&mut self, reason: FinishReason, usage: Usage) {
        self.usage.cached = usage.cached_tokens;
        let rest = self.decoder.finish();
        let reason = match self.take_text(&rest) {
            _ if self.has_its_call() => EndReason::ToolCalls,
            Some(stop) => EndReason::StopString(stop),
            None => {
                let held = self.stops.finish();
                self.pass_on(&held);
                match reason {
                    FinishReason::Stop => EndReason::Stop,
                    FinishReason::MaxTokens | FinishReason::ContextFull => EndReason::Length,
                }
            }
        };
        self.end(reason);
    }

    fn end(&mut self, reason: EndReason) {
        // What a stop string has cut off is not delivered, and nothing behind the only call.
        let cut = matches!(reason, EndReason::StopString(_) | EndReason::ToolCalls);
        let logprobs = if cut { Vec::new() } else { self.pending.drain(..).collect() };
        if reason != EndReason::ToolCalls {
            let parsed = self.parser.finish();
            self.emit(if self.one_call { first_call(parsed) } else { parsed }, logprobs);
        }
        let reason = match reason {
            EndReason::Stop if self.parser.has_calls() => EndReason::ToolCalls,
            reason => reason,
        };
        let first = self.first.unwrap_or_else(Instant::now);
        let (prefill, decode) = (first - self.started, first.elapsed());
        self.metrics.finished(&self.usage, self.started.elapsed());
        if let Some(log) = self.log.take() {
            log.write(Some(&reason), &self.usage);
        }
        self.ready.push_back(Output::End(Ending { reason, usage: self.usage, prefill, decode }));
        self.ended = true;
    }
}

/// A token with its log-probability, behind so many bytes and characters of text.
fn token_logprob(tokenizer: &Tokenizer, sampled: &Sampled, offset: usize, characters: usize) -> TokenLogprob {
    let bytes = |id: u32| tokenizer.token_bytes(id).map(<[u8]>::to_vec).unwrap_or_default();
    TokenLogprob {
        token: sampled.token,
        bytes: bytes(sampled.token),
        logprob: sampled.logprob,
        top: sampled.top.iter().map(|&(id, logprob)| (bytes(id), logprob)).collect(),
        offset,
        characters,
    }
}

fn outside_vocabulary(error: TokenizerError) -> ApiError {
    ApiError::internal(error.to_string())
}

/// A text without all calls but the first.
fn first_call(mut parsed: ParsedText) -> ParsedText {
    parsed.calls.truncate(1);
    parsed.call_pieces.retain(|piece| piece.call == 0);
    parsed
}

impl Drop for Choice {
    fn drop(&mut self) {
        self.figures.add_generated(self.usage.generated);
        if !self.ended {
            self.metrics.cancelled();
        }
        if let Some(log) = self.log.take() {
            log.write(None, &self.usage);
        }
    }
}
