//! How a server is set up.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::limits::Limits;
use crate::tls::TlsFiles;

/// The port that `fulmen serve` takes without `--port`.
pub const DEFAULT_PORT: u16 = 8080;

/// How requests are logged to stderr, without prompts and answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Not at all.
    #[default]
    Off,
    /// A line of text for each request.
    Text,
    /// A JSON object for each request.
    Json,
}

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where it listens. The default is 127.0.0.1.
    pub address: SocketAddr,
    /// Keys of which a request must have one. Empty: no key is needed.
    pub api_keys: Vec<String>,
    /// Whether it may listen on an address that other machines reach without keys.
    pub insecure: bool,
    /// Origins whose pages may use the server (`https://example.org`, or `*`). Empty: only its own page.
    pub cors_origins: Vec<String>,
    /// Values of the `Host` header beside those of this machine. Other values are refused if the server
    /// listens on a loopback address, against DNS rebinding.
    pub allowed_hosts: Vec<String>,
    /// The certificate for HTTPS; without it the server speaks HTTP.
    pub tls: Option<TlsFiles>,
    /// Limits of requests.
    pub limits: Limits,
    /// Time without a token after which a comment is sent on an event stream.
    pub keep_alive: Duration,
    /// How requests are logged.
    pub log: LogFormat,
    /// Whether prompts and answers are logged, too.
    pub log_prompts: bool,
    /// How long answers may take to finish when the server ends.
    pub grace: Duration,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT),
            api_keys: Vec::new(),
            insecure: false,
            cors_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            tls: None,
            limits: Limits::default(),
            keep_alive: Duration::from_secs(15),
            log: LogFormat::Off,
            log_prompts: false,
            grace: Duration::from_secs(30),
        }
    }
}
