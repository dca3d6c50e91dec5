//! Limits of requests and connections.

use std::time::Duration;

/// Limits that are checked before work starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Time for the headers of a request.
    pub header_timeout: Duration,
    /// Time for the body of a request.
    pub body_timeout: Duration,
    /// Connections at the same time; further ones wait to be accepted.
    pub connections: usize,
    /// Choices of a request (`n`), and prompts of one.
    pub choices: u32,
    /// Stop strings of a request.
    pub stops: usize,
    /// Bytes of a stop string.
    pub stop_bytes: usize,
    /// Tokens with a bias in a request.
    pub logit_bias: usize,
    /// Tools of a request.
    pub tools: usize,
    /// Texts of a request for embeddings.
    pub embeddings: usize,
    /// Time for a request from its arrival to its last token.
    pub request_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes: 8 << 20,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            connections: 4096,
            choices: 16,
            stops: 16,
            stop_bytes: 256,
            logit_bias: 300,
            tools: 128,
            embeddings: 256,
            request_timeout: Duration::from_secs(600),
        }
    }
}
