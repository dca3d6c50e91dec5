//! Options of `fulmen serve`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use fulmen_core::DType;
use fulmen_engine::EngineOptions;
use fulmen_server::{DEFAULT_PORT, Limits, LogFormat, RegistryOptions, ServerOptions, TlsFiles};

use super::loader::Loader;
use crate::model::load::cache_type;
use crate::model::nodes::NodeOptions;
use crate::model::split::{SplitOptions, parse_bytes};
use crate::select::OpenOption;

/// Where the server listens, and for whom.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Network")]
pub(super) struct NetworkOptions {
    /// Address to listen on. Any address but loopback needs an API key.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = host)]
    host: IpAddr,

    /// Port to listen on; 0 for any that is free.
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT)]
    port: u16,

    /// File with API keys, one in each line; also FULMEN_API_KEY, separated by commas.
    #[arg(long, value_name = "FILE")]
    pub(super) api_key_file: Option<PathBuf>,

    /// Listen on any address without an API key.
    #[arg(long)]
    insecure: bool,

    /// Certificate for HTTPS, with those of the authorities between it and a root, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Private key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Let pages of this origin use the server; may be given several times, `*` for all.
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,

    /// Accept this host name in requests, such as that of a proxy; may be given several times.
    #[arg(long, value_name = "NAME")]
    allowed_host: Vec<String>,

    /// Largest body of a request.
    #[arg(long, value_name = "BYTES", default_value = "8MB", value_parser = parse_bytes)]
    max_body: u64,

    /// Connections at the same time.
    #[arg(long, value_name = "COUNT", default_value_t = 4096)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,

    /// Seconds from a request to its last token.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,

    /// Log of requests on stderr.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Log::Text)]
    log: Log,

    /// Write prompts and answers into the log, too. They are the users' own texts: think of who reads it.
    #[arg(long)]
    log_prompts: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Log {
    Off,
    Text,
    Json,
}

impl NetworkOptions {
    pub(super) fn quiet(&self) -> bool {
        self.log == Log::Off
    }

    /// Connections at the same time.
    pub(super) fn connections(&self) -> u32 {
        self.max_connections
    }

    pub(super) fn server(&self, api_keys: Vec<String>) -> ServerOptions {
        let limits = Limits {
            body_bytes: usize::try_from(self.max_body).unwrap_or(usize::MAX),
            connections: self.max_connections as usize,
            request_timeout: Duration::from_secs(self.timeout),
            ..Limits::default()
        };
        let tls = self.tls_cert.clone().zip(self.tls_key.clone());
        ServerOptions {
            tls: tls.map(|(certificates, key)| TlsFiles { certificates, key }),
            address: SocketAddr::new(self.host, self.port),
            api_keys,
            insecure: self.insecure,
            cors_origins: self.cors_origin.clone(),
            allowed_hosts: self.allowed_host.clone(),
            limits,
            log: match self.log {
                Log::Off => LogFormat::Off,
                Log::Text => LogFormat::Text,
                Log::Json => LogFormat::Json,
            },
            log_prompts: self.log_prompts,
            ..ServerOptions::default()
        }
    }
}

