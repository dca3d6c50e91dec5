//! The graph of a step: tokens in, layers, results out.

use std::collections::HashMap;

use fulmen_core::{AttentionRows, CacheSpec, DType, LogicalGraph, Rotation, Tensor, UnaryKind, pages_of};

use super::Config;
use super::placement::Stage;
use super::record::{Layer, Recorder, RowStates};
use super::rope::FACTORS;
use crate::error::ModelError;
use crate::source::ModelSource;

/// Logit biases that an output row of a mixed step can have.
pub const MIXED_LOGIT_BIASES: u32 = 300;

/// Names of the inputs, states and outputs of a graph.
pub mod names {
    /// Input: the tokens of a prefill.
    pub const TOKENS: &str = "tokens";
    /// Input: their positions.
    pub const POSITIONS: &str = "positions";
    /// Input: their sequences, where there are several.
    pub const SEQUENCES: &str = "sequences";
    /// Input: the rows to compute results for.
    pub const OUTPUT_ROWS: &str = "output_rows";
    /// State: the token that each row feeds next.
    pub const STEP_TOKENS: &str = "step.tokens";
    /// State: the position of that token; during a prefill, of the last token.
    pub const STEP_POSITIONS: &str = "step.positions";
    /// State: the sequence of each row, where there are several.
    pub const STEP_SEQUENCES: &str = "step.sequences";
    /// State: one [`SampleState`](fulmen_core::sampling::SampleState) per row.
    pub const STEP_SAMPLING: &str = "step.sampling";
    /// State: one [`Penalties`](fulmen_core::sampling::Penalties) per row.
    pub const STEP_PENALTIES: &str = "step.penalties";
    /// State: one [`LogitEdits`](fulmen_core::sampling::LogitEdits) per row, without room for biases.
    pub const STEP_EDITS: &str = "step.edits";
    /// State: one token mask per row.
    pub const STEP_MASKS: &str = "step.masks";
    /// State: the tokens of every sequence by position.
    pub const HISTORY: &str = "history";
    /// Constant: the divisors of the RoPE frequencies.
    pub const ROPE_FACTORS: &str = "rope.factors";
    /// Constant: those of long contexts.
    pub const ROPE_FACTORS_LONG: &str = "rope.factors.long";
    /// Constant: ones, the gain of norms of heads that have none.
    pub const UNIT_GAIN: &str = "unit_gain";
    /// Constant: those of heads of layers with a window.
    pub const UNIT_GAIN_LOCAL: &str = "unit_gain.local";
    /// The constants: weights of a graph that are no tensors of the file.
    pub const CONSTANTS: [&str; 4] = [ROPE_FACTORS, ROPE_FACTORS_LONG, UNIT_GAIN, UNIT_GAIN_LOCAL];
    /// State: the positions of the rows of a mixed step.
    pub const ROW_POSITIONS: &str = "rows.positions";
    /// State: their sequences.
    pub const ROW_SEQUENCES: &str = "rows.sequences";
    /// State: the slots of their recurrent states.
    pub const ROW_STATES: &str = "rows.states";
    /// State: the rows of a mixed step to compute results for.
    pub const ROW_OUTPUTS: &str = "rows.outputs";
    /// State: which rows decode and which are prefill chunks: an
    /// [`attention_work`](fulmen_core::attention_work()).
    pub const ROW_WORK: &str = "rows.work";
    /// Input: the hidden states that the stage before has computed.
    pub const STAGE_INPUT: &str = "stage.input";
    /// Output: the hidden states for the next stage.
    pub const STAGE_OUTPUT: &str = "stage.output";
    /// What the names of the inputs of a host segment begin with.
    pub const HOST_INPUTS: &str = "host.input.";
    /// Output of a host segment.
    pub const HOST_OUTPUT: &str = "host.output";
    /// Output: hidden states after the final norm.
    pub const HIDDEN: &str = "hidden";
    /// Output: logits.
    pub const LOGITS: &str = "logits";
    /// Output: the drawn tokens.
    pub const DRAWN: &str = "drawn";
    /// Output: the log-probability of each drawn token, and those of the most likely ones.
    pub const LOG_PROBS: &str = "log_probs";
    /// Output: whose they are.
    pub const LOG_PROB_TOKENS: &str = "log_probs.tokens";

