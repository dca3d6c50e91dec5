//! Text generation, token by token.

use std::time::Duration;

use fulmen_core::clock::Instant;
use fulmen_core::sampling::Constraint;
use fulmen_model::ModelError;
use fulmen_model::tokenizer::{Special, StreamDecoder};

use super::Sampling;
use super::session::Session;
use super::stop::{Scanned, StopFinder};

/// How text is generated.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Maximum number of tokens to generate.
    pub max_tokens: usize,
    /// Stop strings: they end the text and are not part of it.
    pub stop: Vec<String>,
    /// How special tokens such as `<|im_end|>` in the prompt are treated.
    pub special: Special,
    /// Control tokens whose text is part of the generated text, such as the tags of calls of tools
    /// ([`AnswerParser::tags`](fulmen_model::template::AnswerParser::tags)).
    pub shown: Vec<u32>,
    /// Whether an end-of-generation token ends the text. If false, only the other limits do.
    pub stop_at_end: bool,
    /// Decode steps queued before the host reads their tokens. More steps hide launch latency on fast
    /// devices; tokens past the end of the text are discarded. 0: as many as take 30 ms, at most 16.
    pub ahead: usize,
}

impl Default for GenerateOptions {
    fn default() -> GenerateOptions {
        GenerateOptions {
            sampling: Sampling::GREEDY,
            max_tokens: usize::MAX,
            stop: Vec::new(),
            special: Special::AsText,
            shown: Vec::new(),
            stop_at_end: true,
            ahead: 0,
        }
    }
}

/// Why generation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model produced this end-of-generation token.
    EndToken(u32),
    /// The constraint allows no further token, and the vocabulary has none that ends generation.
    Complete,
    /// This stop string was produced.
    StopString(String),
    /// [`GenerateOptions::max_tokens`] was reached.
    MaxTokens,
    /// The context has no room for another token.
    ContextFull,
    /// The session's cancel flag was set.
    Cancelled,
}

/// Generated text with statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// The text, without stop strings and control tokens.
    pub text: String,
    /// The tokens drawn, including an end-of-generation token.
    pub tokens: Vec<u32>,
    /// Why generation ended.
    pub reason: FinishReason,
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Number of prompt tokens that were not in the KV cache and had to be run.
    pub fed_tokens: usize,
    /// Time from the start to the first token.
    pub prefill_time: Duration,
    /// Time from the first token to the last.
    pub decode_time: Duration,
}

impl Generated {
    /// Prompt tokens run per second; 0 if none was run.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.fed_tokens, self.prefill_time)
    }

    /// Tokens decoded per second, not counting the first; 0 if there is only one.
    pub fn decode_rate(&self) -> f64 {
        rate(self.tokens.len().saturating_sub(1), self.decode_time)
    }
}

/// The number of decode steps to queue at once so that streaming looks smooth, given that `steps` steps took
/// `time`.
fn pace(steps: usize, time: Duration) -> usize {
    const TARGET: Duration = Duration::from_millis(30);
    const MAX_STEPS: usize = 16;
    let fit = TARGET.as_secs_f64() * steps as f64 / time.as_secs_f64().max(1e-9);
    // At most double at a time: the time of a single step varies.
    (fit as usize).clamp(1, (2 * steps).min(MAX_STEPS))
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if tokens == 0 || time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64().max(1e-9) }
}

/// Text generation in progress: an iterator over pieces of text. Pieces are whole characters; text that may
/// be the start of a stop string is held back. It can be dropped at any time.
pub struct Generation<'s> {
    session: &'s mut Session,
    options: GenerateOptions,
    constraint: Option<Box<dyn Constraint>>,
    decoder: StreamDecoder,
    stops: StopFinder,
    prompt: Vec<u32>,
    /// Decode steps to queue at once if [`GenerateOptions::ahead`] is 0.
    pace: usize,
    /// Tokens drawn but not yet returned.
    waiting: std::collections::VecDeque<u32>,
    generated: Generated,
    /// When the prefill started; after that, when the first token was drawn.
    started: Instant,
    finished: bool,
}

