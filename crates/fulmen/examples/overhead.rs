//! Generating text, array round trips and replays, timed: what `examples/python/overhead.py` times from
//! Python. `scripts/bench-python` runs both in turns and compares.
//!
//! ```text
//! cargo run --release -p fulmen --example overhead -- DEVICE MODEL TOKENS CONTEXT
//! ```
//!
//! Each line of standard input names what is timed: `generate` (seconds of a text with one token, and of one
//! with `TOKENS`), `stream` (seconds from the first piece of a text to its end) or `arrays` (microseconds;
//! without a device of wgpu there are none). Each is answered by a line of JSON.

use std::io::Write;
use std::time::{Duration, Instant};

use fulmen::engine::Generation;
use fulmen::prelude::*;
use fulmen::wgpu::BatchOptions;

const PROMPT: &str = "Once upon a time";

/// 64 MiB of f32.
const ELEMENTS: usize = 16 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [device, path, tokens, context] = args.as_slice() else {
        return Err("overhead: expected DEVICE MODEL TOKENS CONTEXT".into());
    };
    let (tokens, context) = (tokens.parse()?, context.parse()?);
    let session = SessionOptions { context, ..SessionOptions::default() };
    let options = LoadOptions { session, ..LoadOptions::default() };
    let model = Model::load_with(path, fulmen::open(device.parse()?)?, options)?;
    let mut session = model.session()?;
    for command in std::io::stdin().lines() {
        let times = match command?.as_str() {
            "generate" => generate(&mut session, tokens)?,
            "stream" => stream(&mut session, tokens)?,
            "arrays" => arrays()?,
            other => return Err(format!("overhead: unknown command {other:?}").into()),
        };
        let fields: Vec<String> = times.iter().map(|(name, time)| format!("\"{name}\": {time}")).collect();
        println!("{{{}}}", fields.join(", "));
        std::io::stdout().flush()?;
    }
    Ok(())
}

type Times = Vec<(&'static str, f64)>;

/// A text of so many tokens, from an empty KV cache.
fn begin(session: &mut Session, max_tokens: usize) -> Result<Generation<'_>, ModelError> {
    session.truncate(0, 0)?;
    let options = GenerateOptions { max_tokens, stop_at_end: false, ..GenerateOptions::default() };
    session.generate(PROMPT, &options)
}

fn generate(session: &mut Session, tokens: usize) -> Result<Times, ModelError> {
    let mut timed = |tokens| -> Result<_, ModelError> {
        let start = Instant::now();
        let text = begin(session, tokens)?.finish(|_| {})?;
        Ok((start.elapsed().as_secs_f64(), text))
    };
    let (first, _) = timed(1)?;
    let (whole, text) = timed(tokens)?;
    let prompt_tokens = text.prompt_tokens as f64;
    Ok(vec![("first", first), ("whole", whole), ("prompt_tokens", prompt_tokens)])
}

fn stream(session: &mut Session, tokens: usize) -> Result<Times, ModelError> {
    let mut first = None;
    begin(session, tokens)?.finish(|_| {
        first.get_or_insert_with(Instant::now);
    })?;
    let decode = first.map_or(Duration::ZERO, |first| first.elapsed());
    Ok(vec![("decode", decode.as_secs_f64())])
}

fn arrays() -> Result<Times, GpuError> {
    let gpu = match GpuDevice::new() {
        Err(GpuError::NoAdapter { .. }) => return Ok(Vec::new()),
        opened => opened?,
    };
    let (write, read) = round_trip(gpu.clone())?;
    let Replays { replay, replay_input, input } = replays(gpu)?;
    let times = [
        ("write_us", write),
        ("read_us", read),
        ("replay_us", replay),
        ("replay_input_us", replay_input),
        ("input_us", input),
    ];
    Ok(times.into_iter().map(|(name, time)| (name, time.as_secs_f64() * 1e6)).collect())
}

/// The shortest times of writing an array to the GPU and of reading it.
fn round_trip(gpu: GpuDevice) -> Result<(Duration, Duration), GpuError> {
    let options = BatchOptions { share_memory: false, ..BatchOptions::default() };
    let mut batch = GpuCommandBatch::with_options(gpu, options);
    let data: Vec<f32> = (0..ELEMENTS).map(|i| i as f32).collect();
    let value = batch.upload(&data);
    batch.execute_blocking()?;
    let mut out = vec![0.0; ELEMENTS];
    let (mut write, mut read) = (Duration::MAX, Duration::MAX);
    for _ in 0..7 {
        let start = Instant::now();
        batch.write(value, &data)?;
        batch.execute_blocking()?;
        let wrote = Instant::now();
        batch.read_into_blocking(value, &mut out)?;
        read = read.min(wrote.elapsed());
        write = write.min(wrote - start);
    }
    assert_eq!(out, data);
    Ok((write, read))
}

/// The shortest times of one of 100 calls.
struct Replays {
    /// A replay of a small batch.
    replay: Duration,
    /// A replay with a new input.
    replay_input: Duration,
    /// Writing the input alone.
    input: Duration,
}

fn replays(gpu: GpuDevice) -> Result<Replays, GpuError> {
    let mut batch = GpuCommandBatch::new(gpu);
    let x = batch.upload(&[1.0; 64]);
    let doubled = batch.scale(x, 2.0);
    let y = batch.relu(doubled);
    batch.execute_and_read_blocking(&[y])?;
    let new = [3.0; 64];
    let mut hundred = |call: &dyn Fn(&mut GpuCommandBatch) -> Result<(), GpuError>| {
        let mut best = Duration::MAX;
        for _ in 0..20 {
            let start = Instant::now();
            for _ in 0..100 {
                call(&mut batch)?;
            }
            best = best.min(start.elapsed() / 100);
            batch.execute_and_read_blocking(&[y])?;
        }
        Ok::<_, GpuError>(best)
    };
    let replay = hundred(&|batch| batch.execute_blocking())?;
    let replay_input = hundred(&|batch| {
        batch.write(x, &new)?;
        batch.execute_blocking()
    })?;
    let input = hundred(&|batch| batch.write(x, &new))?;
    Ok(Replays { replay, replay_input, input })
}
