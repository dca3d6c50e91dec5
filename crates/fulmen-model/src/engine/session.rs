//! Sequences on a device: their KV caches, their state and the compiled steps that run them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fulmen_core::clock::Instant;
use fulmen_core::{
    Backend, BackendError, Bindings, CacheUse, DType, ExecError, PageLayout, pages_of, timeline,
};

use super::Sampling;
use super::mask::mask_words;
use super::model::Shared;
use super::profile::Profile;
use super::sequence::Sequence;
use super::step_cache::{StepCache, Timing};
use crate::arch::{Config, GraphSpec, Results, Step, names};
use crate::error::ModelError;
use crate::tokenizer::Tokenizer;

/// The number of sequences of a session, their maximum length and how they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Positions per sequence; 0 for the model's own context, at most 4096.
    pub context: u32,
    /// Sequences.
    pub sequences: u32,
    /// Type of the KV cache: F16, Q8_0 or F32.
    pub cache: DType,
    /// Tokens per prefill chunk; 0 for the device's preferred size, reduced if memory is short.
    pub chunk: u32,
    /// Whether decode steps are launched op by op even if the device can replay a captured step.
    pub eager: bool,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions { context: 0, sequences: 1, cache: DType::F16, chunk: 0, eager: false }
    }
}

impl SessionOptions {
    /// The upper limit for `context` 0: a KV cache for the full context would fill the memory of small
    /// machines.
    pub const DEFAULT_CONTEXT: u32 = 4096;

    /// Checks the options and fills in defaults, except for the chunk size, which depends on the device.
    pub(super) fn resolve(mut self, config: &Config) -> Result<SessionOptions, ModelError> {
        let refused = |what, expected: &str, found: String| {
            Err(ModelError::Option { what, expected: expected.to_owned(), found })
        };
        if self.context == 0 {
            self.context = config.context.min(SessionOptions::DEFAULT_CONTEXT);
        }
        if self.context > config.context {
            return Err(ModelError::Context { asked: self.context, limit: config.context });
        }
        if self.sequences == 0 {
            return refused("the number of sequences", "at least 1", "0".to_owned());
        }
        if self.sequences.checked_mul(self.sequence_pages()).is_none() {
            let found = format!("{} of {} tokens", self.sequences, self.context);
            return refused("the number of sequences", "less than 2^32 KV pages", found);
        }
        if !matches!(self.cache, DType::F32 | DType::F16 | DType::Q8_0) {
            return refused("the type of the KV cache", "F16, Q8_0 or F32", self.cache.to_string());
        }
        if self.cache.bytes(config.heads.head_dim as usize).is_err() {
            let found = format!("{} with a head size of {}", self.cache, config.heads.head_dim);
            return refused("the type of the KV cache", "one whose block size divides the head size", found);
        }
        Ok(self)
    }

    pub(super) fn spec(&self, step: Step) -> GraphSpec {
        let &SessionOptions { cache, sequences, context, .. } = self;
        GraphSpec::contiguous(step, cache, sequences, context)
    }

    /// KV pages of a sequence.
    fn sequence_pages(&self) -> u32 {
        pages_of(self.context)
    }

    /// Bytes of the keys (or the values) of one layer.
    fn layer_k_bytes(&self, config: &Config) -> usize {
        let page = PageLayout::new(self.cache, config.heads).map_or(usize::MAX, |layout| layout.bytes());
        [self.sequences, self.sequence_pages()]
            .iter()
            .fold(page, |bytes, &n| bytes.saturating_mul(n as usize))
    }

    /// Bytes of the whole KV cache: whole pages for each sequence.
    pub fn cache_bytes(&self, config: &Config) -> u64 {
        (self.layer_k_bytes(config) as u64).saturating_mul(2).saturating_mul(config.layers.into())
    }
}

/// Sequences of tokens on a device.
///
/// A sequence is a list of tokens. Feeding tokens returns hidden states, logits or a drawn token, which is
/// appended to the sequence. Nothing is computed twice: continuing a sequence costs only its new tokens. A
/// call that fails leaves the sequences unchanged.
pub struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) options: SessionOptions,
    bindings: Bindings,
    /// Allocations to free.
    allocations: Vec<u64>,
    steps: StepCache,
    pub(super) sequences: Vec<Sequence>,
    /// The sequences whose state is in the device's rows; `None` if the rows are stale.
    pub(super) rows: Option<Vec<u32>>,
    pub(super) cancel: Arc<AtomicBool>,
    profile: Option<Profile>,
    launches: Option<StepLaunches>,
}