impl Session {
    /// Generates text that continues `tokens`, in sequence 0. Their common prefix with the sequence is not
    /// run again, so a growing conversation costs only its new tokens.
    pub fn generate_from(
        &mut self,
        tokens: &[u32],
        options: &GenerateOptions,
    ) -> Result<Generation<'_>, ModelError> {
        options.sampling.validate()?;
        let stops = StopFinder::new(&options.stop)?;
        if self.tokenizer().is_none() {
            return Err(ModelError::Without { what: "tokenizer" });
        }
        if tokens.is_empty() {
            return Err(ModelError::EmptyPrompt);
        }
        if tokens.len() > self.context() {
            let (context, used) = (self.options().context, 0);
            return Err(ModelError::PromptTooLong { tokens: tokens.len(), context, used });
        }
        let common = self.tokens(0)?.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        self.truncate(0, common)?;
        self.set_sampling(0, options.sampling)?;
        self.set_mask(0, None)?;
        Ok(Generation {
            session: self,
            options: options.clone(),
            constraint: None,
            decoder: StreamDecoder::continuing().showing(options.shown.clone()),
            stops,
            prompt: tokens.to_vec(),
            pace: 1,
            waiting: Default::default(),
            generated: Generated {
                text: String::new(),
                tokens: Vec::new(),
                // Replaced when generation ends.
                reason: FinishReason::MaxTokens,
                prompt_tokens: tokens.len(),
                fed_tokens: 0,
                prefill_time: Duration::ZERO,
                decode_time: Duration::ZERO,
            },
            started: Instant::now(),
            finished: false,
        })
    }

    /// Generates text that continues a prompt.
    pub fn generate(
        &mut self,
        prompt: &str,
        options: &GenerateOptions,
    ) -> Result<Generation<'_>, ModelError> {
        let tokenizer = self.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
        let tokens = tokenizer.encode_prompt(prompt, options.special);
        self.generate_from(&tokens, options)
    }
}