/// An address, or the name that every machine gives itself.
fn host(text: &str) -> Result<IpAddr, String> {
    if text.eq_ignore_ascii_case("localhost") {
        return Ok(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    text.parse().map_err(|_| "expected an IP address such as 127.0.0.1 or 0.0.0.0, or localhost".to_owned())
}

/// How long models stay loaded.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Models")]
pub(super) struct ModelKeeping {
    /// Seconds without requests after which a model is unloaded; -1 for never. By default 300, or what the
    /// file of models says.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..))]
    keep_alive: Option<i64>,

    /// Memory that the weights of all loaded models together may take, such as 40GB.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    memory: Option<u64>,
}

impl ModelKeeping {
    pub(super) fn apply(&self, kept: &mut RegistryOptions) {
        if let Some(seconds) = self.keep_alive {
            kept.keep_alive = u64::try_from(seconds).ok().map(Duration::from_secs);
        }
        kept.memory = self.memory.or(kept.memory);
    }
}

/// How a model runs.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Engine")]
pub(super) struct EngineLimits {
    #[command(flatten)]
    open: OpenOption,

    #[command(flatten)]
    split: SplitOptions,

    #[command(flatten)]
    pub(super) nodes: NodeOptions,

    /// Type of the KV cache: f16, q8_0 or f32.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = cache_type)]
    kv: DType,

    /// Context length: tokens of prompt and answer together. By default the model's own, but at most 8192.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    context: Option<u32>,

    /// Requests that run at the same time; others wait.
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_sequences: u32,

    /// Requests that may wait; further ones are refused with status 429.
    #[arg(long, value_name = "COUNT", default_value_t = 1024)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    queue: u32,

    /// Memory for KV pages. By default what all requests need, at most three quarters of what is free.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    kv_memory: Option<u64>,

    /// Memory of the host for the KV pages of requests that make room for others. By default none: they are
    /// computed again.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    host_memory: Option<u64>,

    /// Memory for recurrent states of earlier prompts, of models that have some (Qwen3.5). By default an
    /// eighth of what is free, for at most 64 of them.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    state_memory: Option<u64>,

    /// Rows of prompts in a step that also generates tokens: more are faster in total, and the tokens of
    /// running answers come later. By default a fifth of the rows of the largest step, or four for each
    /// running answer.
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..))]
    prefill_rows: Option<u32>,

    /// Tokens of prompts in a step whose log-probabilities are wanted (`echo` with `logprobs`): more are
    /// faster, and each takes memory for its logits. By default 32, and with --batch-invariant at least 128.
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..))]
    prompt_outputs: Option<u32>,

    /// Do not keep pages for prompts with the same beginning.
    #[arg(long)]
    no_prefix_cache: bool,

    /// Give each request the same bits whatever else is in its batch.
    #[arg(long)]
    batch_invariant: bool,

    /// Do not check the weights for NaN and infinity while loading.
    #[arg(long)]
    no_check: bool,
}

impl EngineLimits {
    pub(super) fn loader(&self, quiet: bool) -> Loader {
        Loader {
            device: self.open.device.device,
            threads: self.open.asked_threads(),
            split: self.split.clone(),
            nodes: self.nodes.nodes(),
            engine: EngineOptions {
                context: self.context.unwrap_or(0),
                max_sequences: self.max_sequences,
                memory: self.kv_memory.unwrap_or(0),
                host_memory: self.host_memory.unwrap_or(0),
                state_memory: self.state_memory.unwrap_or(0),
                prefill_rows: self.prefill_rows.unwrap_or(0),
                prompt_outputs: self.prompt_outputs.unwrap_or(0),
                cache: self.kv,
                prefix_cache: !self.no_prefix_cache,
                batch_invariant: self.batch_invariant,
                queue_limit: self.queue as usize,
                ..EngineOptions::default()
            },
            check_weights: !self.no_check,
            quiet,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        limits: EngineLimits,
    }

    fn engine(arguments: &[&str]) -> Result<EngineOptions, clap::Error> {
        let command = Command::try_parse_from([&["serve"], arguments].concat())?;
        Ok(command.limits.loader(true).engine)
    }

    #[test]
    fn limits_reach_the_engine() {
        let plain = engine(&[]).unwrap();
        assert_eq!((plain.host_memory, plain.state_memory), (0, 0));
        assert_eq!((plain.prefill_rows, plain.prompt_outputs), (0, 0));
        let memory = ["--host-memory", "2GB", "--state-memory", "100MB", "--kv", "q8_0"];
        let rows = ["--prefill-rows", "256", "--prompt-outputs", "100"];
        let limited = engine(&[&memory[..], &rows].concat()).unwrap();
        let expected = EngineOptions {
            host_memory: 2_000_000_000,
            state_memory: 100_000_000,
            prefill_rows: 256,
            prompt_outputs: 100,
            cache: DType::Q8_0,
            ..plain
        };
        assert_eq!(limited, expected);
        for wrong in [["--prefill-rows", "0"], ["--prompt-outputs", "0"], ["--host-memory", "much"]] {
            assert_eq!(engine(&wrong).unwrap_err().exit_code(), 2, "{wrong:?}");
        }
    }
}
