//! Sequences on a device: their KV caches, their state and the compiled steps that run them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fulmen_core::clock::Instant;
use fulmen_core::{BackendError, Bindings, DType, ExecError, PageLayout, pages_of, timeline};
use fulmen_model::ModelError;
use fulmen_model::arch::{Beside, Config, GraphSpec, Results, Stage, Step};
use fulmen_model::tokenizer::Tokenizer;

use super::Sampling;
use super::mask::Adjustments;
use super::model::Shared;
use super::profile::Profile;
use super::sequence::{KEPT_STATES, Sequence};
use super::session_stage::SessionStage;
use crate::ranks::Workers;

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
        let head_dims = [config.heads.head_dim, config.variant.local_heads.unwrap_or(config.heads).head_dim];
        if let Some(size) = head_dims.iter().find(|&&size| self.cache.bytes(size as usize).is_err()) {
            let found = format!("{} with a head size of {size}", self.cache);
            return refused("the type of the KV cache", "one whose block size divides the head size", found);
        }
        Ok(self)
    }

    pub(super) fn spec(&self, step: Step) -> GraphSpec {
        let &SessionOptions { cache, sequences, context, .. } = self;
        GraphSpec::contiguous(step, cache, sequences, context)
    }

    /// KV pages of a sequence.
    pub(super) fn sequence_pages(&self) -> u32 {
        pages_of(self.context)
    }

    /// Bytes of the keys (or the values) of a layer.
    pub(super) fn layer_k_bytes(&self, config: &Config, layer: u32) -> usize {
        let layout = PageLayout::new(self.cache, config.heads_of(layer));
        let page = layout.map_or(usize::MAX, |layout| layout.bytes());
        [self.sequences, self.sequence_pages()]
            .iter()
            .fold(page, |bytes, &n| bytes.saturating_mul(n as usize))
    }

    /// Bytes of the whole KV cache: whole pages for each sequence.
    pub fn cache_bytes(&self, config: &Config) -> u64 {
        self.stage_cache_bytes(config, Stage::whole(config.layers))
    }

    /// Bytes of the KV cache of a stage.
    pub(super) fn stage_cache_bytes(&self, config: &Config, stage: Stage) -> u64 {
        let bytes = |layer| (self.layer_k_bytes(config, layer) as u64).saturating_mul(2);
        config.cached_layers(stage).map(bytes).fold(0, u64::saturating_add)
    }

    /// Bytes of the recurrent states of all sequences, without those that are kept to go back to.
    pub fn state_bytes(&self, config: &Config) -> u64 {
        config.state_bytes(Stage::whole(config.layers)).saturating_mul(self.sequences.into())
    }

    /// Bytes of the KV cache and of the recurrent states of all layers.
    fn memory_bytes(&self, config: &Config) -> u64 {
        self.stage_memory_bytes(config, Stage::whole(config.layers))
    }

    /// Bytes of the KV cache and of the recurrent states of a stage, with those that are kept.
    pub(super) fn stage_memory_bytes(&self, config: &Config, stage: Stage) -> u64 {
        let states = u64::from(self.sequences).saturating_mul(1 + KEPT_STATES as u64);
        let states = config.state_bytes(stage).saturating_mul(states);
        self.stage_cache_bytes(config, stage).saturating_add(states)
    }
}