impl Generation<'_> {
    /// Restricts the text to what a constraint allows, for example a grammar. Each token is then read before
    /// the next one is drawn. To be called before the first piece is taken: a constraint follows the text
    /// from its beginning.
    pub fn constrained(mut self, constraint: Box<dyn Constraint>) -> Self {
        self.constraint = Some(constraint);
        self
    }

    /// The text so far; complete once the iterator has ended.
    pub fn generated(&self) -> &Generated {
        &self.generated
    }

    /// Generates the rest and returns the whole text; `piece` gets it as it is generated.
    pub fn finish(mut self, mut piece: impl FnMut(&str)) -> Result<Generated, ModelError> {
        while let Some(text) = self.next_piece()? {
            piece(&text);
        }
        Ok(self.generated.clone())
    }

    /// The next piece of text; `None` at the end.
    pub fn next_piece(&mut self) -> Result<Option<String>, ModelError> {
        while !self.finished {
            let text = self.next_text()?;
            if !text.is_empty() {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    /// The next piece of the tokens that were drawn ahead; `None` where it needs another step of the model,
    /// and at the end. With it a caller gives what is there to its reader before it goes on.
    pub fn drawn_piece(&mut self) -> Result<Option<String>, ModelError> {
        while !self.finished && !self.waiting.is_empty() {
            let text = self.next_text()?;
            if !text.is_empty() {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    /// The text that the next token completes, or the rest at the end.
    fn next_text(&mut self) -> Result<String, ModelError> {
        let text = match self.next_token() {
            Ok(Ok(token)) => self.take(token)?,
            Ok(Err(reason)) => self.end(reason)?,
            Err(ModelError::Cancelled) => self.end(FinishReason::Cancelled)?,
            Err(error) => {
                self.finished = true;
                return Err(error);
            }
        };
        self.generated.text += &text;
        Ok(text)
    }

    /// The next token, or why there is none.
    fn next_token(&mut self) -> Result<Result<u32, FinishReason>, ModelError> {
        if self.generated.tokens.len() >= self.options.max_tokens {
            return Ok(Err(FinishReason::MaxTokens));
        }
        if let Some(token) = self.waiting.pop_front() {
            let cancelled = self.session.is_cancelled();
            return Ok(if cancelled { Err(FinishReason::Cancelled) } else { Ok(token) });
        }
        let room = self.session.context() - self.prompt.len() - self.generated.tokens.len();
        if room == 0 {
            return Ok(Err(FinishReason::ContextFull));
        }
        if let Some(constraint) = &mut self.constraint {
            let mask = constraint.mask().map_err(ModelError::Constraint)?;
            if mask.is_empty() {
                return Ok(Err(FinishReason::Complete));
            }
            self.session.set_mask(0, Some(mask))?;
            let drawn = self.draw_next(room);
            // What else is drawn in this session has no mask.
            self.session.set_mask(0, None)?;
            let token = drawn?;
            let accepted = self.constraint.as_mut().map_or(Ok(()), |constraint| constraint.accept(token));
            accepted.map_err(ModelError::Constraint)?;
            return Ok(Ok(token));
        }
        self.draw_next(room).map(Ok)
    }

    /// Draws the next token, and with it some of those that follow, for which there is room.
    fn draw_next(&mut self, room: usize) -> Result<u32, ModelError> {
        if self.generated.tokens.is_empty() {
            self.started = Instant::now();
            let known = self.session.tokens(0)?.len();
            let new = self.prompt[known..].to_vec();
            self.generated.fed_tokens = self.session.sequence(0)?.to_feed(self.prompt.len());
            let token = self.session.draw(0, &new)?;
            self.generated.prefill_time = self.started.elapsed();
            self.started = Instant::now();
            return Ok(token);
        }
        let left = self.options.max_tokens - self.generated.tokens.len();
        let ahead = if self.options.ahead == 0 { self.pace } else { self.options.ahead };
        let steps = if self.constraint.is_some() { 1 } else { ahead.min(left).min(room) };
        let began = Instant::now();
        let drawn = self.session.decode(&[0], steps)?;
        self.pace = pace(steps, began.elapsed());
        self.generated.decode_time = self.started.elapsed();
        self.waiting.extend(drawn.into_iter().flatten());
        self.waiting.pop_front().ok_or(ModelError::EmptyPrompt)
    }

    /// Adds a token and returns the text it completes.
    fn take(&mut self, token: u32) -> Result<String, ModelError> {
        self.generated.tokens.push(token);
        let tokenizer = self.session.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
        if self.options.stop_at_end && tokenizer.is_end(token) {
            return self.end(FinishReason::EndToken(token));
        }
        let piece = self.decoder.push(tokenizer, token)?;
        let Scanned { text, stop } = self.stops.push(&piece);
        match stop {
            Some(stop) => {
                self.close(FinishReason::StopString(stop))?;
                Ok(text)
            }
            None => Ok(text),
        }
    }

    /// Ends generation and returns the text that was held back.
    fn end(&mut self, reason: FinishReason) -> Result<String, ModelError> {
        self.close(reason)?;
        let rest = std::mem::take(&mut self.decoder).finish();
        let Scanned { text, stop } = self.stops.push(&rest);
        // The rest may complete a stop string, too.
        Ok(if stop.is_some() { text } else { text + &self.stops.finish() })
    }

    fn close(&mut self, reason: FinishReason) -> Result<(), ModelError> {
        self.finished = true;
        self.waiting.clear();
        self.generated.reason = reason;
        // Tokens past the end were decoded ahead and do not belong to the sequence.
        let len = self.prompt.len() + self.generated.tokens.len();
        if self.session.tokens(0)?.len() > len {
            self.session.truncate(0, len)?;
        }
        Ok(())
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<String, ModelError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_piece().transpose()
    }
}

impl std::fmt::Debug for Generation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generation").field("generated", &self.generated).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_devices_queue_more_steps() {
        let ms = Duration::from_millis;
        assert_eq!(pace(1, ms(100)), 1);
        assert_eq!(pace(1, ms(10)), 2, "at most twice as many as before");
        assert_eq!(pace(2, ms(20)), 3);
        assert_eq!(pace(16, ms(16)), 16);
        assert_eq!(pace(16, ms(160)), 3);
        assert_eq!(pace(4, ms(0)), 8);
    }
}