    /// State: the pages of each sequence, in the KV caches of all layers, or of those without a window.
    pub const PAGES: &str = "cache.pages";
    /// State: those in the KV caches of layers with a window, if they have pages of their own.
    pub const WINDOW_PAGES: &str = "cache.pages.window";

    /// Input of a host segment, by its number.
    pub fn host_input(number: usize) -> String {
        format!("{HOST_INPUTS}{number}")
    }

    /// State: the KV cache of a layer, `.k` and `.v`.
    pub fn cache(layer: u32) -> String {
        format!("cache.{layer}")
    }

    /// States: those of a layer's convolution and of its delta rule, with as many slots as
    /// [`GraphSpec::states`](super::GraphSpec::states) says.
    pub fn states(layer: u32) -> [String; 2] {
        ["conv", "delta"].map(|state| format!("state.{layer}.{state}"))
    }
}

/// What a step returns for its output rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Results {
    /// Hidden states after the final norm.
    Hidden,
    /// Logits.
    Logits,
    /// A drawn token per row, which becomes the row's next input.
    Draw {
        /// Whether repetition penalties apply.
        penalize: bool,
        /// Whether token masks apply.
        mask: bool,
        /// Every row draws one of this many of its most likely tokens; `None` if that is not known. Ranks
        /// that have a part of the vocabulary each exchange no more of them; others ignore it. It has no
        /// effect with penalties, masks or log-probabilities, which need all logits.
        candidates: Option<u32>,
        /// What else is computed, in a mixed step.
        beside: Beside,
    },
}

/// Outputs beside drawn tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Beside {
    /// Log-probabilities of the drawn token and of this many of the most likely ones, of the logits as the
    /// model gives them.
    pub log_probs: Option<u32>,
    /// Hidden states after the final norm.
    pub hidden: bool,
}

/// One prefill or decode step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Feeds `rows` tokens from the host and computes results for some of them.
    Prefill {
        /// Tokens fed.
        rows: u32,
        /// The number of output rows and what is computed for them.
        results: Option<(u32, Results)>,
    },
    /// Runs rows of many sequences, decode rows and prefill chunks together. The token of a row is that of
    /// the history at its position; what describes the rows are states, so that nothing but they changes
    /// from step to step.
    Mixed {
        /// Rows.
        rows: u32,
        /// The most prefill chunks; without any, all rows are decode rows.
        chunks: u32,
        /// The number of output rows and what is computed for them.
        results: Option<(u32, Results)>,
    },
    /// Feeds each row's next token, draws one, and advances the state; needs nothing from the host.
    Decode {
        /// Batch size: sequences that decode together.
        rows: u32,
        /// Whether repetition penalties apply.
        penalize: bool,
        /// Whether token masks apply.
        mask: bool,
        /// As in [`Results::Draw`].
        candidates: Option<u32>,
    },
}

impl Step {
    /// A decode step whose rows have neither penalties nor masks.
    pub fn decode(rows: u32) -> Step {
        Step::Decode { rows, penalize: false, mask: false, candidates: None }
    }

    /// The step of the same kind with one row of each sort: the template that [`rows_of`](Step::rows_of)
    /// fills in.
    pub fn with_one_row(self) -> Step {
        match self {
            Step::Prefill { results, .. } => {
                Step::Prefill { rows: 1, results: results.map(|(_, results)| (1, results)) }
            }
            Step::Mixed { chunks, results, .. } => {
                Step::Mixed { rows: 1, chunks, results: results.map(|(_, results)| (1, results)) }
            }
            Step::Decode { penalize, mask, candidates, .. } => {
                Step::Decode { rows: 1, penalize, mask, candidates }
            }
        }
    }

    /// The step without results: what a stage runs that does not end with the last layer.
    pub fn without_results(self) -> Step {
        match self {
            Step::Prefill { rows, .. } => Step::Prefill { rows, results: None },
            Step::Mixed { rows, chunks, .. } => Step::Mixed { rows, chunks, results: None },
            Step::Decode { rows, .. } => Step::decode(rows),
        }
    }