/// The cost of launching a decode step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLaunches {
    /// Launches by the host: 1 if a captured step is replayed.
    pub launches: usize,
    /// Kernels and copies that the device runs.
    pub kernels: usize,
    /// Host time spent launching. On an asynchronous device this does not include waiting for the results.
    pub host: Duration,
}

impl Session {
    /// `options` must be resolved.
    pub(super) fn new(shared: Arc<Shared>, options: SessionOptions) -> Result<Session, ModelError> {
        let mut session = Session {
            bindings: shared.weights.bindings.clone(),
            shared,
            options,
            allocations: Vec::new(),
            steps: StepCache::default(),
            sequences: vec![Sequence::default(); options.sequences as usize],
            rows: None,
            cancel: Arc::default(),
            profile: None,
            launches: None,
        };
        // On failure the session is dropped, which frees what was allocated.
        match timeline::span("allocate the KV cache", || session.allocate()) {
            Ok(()) => Ok(session),
            Err(BackendError::OutOfMemory { .. }) => Err(ModelError::CacheMemory {
                cache: options.cache_bytes(&session.shared.config),
                context: options.context,
                sequences: options.sequences,
                dtype: options.cache,
            }),
            Err(error) => Err(error.into()),
        }
    }

    fn allocate(&mut self) -> Result<(), BackendError> {
        let shared = Arc::clone(&self.shared);
        let mut device = shared.device();
        let bytes = self.options.layer_k_bytes(&shared.config);
        let rows = self.options.sequences as usize;
        let mut sizes = vec![
            (names::STEP_TOKENS.to_owned(), 4 * rows),
            (names::STEP_POSITIONS.to_owned(), 4 * rows),
            (names::STEP_SEQUENCES.to_owned(), 4 * rows),
            (names::STEP_SAMPLING.to_owned(), 32 * rows),
            (names::STEP_PENALTIES.to_owned(), 16 * rows),
            (names::STEP_EDITS.to_owned(), 8 * rows),
            (names::STEP_MASKS.to_owned(), 4 * rows * mask_words(&shared.config)),
            (names::HISTORY.to_owned(), 4 * rows * self.options.context as usize),
        ];
        // Sequence after sequence: each has its own pages for the whole session.
        let pages: Vec<u32> = (0..self.options.sequences * self.options.sequence_pages()).collect();
        sizes.push((names::PAGES.to_owned(), 4 * pages.len()));
        for layer in 0..shared.config.layers {
            let cache = names::cache(layer);
            sizes.extend([(format!("{cache}.k"), bytes), (format!("{cache}.v"), bytes)]);
        }
        for (name, bytes) in sizes {
            let ptr = device.alloc(bytes)?;
            self.allocations.push(ptr);
            self.bindings.set(&name, ptr);
            if name == names::PAGES {
                device.write(ptr, bytemuck::cast_slice(&pages))?;
            }
        }
        Ok(())
    }

