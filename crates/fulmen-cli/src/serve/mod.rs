//! `fulmen serve`: answers requests over HTTP.

mod files;
mod keys;
mod loader;
mod options;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fulmen_engine::Nodes;
use fulmen_server::{
    ApiError, DuplicateName, ModelSpec, PresetError, Presets, Registry, RegistryOptions, Server, ServerError,
    ServerOptions,
};

use crate::config;
use crate::error::CommandError;
use crate::model::nodes::NodeError;
use crate::output::tell;
use keys::KeyError;
use loader::{LoadError, Loader};
use options::{EngineLimits, ModelKeeping, NetworkOptions};

/// Serve models over HTTP: the APIs of OpenAI, Anthropic and Ollama, and a chat page.
///
/// Without a model, the small built-in one is served. A single model is loaded when the server starts; of
/// several, each is loaded at its first request and unloaded when it has not been used for some time. The
/// server listens on this machine only, unless --host says otherwise, which needs an API key.
///
/// Ctrl-C or SIGTERM lets answers finish; a second Ctrl-C ends the server at once.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Models: GGUF files, folders with config.json and safetensors files, or names of pulled models. A name
    /// for clients may be given in front: NAME=MODEL.
    #[arg(value_name = "MODEL")]
    models: Vec<String>,

    /// A TOML file with models, their presets and aliases.
    #[arg(long, value_name = "FILE")]
    models_file: Option<PathBuf>,

    #[command(flatten)]
    network: NetworkOptions,

    #[command(flatten)]
    keeping: ModelKeeping,

    #[command(flatten)]
    engine: EngineLimits,
}

const EXAMPLES: &str = "\
Examples:
  fulmen serve                                   the built-in model on http://127.0.0.1:8080
  fulmen serve model.gguf --port 9000
  fulmen serve qwen=ORG/NAME small=small.gguf    two models by name, loaded at first use
  fulmen serve --models-file models.toml --memory 40GB
  FULMEN_API_KEY=secret fulmen serve model.gguf --host 0.0.0.0
  fulmen serve model.gguf --nodes 2 --node-rank 1 --rendezvous 10.0.0.1:29500    node 1 of 2
  curl http://127.0.0.1:8080/v1/chat/completions -d \\
    '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'";