    /// The rows of an input or state of the graph by its name; `None` where they do not depend on the step.
    pub fn rows_of(self, name: &str) -> Option<u32> {
        let (rows, output_rows) = match self {
            Step::Prefill { rows, results } | Step::Mixed { rows, results, .. } => {
                (rows, results.map_or(0, |(rows, _)| rows))
            }
            Step::Decode { rows, .. } => (rows, rows),
        };
        match name {
            names::TOKENS
            | names::POSITIONS
            | names::SEQUENCES
            | names::STAGE_INPUT
            | names::ROW_POSITIONS
            | names::ROW_SEQUENCES
            | names::ROW_STATES => Some(rows),
            names::OUTPUT_ROWS
            | names::ROW_OUTPUTS
            | names::STEP_TOKENS
            | names::STEP_POSITIONS
            | names::STEP_SEQUENCES
            | names::STEP_SAMPLING
            | names::STEP_PENALTIES
            | names::STEP_EDITS
            | names::STEP_MASKS => Some(output_rows),
            _ => None,
        }
    }
}

/// A step and its KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GraphSpec {
    /// The step.
    pub step: Step,
    /// Type of the KV cache: F32, F16 or Q8_0.
    pub cache: DType,
    /// Sequences in the KV cache.
    pub sequences: u32,
    /// Positions per sequence; whole pages of the KV cache hold them.
    pub capacity: u32,
    /// KV pages of all sequences together.
    pub pages: u32,
    /// KV pages of the layers with a window, whose page table is another then; 0 if they have the others'.
    pub window_pages: u32,
    /// Slots of recurrent states. The rows of a mixed step say which slot is theirs; in other steps it has
    /// the number of their sequence.
    pub states: u32,
    /// The layers of one device; `None` for all of them.
    pub stage: Option<Stage>,
}

impl GraphSpec {
    /// KV pages of a sequence.
    pub fn sequence_pages(&self) -> u32 {
        pages_of(self.capacity)
    }

    /// A step of sequences that have all their pages.
    pub fn contiguous(step: Step, cache: DType, sequences: u32, capacity: u32) -> GraphSpec {
        let pages = sequences.saturating_mul(pages_of(capacity));
        GraphSpec { step, cache, sequences, capacity, pages, window_pages: 0, states: sequences, stage: None }
    }

    /// What a stage runs of this step: only the last stage computes results.
    pub fn on(self, stage: Stage) -> GraphSpec {
        let step = if stage.is_last() { self.step } else { self.step.without_results() };
        GraphSpec { step, stage: Some(stage), ..self }
    }
}

impl Config {
    /// The graph of a step. Every weight it needs is looked up in `source` and checked. Unless it is that of
    /// one stage of several, files with tensors that no step would use are rejected.
    pub fn graph(&self, source: &dyn ModelSource, spec: &GraphSpec) -> Result<LogicalGraph, ModelError> {
        let stage = spec.stage.unwrap_or(Stage::whole(self.layers));
        stage.check(self.layers)?;
        let needs_all = self.variant.shared_kv > 0 || self.variant.layer_embedding > 0;
        if needs_all && !stage.has_all_layers() {
            return Err(ModelError::Option {
                what: "the stage of a graph",
                expected:
                    "all layers (shared KV caches and embeddings per layer are not supported otherwise)"
                        .to_owned(),
                found: stage.to_string(),
            });
        }
        let mut recorder = Recorder::new(self, source, stage);
        record(&mut recorder, spec, stage)?;
        let Recorder { builder, mut used, .. } = recorder;
        if !stage.has_all_layers() {
            // The tensors of other stages are none of its own.
            return Ok(builder.finish());
        }
        used.extend(FACTORS.map(str::to_owned));
        let unused = |name: &&str| !used.contains(*name) && !is_harmless(name) && !self.is_draft(name);
        let extra: Vec<&str> = source.tensors().iter().map(|info| info.name()).filter(unused).collect();
        // A step without logits does not read the output matrix.
        let partial = match spec.step {
            Step::Prefill { results, .. } | Step::Mixed { results, .. } => {
                matches!(results, None | Some((_, Results::Hidden)))
            }
            Step::Decode { .. } => false,
        };
        let head = ["output_norm.weight", "output.weight"];
        let extra: Vec<&str> = extra.into_iter().filter(|name| !(partial && head.contains(name))).collect();
        if let Some(first) = extra.first() {
            let (architecture, count, first) = (self.architecture, extra.len(), (*first).to_owned());
            return Err(ModelError::ExtraTensors { architecture, count, first });
        }
        Ok(builder.finish())
    }
}

