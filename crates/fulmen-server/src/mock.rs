//! A model that computes nothing, to measure the server alone.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fulmen_engine::step::{Sampled, StepOutput, StepPlan};
use fulmen_engine::{DeviceLost, Engine, LaunchError, SamplingParams, SchedulerConfig, StepDevice, Ticket};
use fulmen_model::tokenizer::Tokenizer;

use crate::engine_model::{EngineModel, EngineModelError, SharedTokenizer};
use crate::served::ModelInfo;

/// Different tokens that the steps draw, one after the other.
const TOKENS: usize = 1024;
const CONTEXT: u32 = 1 << 16;
const PAGE: u32 = 128;

/// When each of the last steps drew its token. All sequences get the same token in a step, and another one in
/// the next step, so the text of a token tells its step.
pub struct StepClock {
    start: Instant,
    /// The place of a text in `nanos`.
    places: HashMap<String, usize>,
    /// Nanoseconds after the start.
    nanos: Vec<AtomicU64>,
}

impl StepClock {
    /// When the last token with this text was drawn.
    pub fn drawn(&self, text: &str) -> Option<Instant> {
        let nanos = self.nanos[*self.places.get(text)?].load(Ordering::Acquire);
        Some(self.start + Duration::from_nanos(nanos))
    }
}

/// Draws the next token of the list for all rows of a step.
struct MockDevice {
    tokens: Vec<u32>,
    clock: Arc<StepClock>,
    step: Duration,
    /// The steps in flight: when they are done, and what they give.
    flight: VecDeque<(Instant, usize, StepOutput)>,
    launches: u64,
    free_at: Instant,
}

impl StepDevice for MockDevice {
    fn launch(&mut self, plan: &StepPlan) -> Result<Ticket, LaunchError> {
        let place = self.launches as usize % self.tokens.len();
        let sampled = plan.logits.iter().map(|_| Sampled::token(self.tokens[place])).collect();
        self.free_at = self.free_at.max(Instant::now()) + self.step;
        self.flight.push_back((self.free_at, place, StepOutput { sampled, faults: Vec::new() }));
        self.launches += 1;
        Ok(Ticket(self.launches))
    }

    fn wait(&mut self, _: Ticket) -> Result<StepOutput, DeviceLost> {
        let step = self.flight.pop_front().ok_or_else(|| DeviceLost("no step is in flight".to_owned()))?;
        let (done, place, output) = step;
        std::thread::sleep(done.saturating_duration_since(Instant::now()));
        let nanos = self.clock.start.elapsed().as_nanos() as u64;
        self.clock.nanos[place].store(nanos, Ordering::Release);
        Ok(output)
    }
}

/// Tokens that are letters and digits, each with a text of its own.
fn plain_tokens(tokenizer: &Tokenizer) -> Vec<(u32, String)> {
    let mut seen = std::collections::HashSet::new();
    let text = |id: u32| {
        let bytes = tokenizer.token_bytes(id).ok().filter(|_| !tokenizer.is_special(id))?;
        let plain = !bytes.is_empty() && bytes.iter().all(u8::is_ascii_alphanumeric);
        plain.then(|| String::from_utf8_lossy(bytes).into_owned())
    };
    let all = 0..tokenizer.vocab_size() as u32;
    let tokens = all.filter_map(|id| Some((id, text(id)?)));
    tokens.filter(|(_, text)| seen.insert(text.clone())).take(TOKENS).collect()
}

/// A model whose steps take `step` and compute nothing, for as many sequences at the same time, and the clock
/// of its steps.
///
/// # Errors
/// The tokenizer has no plain words, or the engine cannot be started.
pub fn mock_model(
    tokenizer: Tokenizer,
    sequences: u32,
    step: Duration,
) -> Result<(EngineModel, Arc<StepClock>), EngineModelError> {
    let plain = plain_tokens(&tokenizer);
    if plain.is_empty() {
        return Err(fulmen_model::ModelError::Without { what: "tokens of letters" }.into());
    }
    let clock = Arc::new(StepClock {
        start: Instant::now(),
        nanos: plain.iter().map(|_| AtomicU64::new(0)).collect(),
        places: plain.iter().enumerate().map(|(place, (_, text))| (text.clone(), place)).collect(),
    });
    let device = MockDevice {
        tokens: plain.into_iter().map(|(id, _)| id).collect(),
        clock: Arc::clone(&clock),
        step,
        flight: VecDeque::new(),
        launches: 0,
        free_at: Instant::now(),
    };
    let config = SchedulerConfig {
        max_sequences: sequences,
        prefix_cache: false,
        queue_limit: usize::MAX,
        ..SchedulerConfig::new(tokenizer.vocab_size() as u32, CONTEXT, sequences * (CONTEXT / PAGE))
    };
    let engine = Engine::start(config, Box::new(device))?;
    let model = EngineModel {
        engine,
        tokenizer: SharedTokenizer::Own(Arc::new(tokenizer)),
        template: None,
        context: CONTEXT,
        info: ModelInfo { device: "nothing".to_owned(), ..ModelInfo::default() },
        sampling: |_, _| Ok(SamplingParams::default()),
        constraints: None,
        logprobs: false,
        embedder: None,
    };
    Ok((model, clock))
}
