//! Times the server alone: streams of an engine whose device does nothing, read by clients in this process.
//!
//!     cargo run --release -p fulmen-server --example front_end [STREAMS] [TOKENS]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_engine::step::{Sampled, StepOutput, StepPlan};
use fulmen_engine::{DeviceLost, Engine, LaunchError, SamplingParams, SchedulerConfig, StepDevice, Ticket};
use fulmen_model::source;
use fulmen_model::tokenizer::Tokenizer;
use fulmen_server::{
    EngineModel, ModelInfo, ModelSpec, Registry, RegistryOptions, ServedModel, Server, ServerOptions,
    SharedTokenizer,
};
use tokio::net::TcpStream;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fulmen-cli/assets/story.gguf");

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Draws the same token for every row.
#[derive(Default)]
struct Nothing {
    results: VecDeque<StepOutput>,
    launches: u64,
}

impl StepDevice for Nothing {
    fn launch(&mut self, plan: &StepPlan) -> Result<Ticket, LaunchError> {
        let sampled = plan.logits.iter().map(|_| Sampled::token(300)).collect();
        self.results.push_back(StepOutput { sampled, faults: Vec::new() });
        self.launches += 1;
        Ok(Ticket(self.launches))
    }

    fn wait(&mut self, _: Ticket) -> Result<StepOutput, DeviceLost> {
        self.results.pop_front().ok_or_else(|| DeviceLost("no step is in flight".to_owned()))
    }
}

fn model(streams: u32) -> Result<EngineModel, String> {
    let load = || -> Result<EngineModel, Failure> {
        let source = source::open(MODEL)?;
        let tokenizer = Tokenizer::from_source(source.as_ref())?.ok_or("the model has no tokenizer")?;
        let vocabulary = tokenizer.vocab_size() as u32;
        let config = SchedulerConfig {
            max_sequences: streams,
            prefix_cache: false,
            ..SchedulerConfig::new(vocabulary, 8192, 64 * streams)
        };
        Ok(EngineModel {
            engine: Engine::start(config, Box::new(Nothing::default()))?,
            tokenizer: SharedTokenizer::Own(Arc::new(tokenizer)),
            template: None,
            context: 8192,
            info: ModelInfo::default(),
            sampling: |_, _| Ok(SamplingParams::default()),
            constraints: None,
            logprobs: false,
            embedder: None,
        })
    };
    load().map_err(|error| error.to_string())
}

/// Reads a stream to its end. Returns its events, and the longest time between two reads.
async fn client(address: SocketAddr, tokens: u32) -> Result<(usize, Duration), Failure> {
    let body = format!(
        "{{\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}],\"stream\":true,\"ignore_eos\":true,\
         \"max_tokens\":{tokens}}}"
    );
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let stream = TcpStream::connect(address).await?;
    let mut rest = request.as_bytes();
    while !rest.is_empty() {
        stream.writable().await?;
        match stream.try_write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    let (mut buffer, mut events) = (vec![0; 64 << 10], 0);
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    loop {
        stream.readable().await?;
        match stream.try_read(&mut buffer) {
            Ok(0) => return Ok((events, longest)),
            Ok(count) => {
                events += buffer[..count].windows(6).filter(|bytes| bytes == b"data: ").count();
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}

async fn run(streams: u32, tokens: u32) -> Result<(), Failure> {
    let loader = move |_: &ModelSpec| model(streams).map(|model| Arc::new(model) as Arc<dyn ServedModel>);
    let spec = ModelSpec { name: "nothing".to_owned(), ..ModelSpec::default() };
    let registry = Arc::new(Registry::new(vec![spec], Arc::new(loader), RegistryOptions::default())?);
    registry.preload(None).await?;
    let options = ServerOptions { address: "127.0.0.1:0".parse()?, ..ServerOptions::default() };
    let server = Server::bind(options, registry).await?;
    let address = server.address();
    tokio::spawn(server.run(std::future::pending()));
    let started = Instant::now();
    let clients: Vec<_> = (0..streams).map(|_| tokio::spawn(client(address, tokens))).collect();
    let (mut events, mut gaps) = (0, Vec::new());
    for client in clients {
        let (count, longest) = client.await??;
        events += count;
        gaps.push(longest);
    }
    let time = started.elapsed();
    gaps.sort();
    let rate = f64::from(streams) * f64::from(tokens) / time.as_secs_f64();
    println!("{streams} streams of {tokens} tokens: {rate:.0} tokens/s, {events} events in {time:.2?}");
    println!(
        "longest time between two reads: median {:.1?}, most {:.1?}",
        gaps[gaps.len() / 2],
        gaps[gaps.len() - 1]
    );
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse());
    let (streams, tokens) = (numbers.next().unwrap_or(Ok(256))?, numbers.next().unwrap_or(Ok(500))?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(streams, tokens))
}