impl Config {
    /// Whether a tensor belongs to a layer that predicts further tokens.
    fn is_draft(&self, name: &str) -> bool {
        let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
        layer.is_some_and(|layer| (self.layers..self.layers + self.draft_layers).contains(&layer))
    }
}

/// Tensors of old files that only repeat what the metadata says.
fn is_harmless(name: &str) -> bool {
    name == "rope.freqs" || name.ends_with(".attn_rot_embd.weight") || name.ends_with(".attn_rot_embd")
}

pub(super) fn record(recorder: &mut Recorder<'_>, spec: &GraphSpec, stage: Stage) -> Result<(), ModelError> {
    let (config, several) = (recorder.config, spec.sequences > 1);
    let b = &mut recorder.builder;
    // What a row reads: an input from the host, or a state.
    let mut read = |input: &str, step: &str, row: &str| match spec.step {
        Step::Prefill { rows, .. } => b.indices(input, rows),
        Step::Decode { rows, .. } => b.index_state(step, rows, 1),
        Step::Mixed { rows, .. } => b.index_state(row, rows, 1),
    };
    let positions = read(names::POSITIONS, names::STEP_POSITIONS, names::ROW_POSITIONS)?;
    let sequences = match several {
        true => Some(read(names::SEQUENCES, names::STEP_SEQUENCES, names::ROW_SEQUENCES)?),
        false => None,
    };
    let factors = match config.rope_constant(spec.capacity) {
        Some((name, len)) => Some(b.vector(name, len)?),
        None => None,
    };
    let rotation = Rotation { spec: config.rope, positions, factors };
    let states = match spec.step {
        Step::Mixed { rows, .. } if stage.layers().any(|layer| config.is_recurrent(layer)) => {
            Some(b.index_state(names::ROW_STATES, rows, 1)?)
        }
        _ => sequences,
    };

    let Begin { mut x, embedding, tokens, history } = begin(recorder, spec, stage, positions, sequences)?;
    let variant = &config.variant;
    let tables = Tables::new(recorder, spec)?;
    let rows = match spec.step {
        Step::Prefill { .. } => AttentionRows::Prefill,
        Step::Decode { .. } | Step::Mixed { chunks: 0, .. } => AttentionRows::Decode,
        Step::Mixed { chunks, .. } => recorder.builder.attention_work(names::ROW_WORK, chunks)?,
    };
    let embedded = tokens.map(|tokens| [tokens, x]);
    let mut caches = HashMap::new();
    for number in stage.layers() {
        let (table, n_pages) = tables.of(config, number);
        let cache = CacheSpec { dtype: spec.cache, n_pages, table, heads: config.heads_of(number) };
        let cache = match (config.is_recurrent(number), config.cache_layer(number)) {
            (true, _) => None,
            (false, own) if own == number => Some(recorder.builder.kv_cache(&names::cache(number), cache)?),
            (false, earlier) => caches.get(&earlier).copied(),
        };
        caches.extend(cache.map(|cache| (number, cache)));
        // The RoPE of this layer, if it has one.
        let local = variant.local_rope.filter(|_| variant.window_of(number).is_some());
        let rotation = match local {
            Some(spec) => Rotation { spec, positions, factors: None },
            None => rotation,
        };
        let rotation = variant.has_rope(number).then_some(rotation);
        let states = RowStates { rows: states, slots: spec.states };
        let mut layer =
            Layer { recorder, number, positions, rotation, cache, sequences, states, rows, embedded };
        x = (config.architecture.description().layer)(&mut layer, x)?;
    }
    if !stage.is_last() {
        return Ok(recorder.builder.output(names::STAGE_OUTPUT, x)?);
    }

    let (results, step) = match spec.step {
        Step::Prefill { results: None, .. } | Step::Mixed { results: None, .. } => return Ok(()),
        Step::Prefill { results: Some((output_rows, results)), .. } => {
            let rows = recorder.builder.indices(names::OUTPUT_ROWS, output_rows)?;
            x = recorder.builder.embed(x, rows)?;
            (results, None)
        }
        Step::Mixed { results: Some((output_rows, results)), .. } => {
            let rows = recorder.builder.index_state(names::ROW_OUTPUTS, output_rows, 1)?;
            x = recorder.builder.embed(x, rows)?;
            (results, None)
        }
        Step::Decode { penalize, mask, candidates, .. } => (
            Results::Draw { penalize, mask, candidates, beside: Beside::default() },
            Some(StepStates { tokens: step_tokens(recorder, spec, tokens)?, positions, sequences }),
        ),
    };
    let gain = recorder.vector("output_norm.weight", config.hidden)?;
    x = recorder.builder.rms_norm(x, gain, config.epsilon)?;
    if results == Results::Hidden {
        return Ok(recorder.builder.output(names::HIDDEN, x)?);
    }
    let head = match config.tied {
        true => match embedding {
            Some(embedding) => embedding,
            None => recorder.weight("token_embd.weight", config.vocabulary_rows(), config.hidden)?,
        },
        false => recorder.weight("output.weight", config.vocabulary_rows(), config.hidden)?,
    };
    let mut logits = recorder.builder.mul_mat(x, head)?;
    if variant.logit_scale != 1.0 {
        logits = recorder.builder.unary(UnaryKind::Scale(1.0 / variant.logit_scale), logits)?;
    }
    if let Some(cap) = variant.logit_softcap {
        logits = recorder.builder.soft_cap(logits, cap)?;
    }
    finish(recorder, spec, [x, logits], (results, step), history)
}

