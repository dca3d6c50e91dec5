//! Requests, and the events that answer them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use fulmen_core::sampling::Constraint;

use crate::error::RequestError;
use crate::step::Sampled;

/// The number of a request in its scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Parameters of sampling, which only the device understands.
#[derive(Clone)]
pub struct SamplingParams(Arc<dyn Any + Send + Sync>);

impl SamplingParams {
    /// Wraps the parameters of a device.
    pub fn new(params: impl Any + Send + Sync) -> SamplingParams {
        SamplingParams(Arc::new(params))
    }

    /// The parameters, if they are of this type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl Default for SamplingParams {
    fn default() -> SamplingParams {
        SamplingParams::new(())
    }
}

impl fmt::Debug for SamplingParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SamplingParams(..)")
    }
}

/// When generation ends, beside its limits. The tokens that end it are delivered, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stop {
    /// Ends after one of these tokens.
    pub tokens: Vec<u32>,
    /// Ends after one of these sequences of tokens.
    pub sequences: Vec<Vec<u32>>,
}

impl Stop {
    /// Whether the last of the generated tokens end the generation.
    pub fn matches(&self, generated: &[u32]) -> bool {
        let ends_with = |stop: &Vec<u32>| !stop.is_empty() && generated.ends_with(stop);
        generated.last().is_some_and(|last| self.tokens.contains(last))
            || self.sequences.iter().any(ends_with)
    }
}

/// A request: a prompt and how to go on with it.
///
/// ```
/// use std::time::Duration;
/// use fulmen_engine::{Request, Stop};
///
/// let request = Request {
///     stop: Stop { tokens: vec![2], ..Stop::default() },
///     timeout: Some(Duration::from_secs(30)),
///     ..Request::new(vec![1, 15043, 3186], 64)
/// };
/// assert_eq!(request.max_tokens, 64);
/// ```
pub struct Request {
    /// Tokens of the prompt; at least one.
    pub prompt: Vec<u32>,
    /// The largest number of tokens to generate; at least 1.
    pub max_tokens: u32,
    /// The largest length of prompt and generated tokens, if it is to be below the engine's context.
    pub context: Option<u32>,
    /// Ends the request with an error if it has not finished by then.
    pub timeout: Option<Duration>,
    /// Requests of higher priority come first; see [`SchedulerConfig::aging`](crate::SchedulerConfig::aging).
    pub priority: i8,
    /// Who asks. Cached prefixes are shared only inside a tenant.
    pub tenant: Arc<str>,
    /// Parameters of sampling.
    pub sampling: SamplingParams,
    /// How many of the most likely tokens are wanted with their log-probabilities at each position; `None`
    /// for no log-probabilities.
    pub logprobs: Option<u8>,
    /// The same for the tokens of the prompt: [`Event::Prompt`] brings them before the first token. Their
    /// rows run in shorter chunks
    /// ([`SchedulerConfig::prompt_outputs`](crate::SchedulerConfig::prompt_outputs)), and no cached prefix
    /// replaces them.
    pub prompt_logprobs: Option<u8>,
    /// Whether each token comes with the hidden state, after the final norm, that it was sampled from. That
    /// of the first token is an embedding of the prompt.
    pub hidden: bool,
    /// When generation ends.
    pub stop: Stop,
    /// Restricts the tokens; a panic in it ends the request. The rows of such a request are planned when its
    /// last token has been read.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Whether cached prefixes may be used for this request.
    pub use_prefix_cache: bool,
}

impl Request {
    /// A request without a deadline, of priority 0 and of the tenant `""`.
    pub fn new(prompt: Vec<u32>, max_tokens: u32) -> Request {
        Request {
            prompt,
            max_tokens,
            context: None,
            timeout: None,
            priority: 0,
            tenant: Arc::default(),
            sampling: SamplingParams::default(),
            logprobs: None,
            prompt_logprobs: None,
            hidden: false,
            stop: Stop::default(),
            constraint: None,
            use_prefix_cache: true,
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("prompt_tokens", &self.prompt.len())
            .field("max_tokens", &self.max_tokens)
            .field("priority", &self.priority)
            .field("tenant", &self.tenant)
            .finish_non_exhaustive()
    }
}

/// Why a request finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop condition was met.
    Stop,
    /// The largest number of tokens was generated.
    MaxTokens,
    /// The context, or all KV pages together, is full.
    ContextFull,
}

/// What a finished request has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that came from the prefix cache before the first preemption.
    pub cached_tokens: usize,
    /// Tokens that were generated.
    pub generated_tokens: usize,
    /// How often the sequence was preempted.
    pub preemptions: u32,
}

/// An answer to a request. `Finished` or `Failed` is the last one.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The tokens of the prompt with their log-probabilities, if they are wanted. The first token has none.
    Prompt(Vec<Sampled>),
    /// The next token.
    Token(Sampled),
    /// The request is finished.
    Finished {
        /// Why.
        reason: FinishReason,
        /// What it has used.
        usage: Usage,
    },
    /// The request ended with an error.
    Failed(RequestError),
}

impl Event {
    /// Whether no event follows.
    pub fn is_last(&self) -> bool {
        matches!(self, Event::Finished { .. } | Event::Failed(_))
    }
}