    /// The addresses of weights and states.
    pub(super) fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    /// The model's tokenizer, if it has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.shared.tokenizer.as_ref()
    }

    /// The options, with all defaults filled in.
    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// Positions per sequence.
    pub fn context(&self) -> usize {
        self.options.context as usize
    }

    /// A flag that cancels work from any thread: at the next token, or during a prefill at the next op or
    /// submission. The call then returns [`ModelError::Cancelled`]. The caller must reset the flag.
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    /// Starts timing every op, which makes steps slower.
    pub fn start_profile(&mut self) {
        self.profile = Some(Profile::default());
    }

    /// Like [`start_profile`](Session::start_profile), but records every kernel: for a small number of steps.
    pub fn start_timeline(&mut self) {
        self.profile = Some(Profile::with_timeline());
    }

    /// Stops timing and returns the profile.
    pub fn stop_profile(&mut self) -> Option<Profile> {
        self.profile.take()
    }

    /// The launch cost of the last decode step that was not timed.
    pub fn step_launches(&self) -> Option<StepLaunches> {
        self.launches
    }

    /// The profile since [`start_profile`](Session::start_profile).
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_ref()
    }

    /// The tokens of a sequence, fed and drawn.
    pub fn tokens(&self, sequence: u32) -> Result<&[u32], ModelError> {
        self.check_sequence(sequence)?;
        Ok(&self.sequences[sequence as usize].tokens)
    }

    /// Keeps the first `len` tokens of a sequence.
    pub fn truncate(&mut self, sequence: u32, len: usize) -> Result<(), ModelError> {
        self.sequence(sequence)?.truncate(len);
        self.rows = None;
        Ok(())
    }

    /// Sets the sampling of a sequence and restarts its random numbers.
    pub fn set_sampling(&mut self, sequence: u32, sampling: Sampling) -> Result<(), ModelError> {
        sampling.validate()?;
        let entry = self.sequence(sequence)?;
        (entry.sampling, entry.draws) = (sampling, 0);
        self.rows = None;
        Ok(())
    }

    /// Appends tokens to a sequence and runs them, which fills its KV cache.
    pub fn feed(&mut self, sequence: u32, tokens: &[u32]) -> Result<(), ModelError> {
        self.with_appended(sequence, tokens, |session| session.run_pending(sequence, None).map(drop))
    }

    /// Appends tokens and returns the logits after the last one.
    pub fn logits(&mut self, sequence: u32, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        self.with_appended(sequence, tokens, |session| session.results(sequence, Results::Logits))
    }

    /// Appends tokens and returns the hidden state of the last one, after the final norm: an embedding of the
    /// sequence.
    pub fn hidden(&mut self, sequence: u32, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        self.with_appended(sequence, tokens, |session| session.results(sequence, Results::Hidden))
    }

    /// Appends tokens, draws the next one and appends it to the sequence.
    pub fn draw(&mut self, sequence: u32, tokens: &[u32]) -> Result<u32, ModelError> {
        self.with_appended(sequence, tokens, |session| {
            session.check_room(sequence)?;
            let [penalize, mask] = session.adjustments(&[sequence]);
            session.results(sequence, Results::Draw { penalize, mask })?;
            session.sequences[sequence as usize].tokens.last().copied().ok_or(ModelError::EmptyPrompt)
        })
    }

    /// Decodes `steps` tokens of each of several sequences as one batch, and returns them per sequence. Each
    /// sequence must have at least one token; the host reads nothing until the device has run all steps.
    pub fn decode(&mut self, sequences: &[u32], steps: usize) -> Result<Vec<Vec<u32>>, ModelError> {
        for (at, &sequence) in sequences.iter().enumerate() {
            self.check_sequence(sequence)?;
            if sequences[..at].contains(&sequence) {
                return Err(self.wrong_sequence(sequence, "was passed twice"));
            }
            let Sequence { tokens, .. } = &self.sequences[sequence as usize];
            if tokens.is_empty() {
                return Err(ModelError::EmptyPrompt);
            }
            if tokens.len() + steps > self.context() {
                return Err(self.too_long(sequence, steps));
            }
        }
        if sequences.is_empty() || steps == 0 {
            return Ok(vec![Vec::new(); sequences.len()]);
        }
        // Prefill all but the last token of each sequence.
        for &sequence in sequences {
            self.sequences[sequence as usize].reopen();
            let Sequence { tokens, fed, .. } = &mut self.sequences[sequence as usize];
            if *fed + 1 < tokens.len() {
                let last = tokens.pop();
                let fed = self.run_pending(sequence, None);
                self.sequences[sequence as usize].tokens.extend(last);
                fed?;
            }
        }
        self.decode_pending(sequences, steps).map_err(|error| {
            self.rows = None;
            self.reason(error, sequences, steps)
        })
    }

    /// Whether the cancel flag is set.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// Decodes sequences that have exactly one token not yet in the KV cache.
    fn decode_pending(&mut self, sequences: &[u32], steps: usize) -> Result<Vec<Vec<u32>>, ModelError> {
        if self.is_cancelled() {
            return Err(ModelError::Cancelled);
        }
        let start = Instant::now();
        let [penalize, mask] = self.adjustments(sequences);
        let shared = Arc::clone(&self.shared);
        let mut guard = shared.device();
        let device = guard.as_mut();
        if self.rows.as_deref() != Some(sequences) {
            self.write_rows(device, sequences)?;
        }
        let spec = self.options.spec(Step::Decode { rows: sequences.len() as u32, penalize, mask });
        let compiled = self.steps.get(&shared, device, &spec, &self.bindings, self.options.eager)?;
        let lengths = sequences.iter().map(|&s| self.sequences[s as usize].tokens.len() as u64);
        let lengths: Vec<u64> = lengths.collect();
        let (launch_start, mut launches, timed) = (Instant::now(), 0, self.profile.is_some());
        for at in 0..steps as u64 {
            let cache_use = CacheUse::of_steps(lengths.iter().map(|length| length + at));
            let timing = self.profile.as_mut().map(|profile| Timing { profile, cache_use });
            launches = compiled.run(device, timing)?;
        }
        if !timed {
            let host = launch_start.elapsed() / u32::try_from(steps).unwrap_or(u32::MAX).max(1);
            let kernels = compiled.captured_kernels(device).unwrap_or(launches);
            self.launches = Some(StepLaunches { launches, kernels, host });
        }
        let drawn: Vec<Vec<u32>> = match steps {
            1 => compiled.bound.read_u32(device, names::DRAWN)?.into_iter().map(|t| vec![t]).collect(),
            _ => self.read_history(device, sequences, steps)?,
        };
        shared.check_weights()?;
        self.check_drawn(sequences, &drawn)?;
        for (&sequence, tokens) in sequences.iter().zip(&drawn) {
            tokens.iter().for_each(|&token| self.sequences[sequence as usize].drew(token));
        }
        self.rows = Some(sequences.to_vec());
        if let Some(profile) = &mut self.profile {
            profile.wall += start.elapsed();
        }
        Ok(drawn)
    }

    /// Writes the state of these sequences, which have one token to feed each, to the device's rows.
    fn write_rows(&mut self, device: &mut dyn Backend, sequences: &[u32]) -> Result<(), ModelError> {
        let rows = sequences.iter().map(|&s| (s, &self.sequences[s as usize]));
        let mut words: [Vec<u32>; 3] = Default::default();
        let (mut sampling, mut penalties) = (Vec::new(), Vec::new());
        for (number, sequence) in rows {
            // During a prefill the step itself feeds the last token, at the same position.
            let at = sequence.tokens.len().saturating_sub(1);
            let row = [sequence.tokens.get(at).copied().unwrap_or(0), at as u32, number];
            words.iter_mut().zip(row).for_each(|(words, word)| words.push(word));
            sampling.push(sequence.sampling.state(sequence.draws, number));
            penalties.push(sequence.sampling.penalties());
        }
        let names = [names::STEP_TOKENS, names::STEP_POSITIONS, names::STEP_SEQUENCES];
        for (name, words) in names.into_iter().zip(&words) {
            device.write(address(&self.bindings, name)?, bytemuck::cast_slice(words))?;
        }
        device.write(address(&self.bindings, names::STEP_SAMPLING)?, bytemuck::cast_slice(&sampling))?;
        device.write(address(&self.bindings, names::STEP_PENALTIES)?, bytemuck::cast_slice(&penalties))?;
        self.write_masks(device, sequences)
    }

    /// Feeds all pending tokens and returns the results of the last one.
    fn results(&mut self, sequence: u32, results: Results) -> Result<Vec<f32>, ModelError> {
        if self.sequences[sequence as usize].tokens.is_empty() {
            return Err(ModelError::EmptyPrompt);
        }
        self.sequences[sequence as usize].reopen();
        self.run_pending(sequence, Some(results))
    }

    /// Feeds the pending tokens of a sequence in chunks and returns the results of the last token, if
    /// requested.
    fn run_pending(&mut self, sequence: u32, results: Option<Results>) -> Result<Vec<f32>, ModelError> {
        self.rows = None;
        let start = Instant::now();
        let (at, chunk) = (sequence as usize, self.options.chunk as usize);
        // Read once: a token drawn by the last chunk is pending, too.
        let total = self.sequences[at].tokens.len();
        let mut output = Vec::new();
        while self.sequences[at].fed < total {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(ModelError::Cancelled);
            }
            let end = total.min(self.sequences[at].fed + chunk);
            let last = end - self.sequences[at].fed - 1;
            let results = results.filter(|_| end == total).map(|results| (results, last));
            output = self.run_chunk(sequence, end, results)?;
        }
        timeline::record("prefill", 0, start);
        if let Some(profile) = &mut self.profile {
            profile.wall += start.elapsed();
        }
        Ok(output)
    }

    /// Feeds the pending tokens up to `end` in one step. `results` says what to return, and from which row
    /// on.
    pub(super) fn run_chunk(
        &mut self,
        sequence: u32,
        end: usize,
        results: Option<(Results, usize)>,
    ) -> Result<Vec<f32>, ModelError> {
        let shared = Arc::clone(&self.shared);
        let mut guard = shared.device();
        let device = guard.as_mut();
        let Sequence { tokens, fed, .. } = &self.sequences[sequence as usize];
        let (fed, tokens) = (*fed, tokens[*fed..end].to_vec());
        let rows = tokens.len() as u32;
        let history = address(&self.bindings, names::HISTORY)?;
        let first = sequence as usize * self.options.context as usize + fed;
        device.write(history + 4 * first as u64, bytemuck::cast_slice(&tokens))?;
        if matches!(results, Some((Results::Draw { .. }, _))) {
            self.write_rows(device, &[sequence])?;
        }
        let output_rows: Vec<u32> = results.map_or(Vec::new(), |(_, first)| (first as u32..rows).collect());
        let results = results.map(|(results, _)| results);
        let step =
            Step::Prefill { rows, results: results.map(|results| (output_rows.len() as u32, results)) };
        let spec = self.options.spec(step);
        let compiled = self.steps.get(&shared, device, &spec, &self.bindings, self.options.eager)?;
        let bound = &compiled.bound;
        bound.write_u32(device, names::TOKENS, &tokens)?;
        let positions: Vec<u32> = (fed as u32..end as u32).collect();
        bound.write_u32(device, names::POSITIONS, &positions)?;
        if self.options.sequences > 1 {
            bound.write_u32(device, names::SEQUENCES, &vec![sequence; rows as usize])?;
        }
        if results.is_some() {
            bound.write_u32(device, names::OUTPUT_ROWS, &output_rows)?;
        }
        // A chunk can take long on a slow device, so it can be canceled midway.
        let cache_use = CacheUse::of_rows(fed as u64, end as u64);
        let timing = self.profile.as_mut().map(|profile| Timing { profile, cache_use });
        if !compiled.run_unless(device, timing, &self.cancel)? {
            return Err(ModelError::Cancelled);
        }
        let (mut output, mut drawn) = (Vec::new(), None);
        match results {
            None => {}
            Some(Results::Hidden) => output = bound.read_f32(device, names::HIDDEN)?,
            Some(Results::Logits) => output = bound.read_f32(device, names::LOGITS)?,
            Some(Results::Draw { .. }) => drawn = Some(bound.read_u32(device, names::DRAWN)?[0]),
        }
        shared.check_weights()?;
        if let Some(token) = drawn {
            self.check_drawn(&[sequence], &[vec![token]])?;
            self.sequences[sequence as usize].drew(token);
            self.rows = Some(vec![sequence]);
        }
        self.sequences[sequence as usize].fed = end;
        Ok(output)
    }

    /// Appends tokens and calls `f`; if that fails, the tokens are removed again.
    pub(super) fn with_appended<T>(
        &mut self,
        sequence: u32,
        tokens: &[u32],
        f: impl FnOnce(&mut Session) -> Result<T, ModelError>,
    ) -> Result<T, ModelError> {
        self.check_sequence(sequence)?;
        let len = self.sequences[sequence as usize].tokens.len();
        let done = self.append(sequence, tokens).and_then(|()| f(self));
        if done.is_err() {
            self.sequences[sequence as usize].truncate(len);
            self.rows = None;
        }
        done
    }

    fn append(&mut self, sequence: u32, tokens: &[u32]) -> Result<(), ModelError> {
        let vocabulary = self.shared.config.vocabulary;
        if let Some(at) = tokens.iter().position(|&token| token >= vocabulary) {
            return Err(ModelError::Token { token: tokens[at], at, vocabulary });
        }
        if tokens.len() > self.context() - self.sequences[sequence as usize].tokens.len() {
            return Err(self.too_long(sequence, tokens.len()));
        }
        self.sequences[sequence as usize].tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Fails if the context has no room for another token.
    fn check_room(&self, sequence: u32) -> Result<(), ModelError> {
        match self.sequences[sequence as usize].tokens.len() < self.context() {
            true => Ok(()),
            false => Err(self.too_long(sequence, 1)),
        }
    }

    fn too_long(&self, sequence: u32, tokens: usize) -> ModelError {
        let used = self.sequences[sequence as usize].tokens.len() as u32;
        ModelError::PromptTooLong { tokens, context: self.options.context, used }
    }

    fn wrong_sequence(&self, sequence: u32, problem: &'static str) -> ModelError {
        ModelError::Sequence { sequence, problem, sequences: self.options.sequences }
    }

    fn check_sequence(&self, sequence: u32) -> Result<(), ModelError> {
        match sequence < self.options.sequences {
            true => Ok(()),
            false => Err(self.wrong_sequence(sequence, "does not exist")),
        }
    }

    pub(super) fn sequence(&mut self, sequence: u32) -> Result<&mut Sequence, ModelError> {
        self.check_sequence(sequence)?;
        Ok(&mut self.sequences[sequence as usize])
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut device = shared.device();
        self.steps.release(device.as_mut());
        for ptr in self.allocations.drain(..) {
            // There is no caller to report an error to.
            let _ = device.free(ptr);
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The address of a state that was bound when the session was created.
pub(super) fn address(bindings: &Bindings, name: &str) -> Result<u64, ExecError> {
    bindings.get(name).ok_or_else(|| {
        let problem = fulmen_core::Problem::Unbound(name.to_owned());
        ExecError::Build(fulmen_core::BuildError { call: "session", problem })
    })
}