/// Computes results from hidden states after the final norm and this rank's logits.
fn finish(
    recorder: &mut Recorder<'_>,
    spec: &GraphSpec,
    [x, logits]: [Tensor; 2],
    (results, step): (Results, Option<StepStates>),
    history: Option<Tensor>,
) -> Result<(), ModelError> {
    let Results::Draw { penalize, mask, candidates, beside } = results else {
        let logits = recorder.gather_logits(logits)?;
        return Ok(recorder.builder.output(names::LOGITS, logits)?);
    };
    if beside.hidden {
        recorder.builder.output(names::HIDDEN, x)?;
    }
    let enough = candidates.filter(|_| !penalize && !mask && beside.log_probs.is_none());
    let offered = match enough {
        Some(count) => recorder.gather_candidates(logits, count)?,
        None => None,
    };
    if let Some((values, tokens)) = offered {
        draw(recorder, spec, (values, Some(tokens)), step, history, [false; 2])?;
        return Ok(());
    }
    let logits = recorder.gather_logits(logits)?;
    let drawn = draw(recorder, spec, (logits, None), step, history, [penalize, mask])?;
    if let Some(top) = beside.log_probs {
        let (values, tokens) = recorder.builder.log_probs(logits, drawn, top)?;
        recorder.builder.output(names::LOG_PROBS, values)?;
        recorder.builder.output(names::LOG_PROB_TOKENS, tokens)?;
    }
    Ok(())
}

/// The page tables and the pages of their pools.
struct Tables {
    all: (Tensor, u32),
    /// Those of the layers with a window, if they have pages of their own.
    window: Option<(Tensor, u32)>,
}

impl Tables {
    fn new(recorder: &mut Recorder<'_>, spec: &GraphSpec) -> Result<Tables, ModelError> {
        let mut table = |name: &str, pages: u32| {
            recorder
                .builder
                .page_table(name, spec.sequences, spec.sequence_pages())
                .map(|table| (table, pages))
        };
        let all = table(names::PAGES, spec.pages)?;
        let window = match spec.window_pages {
            0 => None,
            pages => Some(table(names::WINDOW_PAGES, pages)?),
        };
        Ok(Tables { all, window })
    }

    /// Those of a layer.
    fn of(&self, config: &Config, layer: u32) -> (Tensor, u32) {
        self.window.filter(|_| config.variant.window_of(layer).is_some()).unwrap_or(self.all)
    }
}

/// What the layers of a stage begin with.
struct Begin {
    /// Hidden states.
    x: Tensor,
    /// The embedding table, the tokens and the history that they come from, if the stage embeds them.
    embedding: Option<Tensor>,
    tokens: Option<Tensor>,
    history: Option<Tensor>,
}

