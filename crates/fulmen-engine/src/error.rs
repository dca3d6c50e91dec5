//! What can go wrong with a request, with a device and with the engine.

use std::sync::Arc;
use std::time::Duration;

use fulmen_model::ModelError;

/// Why a request was refused or ended before it was finished.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The prompt has no tokens.
    #[error("the prompt is empty; expected at least 1 token")]
    EmptyPrompt,
    /// A limit of the request has a value that makes no sense.
    #[error("{limit} of the request: expected {expected}, got {got}")]
    Limit {
        /// The name of the limit.
        limit: &'static str,
        /// What is allowed.
        expected: &'static str,
        /// What was passed.
        got: u64,
    },
    /// A token of the prompt is outside the vocabulary.
    #[error("token {token} at position {position} of the prompt is outside the vocabulary of {vocabulary}")]
    Token {
        /// The token.
        token: u32,
        /// Its position in the prompt.
        position: usize,
        /// Tokens of the vocabulary.
        vocabulary: u32,
    },
    /// The prompt and one generated token do not fit into the context.
    #[error("a prompt of {prompt} tokens leaves no room in a context of {context}")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Positions of the context.
        context: u32,
    },
    /// The prompt and one generated token need more pages than there are.
    #[error("a prompt of {prompt} tokens needs {needed} KV pages, and the pool has {pages}")]
    PoolTooSmall {
        /// Tokens of the prompt.
        prompt: usize,
        /// Pages that the prompt and one more token need.
        needed: u32,
        /// Pages of the pool.
        pages: u32,
    },
    /// Too many requests are waiting.
    #[error("the queue is full: {limit} requests are waiting")]
    QueueFull {
        /// The largest number of waiting requests.
        limit: usize,
    },
    /// The request was cancelled, or its handle was dropped.
    #[error("the request was cancelled")]
    Cancelled,
    /// The time allowed for the request has passed.
    #[error("the request did not finish within {timeout:?}; {generated} tokens were generated")]
    DeadlineExceeded {
        /// The time that the request allowed.
        timeout: Duration,
        /// Tokens that were delivered.
        generated: usize,
    },
    /// The consumer did not read its events.
    #[error("the consumer has left {buffered} events unread")]
    ConsumerTooSlow {
        /// Events in the queue of the request.
        buffered: usize,
    },
    /// The constraint on the output failed or panicked.
    #[error("the constraint on the output failed: {reason}")]
    Constraint {
        /// What the constraint said.
        reason: String,
    },
    /// No page could be allocated for a sequence that holds no others up.
    #[error("no KV page could be allocated in {tries} tries")]
    OutOfPages {
        /// Plans that found no page.
        tries: u32,
    },
    /// The device has no memory for a step of this request, not even alone.
    #[error("the device is out of memory for {rows} rows of this request: {reason}")]
    DeviceOutOfMemory {
        /// Rows of the smallest step that was tried.
        rows: usize,
        /// What the device said.
        reason: String,
    },
    /// The device does not take this request.
    #[error("the device rejected the request: {reason}")]
    Rejected {
        /// What the device said.
        reason: String,
    },
    /// The step with this request could not be launched.
    #[error("step {step} could not be launched: {reason}")]
    LaunchFailed {
        /// The number of the step.
        step: u64,
        /// What the device said.
        reason: String,
    },
    /// A row of this request gave no result, for example because a logit was NaN.
    #[error("position {position} of the sequence failed: {reason}")]
    Row {
        /// The position of the row.
        position: u32,
        /// What the device said.
        reason: String,
    },
    /// The device is gone.
    #[error("the device was lost: {reason}")]
    DeviceLost {
        /// What the device said.
        reason: String,
    },
    /// The engine takes no more requests.
    #[error("the engine is shutting down")]
    ShuttingDown,
}

/// Why a step was not launched. Nothing of it has run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// There is no memory for a step of this size; a smaller one may fit.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// One request cannot run; the others can.
    #[error("the request in slot {slot} was rejected: {reason}")]
    Rejected {
        /// The slot of the request.
        slot: u32,
        /// What is wrong with it.
        reason: String,
    },
    /// The step cannot be launched.
    #[error("the launch failed: {0}")]
    Failed(String),
    /// The device is gone, with everything that was on it.
    #[error(transparent)]
    Lost(#[from] DeviceLost),
}

/// The device is gone, with everything that was on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device was lost: {0}")]
pub struct DeviceLost(pub String);

/// A value of the configuration that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: expected {expected}, got {got}")]
pub struct ConfigError {
    /// The name of the value.
    pub what: &'static str,
    /// What is allowed.
    pub expected: String,
    /// What was passed.
    pub got: String,
}

impl ConfigError {
    pub(crate) fn check(
        holds: bool,
        what: &'static str,
        expected: impl ToString,
        got: impl ToString,
    ) -> Result<(), ConfigError> {
        if holds {
            return Ok(());
        }
        Err(ConfigError { what, expected: expected.to_string(), got: got.to_string() })
    }
}

/// Why the engine could not be started, reopened or used.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The configuration cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The driver thread could not be started.
    #[error("the driver thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
    /// The driver thread has ended.
    #[error("the engine has been shut down")]
    Stopped,
    /// A device can be replaced only after it was lost.
    #[error("the engine still has a device; only a lost one can be replaced")]
    StillOpen,
    /// The model cannot be run so.
    #[error(transparent)]
    Model(Arc<ModelError>),
    /// Something was not given back.
    #[error(transparent)]
    Leak(#[from] Leak),
}

/// Pages, slots or sequences that were not given back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not counted back: {what}: {held} of {total} are still held")]
pub struct Leak {
    /// What is still held.
    pub what: String,
    /// How many are held.
    pub held: usize,
    /// How many there are.
    pub total: usize,
}

/// A count that does not agree with who holds what: a defect of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {counted} are counted, {found} are there")]
pub struct AuditError {
    /// What was counted.
    pub what: String,
    /// The count.
    pub counted: u32,
    /// What was found.
    pub found: u32,
}

impl AuditError {
    pub(crate) fn check(what: impl Fn() -> String, counted: u32, found: u32) -> Result<(), AuditError> {
        if counted == found { Ok(()) } else { Err(AuditError { what: what(), counted, found }) }
    }
}

impl Leak {
    pub(crate) fn check(what: impl ToString, held: usize, total: usize) -> Result<(), Leak> {
        if held == 0 { Ok(()) } else { Err(Leak { what: what.to_string(), held, total }) }
    }
}
