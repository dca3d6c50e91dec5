//! The graph of a step: tokens in, layers, results out.

use fulmen_core::{AttentionRows, CacheSpec, DType, LogicalGraph, Rotation, Tensor, pages_of};

use super::Config;
use super::record::{Layer, Recorder};
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
    /// State: the positions of the rows of a mixed step.
    pub const ROW_POSITIONS: &str = "rows.positions";
    /// State: their sequences.
    pub const ROW_SEQUENCES: &str = "rows.sequences";
    /// State: the rows of a mixed step to compute results for.
    pub const ROW_OUTPUTS: &str = "rows.outputs";
    /// State: which rows decode and which are prefill chunks: an
    /// [`attention_work`](fulmen_core::attention_work()).
    pub const ROW_WORK: &str = "rows.work";
    /// Output: hidden states after the final norm.
    pub const HIDDEN: &str = "hidden";
    /// Output: logits.
    pub const LOGITS: &str = "logits";
    /// Output: the drawn tokens.
    pub const DRAWN: &str = "drawn";

    /// State: the pages of each sequence, in the KV caches of all layers.
    pub const PAGES: &str = "cache.pages";

    /// State: the KV cache of a layer, `.k` and `.v`.
    pub fn cache(layer: u32) -> String {
        format!("cache.{layer}")
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
    },
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
    /// from step to step. Logits are an output beside drawn tokens.
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
    },
}

impl Step {
    /// The step of the same kind with one row of each sort: the template that [`rows_of`](Step::rows_of)
    /// fills in.
    pub(crate) fn with_one_row(self) -> Step {
        match self {
            Step::Prefill { results, .. } => {
                Step::Prefill { rows: 1, results: results.map(|(_, results)| (1, results)) }
            }
            Step::Mixed { chunks, results, .. } => {
                Step::Mixed { rows: 1, chunks, results: results.map(|(_, results)| (1, results)) }
            }
            Step::Decode { penalize, mask, .. } => Step::Decode { rows: 1, penalize, mask },
        }
    }

    /// The rows of an input or state of the graph by its name; `None` where they do not depend on the step.
    pub(crate) fn rows_of(self, name: &str) -> Option<u32> {
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
            | names::ROW_POSITIONS
            | names::ROW_SEQUENCES => Some(rows),
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
}

impl GraphSpec {
    /// KV pages of a sequence.
    pub fn sequence_pages(&self) -> u32 {
        pages_of(self.capacity)
    }

    /// A step of sequences that have all their pages.
    pub fn contiguous(step: Step, cache: DType, sequences: u32, capacity: u32) -> GraphSpec {
        let pages = sequences.saturating_mul(pages_of(capacity));
        GraphSpec { step, cache, sequences, capacity, pages }
    }
}

impl Config {
    /// The graph of a step. Every weight it needs is looked up in `source` and checked; files with tensors
    /// that no step would use are rejected.
    pub fn graph(&self, source: &dyn ModelSource, spec: &GraphSpec) -> Result<LogicalGraph, ModelError> {
        let mut recorder = Recorder::new(self, source);
        record(&mut recorder, spec)?;
        let Recorder { builder, mut used, .. } = recorder;
        used.insert(FACTORS.to_owned());
        let unused = |name: &&str| !used.contains(*name) && !is_harmless(name);
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

/// Tensors of old files that only repeat what the metadata says.
fn is_harmless(name: &str) -> bool {
    name == "rope.freqs" || name.ends_with(".attn_rot_embd.weight") || name.ends_with(".attn_rot_embd")
}

fn record(recorder: &mut Recorder<'_>, spec: &GraphSpec) -> Result<(), ModelError> {
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
    let (tokens, history) = match spec.step {
        Step::Prefill { rows, .. } => (b.indices(names::TOKENS, rows)?, None),
        Step::Decode { rows, .. } => (b.index_state(names::STEP_TOKENS, rows, 1)?, None),
        Step::Mixed { .. } => {
            let history = b.index_state(names::HISTORY, spec.sequences, spec.capacity)?;
            (b.gather_tokens(history, positions, sequences)?, Some(history))
        }
    };
    let factors = match &config.rope_factors {
        Some(factors) => Some(b.vector(names::ROPE_FACTORS, factors.len() as u32)?),
        None => None,
    };
    let rotation = Rotation { spec: config.rope, positions, factors };

    let embedding = recorder.weight("token_embd.weight", config.vocabulary, config.hidden)?;
    let mut x = recorder.builder.embed(embedding, tokens)?;
    let table = recorder.builder.page_table(names::PAGES, spec.sequences, spec.sequence_pages())?;
    let rows = match spec.step {
        Step::Prefill { .. } => AttentionRows::Prefill,
        Step::Decode { .. } | Step::Mixed { chunks: 0, .. } => AttentionRows::Decode,
        Step::Mixed { chunks, .. } => recorder.builder.attention_work(names::ROW_WORK, chunks)?,
    };
    for number in 0..config.layers {
        let (dtype, n_pages, heads) = (spec.cache, spec.pages, config.heads);
        let cache = CacheSpec { dtype, n_pages, table, heads };
        let cache = recorder.builder.kv_cache(&names::cache(number), cache)?;
        let mut layer = Layer { recorder, number, rotation, cache, sequences, rows };
        x = (config.architecture.description().layer)(&mut layer, x)?;
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
        Step::Decode { penalize, mask, .. } => {
            (Results::Draw { penalize, mask }, Some(StepStates { tokens, positions, sequences }))
        }
    };
    let gain = recorder.vector("output_norm.weight", config.hidden)?;
    x = recorder.builder.rms_norm(x, gain, config.epsilon)?;
    if results == Results::Hidden {
        return Ok(recorder.builder.output(names::HIDDEN, x)?);
    }
    let head = match config.tied {
        true => embedding,
        false => recorder.weight("output.weight", config.vocabulary, config.hidden)?,
    };
    let logits = recorder.builder.mul_mat(x, head)?;
    let Results::Draw { penalize, mask } = results else {
        return Ok(recorder.builder.output(names::LOGITS, logits)?);
    };
    if matches!(spec.step, Step::Mixed { .. }) {
        recorder.builder.output(names::LOGITS, logits)?;
    }
    draw(recorder, spec, logits, step, history, [penalize, mask])
}

/// The state that the next step reads.
struct StepStates {
    tokens: Tensor,
    positions: Tensor,
    sequences: Option<Tensor>,
}

/// Draws a token from each row of logits and stores it as the input of the next step.
fn draw(
    recorder: &mut Recorder<'_>,
    spec: &GraphSpec,
    mut logits: Tensor,
    step: Option<StepStates>,
    history: Option<Tensor>,
    [penalize, mask]: [bool; 2],
) -> Result<(), ModelError> {
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
    let drawn = b.sample(logits, states)?;
    b.output(names::DRAWN, drawn)?;
    Ok(b.advance(drawn, tokens, positions, history, sequences)?)
}