/// Sequences of tokens on the devices of a model.
///
/// A sequence is a list of tokens. Feeding tokens returns hidden states, logits or a drawn token, which is
/// appended to the sequence. Nothing is computed twice: continuing a sequence costs only its new tokens. A
/// call that fails leaves the sequences unchanged.
///
/// A recurrent state ([`DeltaNet`](fulmen_model::arch::DeltaNet)) cannot go back by itself: where tokens that
/// it has seen are removed, or a step that changed it fails, the next call runs the sequence again from the
/// last state before that was kept, or from its beginning. States are kept at the last chunk border of
/// prompts and at their ends.
pub struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) options: SessionOptions,
    /// One for each stage of the model's placement.
    pub(super) stages: Vec<SessionStage>,
    pub(super) sequences: Vec<Sequence>,
    /// The sequences whose state is in the rows of the last device; `None` if the rows are stale.
    pub(super) rows: Option<Vec<u32>>,
    pub(super) cancel: Arc<AtomicBool>,
    pub(super) profile: Option<Profile>,
    pub(super) launches: Option<StepLaunches>,
    /// The sessions of the other ranks, if this is that of rank 0.
    pub(super) followers: Option<Workers<Session>>,
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
            stages: shared.stages.iter().map(|stage| SessionStage::new(&stage.weights.bindings)).collect(),
            shared,
            options,
            sequences: Vec::new(),
            rows: None,
            cancel: Arc::default(),
            profile: None,
            launches: None,
            followers: None,
        };
        let recurrent = session.shared.config.delta_net.is_some();
        session.sequences = vec![Sequence::new(recurrent); options.sequences as usize];
        // On failure the session is dropped, which frees what was allocated.
        match timeline::span("allocate the KV cache", || session.allocate()) {
            Ok(()) => {
                session.followers = session.start_followers()?;
                Ok(session)
            }
            Err(BackendError::OutOfMemory { .. }) => Err(ModelError::CacheMemory {
                cache: options.memory_bytes(&session.shared.config),
                context: options.context,
                sequences: options.sequences,
                dtype: options.cache,
            }),
            Err(error) => Err(error.into()),
        }
    }

    fn allocate(&mut self) -> Result<(), BackendError> {
        let Shared { config, placement, .. } = self.shared.as_ref();
        let mut devices = self.shared.devices();
        let places = placement.stages().iter().zip(&mut devices);
        for (part, (&stage, device)) in self.stages.iter_mut().zip(places) {
            part.allocate(device.as_mut(), config, &self.options, stage)?;
        }
        Ok(())
    }

    /// The addresses of weights and states on the device that computes results.
    pub(super) fn bindings(&self) -> &Bindings {
        // A placement has at least one stage.
        &self.stages[self.stages.len() - 1].bindings
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

    /// How many tokens of a sequence are in its KV cache and its recurrent state. The next call that needs
    /// results runs the others.
    pub fn fed(&self, sequence: u32) -> Result<usize, ModelError> {
        self.check_sequence(sequence)?;
        Ok(self.sequences[sequence as usize].fed)
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
            let Adjustments { penalize, mask, candidates } = session.adjustments(&[sequence]);
            let beside = Beside::default();
            session.results(sequence, Results::Draw { penalize, mask, candidates, beside })?;
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
        self.decode_pending(sequences, steps).inspect_err(|_| {
            self.rows = None;
            sequences.iter().for_each(|&sequence| self.sequences[sequence as usize].failed());
        })
    }

    /// Whether the cancel flag is set.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
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
    pub(super) fn run_pending(
        &mut self,
        sequence: u32,
        results: Option<Results>,
    ) -> Result<Vec<f32>, ModelError> {
        self.rows = None;
        let start = Instant::now();
        let (at, chunk) = (sequence as usize, self.options.chunk as usize);
        // Read once: a token drawn by the last chunk is pending, too.
        let total = self.sequences[at].tokens.len();
        self.sequences[at].keep_states(total, chunk);
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

    pub(super) fn append(&mut self, sequence: u32, tokens: &[u32]) -> Result<(), ModelError> {
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

    pub(super) fn wrong_sequence(&self, sequence: u32, problem: &'static str) -> ModelError {
        ModelError::Sequence { sequence, problem, sequences: self.options.sequences }
    }

    pub(super) fn check_sequence(&self, sequence: u32) -> Result<(), ModelError> {
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
        for (part, device) in self.stages.iter_mut().zip(self.shared.devices()) {
            let mut device = device;
            part.release(device.as_mut());
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