/// Embeds the tokens, or takes the hidden states of the stage before.
fn begin(
    recorder: &mut Recorder<'_>,
    spec: &GraphSpec,
    stage: Stage,
    positions: Tensor,
    sequences: Option<Tensor>,
) -> Result<Begin, ModelError> {
    let (config, b) = (recorder.config, &mut recorder.builder);
    if !stage.is_first() {
        let (Step::Prefill { rows, .. } | Step::Mixed { rows, .. } | Step::Decode { rows, .. }) = spec.step;
        let x = b.input(names::STAGE_INPUT, rows, config.hidden)?;
        return Ok(Begin { x, embedding: None, tokens: None, history: None });
    }
    let (tokens, history) = match spec.step {
        Step::Prefill { rows, .. } => (b.indices(names::TOKENS, rows)?, None),
        Step::Decode { rows, .. } => (b.index_state(names::STEP_TOKENS, rows, 1)?, None),
        Step::Mixed { .. } => {
            let history = b.index_state(names::HISTORY, spec.sequences, spec.capacity)?;
            (b.gather_tokens(history, positions, sequences)?, Some(history))
        }
    };
    let embedding = recorder.weight("token_embd.weight", config.vocabulary_rows(), config.hidden)?;
    let mut x = recorder.embed(embedding, tokens)?;
    let scale = config.variant.embedding_scale;
    if scale != 1.0 {
        x = recorder.builder.unary(UnaryKind::Scale(scale), x)?;
    }
    Ok(Begin { x, embedding: Some(embedding), tokens: Some(tokens), history })
}

/// The tokens of a decode step as a state: those that were embedded, or of a stage that embeds none.
fn step_tokens(
    recorder: &mut Recorder<'_>,
    spec: &GraphSpec,
    embedded: Option<Tensor>,
) -> Result<Tensor, ModelError> {
    match (embedded, spec.step) {
        (Some(tokens), _) => Ok(tokens),
        (None, Step::Decode { rows, .. } | Step::Prefill { rows, .. } | Step::Mixed { rows, .. }) => {
            Ok(recorder.builder.index_state(names::STEP_TOKENS, rows, 1)?)
        }
    }
}

/// The state that the next step reads.
struct StepStates {
    tokens: Tensor,
    positions: Tensor,
    sequences: Option<Tensor>,
}

/// Draws a token from each row of logits, stores it as the input of the next step, and returns it. The logits
/// are those of all tokens, or of the tokens beside them.
fn draw(
    recorder: &mut Recorder<'_>,
    spec: &GraphSpec,
    (mut logits, of): (Tensor, Option<Tensor>),
    step: Option<StepStates>,
    history: Option<Tensor>,
    [penalize, mask]: [bool; 2],
) -> Result<Tensor, ModelError> {
    let b = &mut recorder.builder;
    let (rows, vocabulary) = b.shape(logits)?;
    let StepStates { tokens, positions, sequences } = match step {
        Some(step) => step,
        None => StepStates {
            tokens: b.index_state(names::STEP_TOKENS, rows, 1)?,
            positions: b.index_state(names::STEP_POSITIONS, rows, 1)?,
            sequences: match spec.sequences {
                1 => None,
                _ => Some(b.index_state(names::STEP_SEQUENCES, rows, 1)?),
            },
        },
    };
    let history = match history {
        Some(history) => history,
        None => b.index_state(names::HISTORY, spec.sequences, spec.capacity)?,
    };
    if penalize {
        let penalties = b.penalties(names::STEP_PENALTIES, rows)?;
        logits = b.penalize(logits, penalties, history, positions, sequences)?;
    }
    if mask {
        let capacity = if matches!(spec.step, Step::Mixed { .. }) { MIXED_LOGIT_BIASES } else { 0 };
        let edits = b.logit_edits(names::STEP_EDITS, rows, capacity)?;
        let masks = b.token_masks(names::STEP_MASKS, rows, vocabulary)?;
        logits = b.mask_logits(logits, edits, masks, None)?;
    }
    let states = b.sample_states(names::STEP_SAMPLING, rows)?;
    let drawn = match of {
        Some(tokens) => b.sample_tokens(logits, tokens, states)?,
        None => b.sample(logits, states)?,
    };
    b.output(names::DRAWN, drawn)?;
    b.advance(drawn, tokens, positions, history, sequences)?;
    Ok(drawn)
}