/// Why `fulmen serve` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error(transparent)]
    Presets(#[from] PresetError),
    #[error(transparent)]
    Duplicate(#[from] DuplicateName),
    #[error(transparent)]
    Keys(#[from] KeyError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("{0}")]
    Load(ApiError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Follow(Box<LoadError>),
    #[error("--nodes serves one model, and there are {models}")]
    Nodes { models: usize },
    #[error("cannot start the server's threads: {0}")]
    Runtime(io::Error),
    #[error("cannot write the address: {0}")]
    Write(io::Error),
}

impl CommandError for ServeError {
    fn is_usage(&self) -> bool {
        match self {
            ServeError::Duplicate(_) | ServeError::Nodes { .. } => true,
            ServeError::Server(error) => {
                matches!(error, ServerError::Insecure { .. } | ServerError::Origin(_))
            }
            ServeError::Node(error) => error.is_usage(),
            ServeError::Follow(error) => matches!(&**error, LoadError::Nodes(error) if error.is_usage()),
            _ => false,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), ServeError> {
    let (specs, kept) = args.specs()?;
    let eager = specs.len() == 1;
    let names: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
    let mut options = args.network.server(keys::read(args.network.api_key_file.as_deref())?);
    let wanted = args.network.connections();
    let allowed = files::allowed_connections(wanted);
    if allowed < wanted {
        tell(&format!(
            "the system's limit of open files allows {allowed} connections at the same time, not {wanted}: \
             raise it (`ulimit -n`, LimitNOFILE of systemd)"
        ));
        options.limits.connections = allowed as usize;
    }
    let loader = args.engine.loader(args.network.quiet());
    if let Some(nodes) = loader.nodes.clone() {
        nodes.check().map_err(|error| NodeError::Join(error.into()))?;
        let [spec] = &specs[..] else { return Err(ServeError::Nodes { models: specs.len() }) };
        if nodes.node > 0 {
            return follow(&loader, &nodes, spec);
        }
    }
    let registry = Arc::new(Registry::new(specs, Arc::new(loader), kept)?);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).clamp(1, 4);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let runtime = runtime.map_err(ServeError::Runtime)?;
    run_to_end(runtime, serve(options, registry, eager, &names))
}

/// A node other than 0: carries out what node 0 orders, for one load of the model after another.
fn follow(loader: &Loader, nodes: &Nodes, spec: &ModelSpec) -> Result<(), ServeError> {
    let Nodes { node, count, address, .. } = nodes;
    tell(&format!("node {node} of {count} waits for node 0 at {address}"));
    loop {
        match loader.follow(nodes, spec) {
            Ok(()) => tell("node 0 has unloaded the model, or has ended; waiting for it"),
            Err(LoadError::Nodes(error)) if error.is_without_node_0() => {}
            Err(error) => return Err(ServeError::Follow(Box::new(error))),
        }
    }
}

/// How long work that blocks a thread, such as the load of a model, may go on when the server has ended.
const LEFT_WORK: Duration = Duration::from_secs(1);

/// Runs a future. Work that it has left on threads that block does not hold the end up: dropping a runtime
/// would wait for it without limit.
fn run_to_end<T>(runtime: tokio::runtime::Runtime, future: impl Future<Output = T>) -> T {
    let result = runtime.block_on(future);
    runtime.shutdown_timeout(LEFT_WORK);
    result
}

async fn serve(
    options: ServerOptions,
    registry: Arc<Registry>,
    eager: bool,
    names: &[String],
) -> Result<(), ServeError> {
    let server = Server::bind(options, Arc::clone(&registry)).await?;
    if eager {
        registry.preload(None).await.map_err(ServeError::Load)?;
    }
    // Whoever reads the address may end the server at once.
    let signals = Signals::catch();
    // Scripts read the address from here, so it is written at once.
    let mut out = io::stdout().lock();
    writeln!(out, "listening on {}", server.url()).map_err(ServeError::Write)?;
    out.flush().map_err(ServeError::Write)?;
    drop(out);
    tell(&format!("models: {}", names.join(", ")));
    server.run(ended(signals)).await;
    Ok(())
}

/// Waits for Ctrl-C or SIGTERM. A second one ends the program.
async fn ended(mut signals: Signals) {
    signals.next().await;
    tell("shutting down: finishing answers in progress; press Ctrl-C to stop now");
    tokio::spawn(async move {
        signals.next().await;
        std::process::exit(crate::model::interrupt::EXIT_CODE);
    });
}

/// Ctrl-C and SIGTERM, caught from the moment this is made.
#[cfg(unix)]
struct Signals {
    interrupt: Option<tokio::signal::unix::Signal>,
    terminate: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl Signals {
    fn catch() -> Signals {
        use tokio::signal::unix::{SignalKind, signal};
        // One that cannot be caught ends the program, as without this.
        let [interrupt, terminate] =
            [SignalKind::interrupt(), SignalKind::terminate()].map(|kind| signal(kind).ok());
        Signals { interrupt, terminate }
    }

    async fn next(&mut self) {
        async fn one(signal: &mut Option<tokio::signal::unix::Signal>) {
            match signal {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        }
        tokio::select! {
            () = one(&mut self.interrupt) => {}
            () = one(&mut self.terminate) => {}
        }
    }
}

/// Ctrl-C.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn catch() -> Signals {
        Signals
    }

    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}

impl Args {
    /// The models, and how they are kept.
    fn specs(&self) -> Result<(Vec<ModelSpec>, RegistryOptions), ServeError> {
        let mut specs: Vec<ModelSpec> = self.models.iter().map(|text| spec(text)).collect();
        let mut kept = RegistryOptions::default();
        if let Some(file) = &self.models_file {
            let presets = Presets::read(file)?;
            specs.extend(presets.models);
            kept = presets.options;
        }
        if specs.is_empty() {
            let model = config::current().default_model();
            specs.push(model.map_or_else(builtin, |path| spec(&path.to_string_lossy())));
        }
        self.keeping.apply(&mut kept);
        Ok((specs, kept))
    }
}

fn builtin() -> ModelSpec {
    ModelSpec { name: config::BUILTIN.to_owned(), ..ModelSpec::default() }
}

/// A model of the command line: a path or a name, possibly with a name for clients.
fn spec(text: &str) -> ModelSpec {
    let (name, location) = match text.split_once('=') {
        Some((name, location)) if !name.contains(['/', '\\']) && !Path::new(text).exists() => {
            (name.to_owned(), location)
        }
        _ => (client_name(text), text),
    };
    if location == config::BUILTIN {
        return ModelSpec { name, ..ModelSpec::default() };
    }
    ModelSpec { name, location: Some(location.into()), ..ModelSpec::default() }
}

/// The name of a file without its ending; other names as they are.
fn client_name(text: &str) -> String {
    let path = Path::new(text);
    let stem = if text.ends_with(".gguf") { path.file_stem() } else { path.file_name() };
    match stem.and_then(|stem| stem.to_str()) {
        Some(stem) if path.exists() || text.ends_with(".gguf") => stem.to_owned(),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The load of a model cannot be stopped.
    #[test]
    fn work_that_blocks_does_not_hold_the_end_up() {
        let (ended, has_ended) = std::sync::mpsc::channel();
        let (release, blocked) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
            run_to_end(runtime, async move {
                let (begun, has_begun) = tokio::sync::oneshot::channel();
                tokio::task::spawn_blocking(move || {
                    let _ = begun.send(());
                    blocked.recv()
                });
                has_begun.await.unwrap();
            });
            ended.send(()).unwrap();
        });
        has_ended.recv_timeout(Duration::from_secs(60)).expect("the end waits for work that never ends");
        drop(release);
    }

    #[test]
    fn models_get_names_for_clients() {
        for (text, name, location) in [
            ("models/qwen3-8b.gguf", "qwen3-8b", Some("models/qwen3-8b.gguf")),
            ("ORG/NAME", "ORG/NAME", Some("ORG/NAME")),
            ("small=a/b.gguf", "small", Some("a/b.gguf")),
            ("builtin", "builtin", None),
            ("story=builtin", "story", None),
        ] {
            let spec = spec(text);
            assert_eq!(spec.name, name, "{text}");
            assert_eq!(spec.location.as_deref(), location.map(Path::new), "{text}");
        }
    }
}
