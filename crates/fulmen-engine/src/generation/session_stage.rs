//! The part of a session on one device, and the rows that go from one device to the next.
//!
//! ```text
//!            ┌────────── stage 0 ──────────┐  hidden  ┌────────── stage 1 ──────────┐
//!  tokens ──►│ embed ─► layers 0–11 (KV)   │─ rows ──►│ layers 12–23 (KV) ─► sample │──► drawn tokens
//!            └─────────────────────────────┘          └─────────────────────────────┘        │
//!      ▲─────────────────────────────── with the next position ──────────────────────────────┘
//! ```
//!
//! A step is compiled, and captured, for each device. With one device, tokens and positions stay there from
//! step to step. With several, the last one keeps them, and the host writes those of the others before each
//! step.

use fulmen_core::{Backend, BackendError, Bindings, CopyCall};
use fulmen_model::ModelError;
use fulmen_model::arch::{Config, Stage, names};

use super::mask::mask_words;
use super::sequence::KEPT_STATES;
use super::session::{SessionOptions, address};
use super::step_cache::StepCache;

/// What a copy of recurrent states is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateCopy {
    /// They are needed later.
    Keep,
    /// The sequence goes back to them.
    Restore,
}

/// States and compiled steps of a session on one device.
pub(super) struct SessionStage {
    /// The addresses of weights and states.
    pub(super) bindings: Bindings,
    /// Allocations to free.
    allocations: Vec<u64>,
    states: Vec<StateCopies>,
    pub(super) steps: StepCache,
}

/// A recurrent state of all sequences, and the ones that are kept of it.
struct StateCopies {
    /// `[sequence]`
    state: u64,
    /// `[sequence][place]`
    kept: u64,
    /// Bytes of one.
    bytes: usize,
}

impl SessionStage {
    pub(super) fn new(weights: &Bindings) -> SessionStage {
        let (allocations, states) = (Vec::new(), Vec::new());
        SessionStage { bindings: weights.clone(), allocations, states, steps: StepCache::default() }
    }

    /// Allocates the KV caches and recurrent states of the stage's layers and the states that its steps read.
    /// What was allocated before a failure is freed by [`release`](SessionStage::release).
    pub(super) fn allocate(
        &mut self,
        device: &mut dyn Backend,
        config: &Config,
        options: &SessionOptions,
        stage: Stage,
    ) -> Result<(), BackendError> {
        let rows = options.sequences as usize;
        let mut sizes = vec![
            (names::STEP_TOKENS.to_owned(), 4 * rows),
            (names::STEP_POSITIONS.to_owned(), 4 * rows),
            (names::STEP_SEQUENCES.to_owned(), 4 * rows),
        ];
        if stage.is_last() {
            sizes.extend([
                (names::STEP_SAMPLING.to_owned(), 32 * rows),
                (names::STEP_PENALTIES.to_owned(), 16 * rows),
                (names::STEP_EDITS.to_owned(), 8 * rows),
                (names::STEP_MASKS.to_owned(), 4 * rows * mask_words(config)),
                (names::HISTORY.to_owned(), 4 * rows * options.context as usize),
            ]);
        }
        // Sequence after sequence: each has its own pages for the whole session.
        let pages: Vec<u32> = (0..options.sequences * options.sequence_pages()).collect();
        sizes.push((names::PAGES.to_owned(), 4 * pages.len()));
        for layer in config.cached_layers(stage) {
            let bytes = options.layer_k_bytes(config, layer);
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
        for (name, values) in config.recurrent_states(stage) {
            let bytes = 4 * values as usize;
            let mut alloc = |states: usize| {
                let ptr = device.alloc(bytes.saturating_mul(states))?;
                self.allocations.push(ptr);
                Ok::<u64, BackendError>(ptr)
            };
            let (state, kept) = (alloc(rows)?, alloc(rows * KEPT_STATES)?);
            self.bindings.set(&name, state);
            self.states.push(StateCopies { state, kept, bytes });
        }
        Ok(())
    }

    /// Copies the recurrent states of a sequence from a place where they are kept, or to it.
    pub(super) fn copy_states(
        &self,
        device: &mut dyn Backend,
        sequence: u32,
        place: usize,
        direction: StateCopy,
    ) -> Result<(), BackendError> {
        for &StateCopies { state, kept, bytes } in &self.states {
            let own = state + sequence as u64 * bytes as u64;
            let kept = kept + (sequence as u64 * KEPT_STATES as u64 + place as u64) * bytes as u64;
            let (input, output) = match direction {
                StateCopy::Keep => (own, kept),
                StateCopy::Restore => (kept, own),
            };
            device.dispatch_copy(&CopyCall { input, output, bytes })?;
        }
        Ok(())
    }

    /// Writes the rows of a decode step: tokens, positions and sequences.
    pub(super) fn write_rows(
        &self,
        device: &mut dyn Backend,
        rows: &[Vec<u32>; 3],
    ) -> Result<(), ModelError> {
        let names = [names::STEP_TOKENS, names::STEP_POSITIONS, names::STEP_SEQUENCES];
        for (name, words) in names.into_iter().zip(rows) {
            device.write(address(&self.bindings, name)?, bytemuck::cast_slice(words))?;
        }
        Ok(())
    }

    /// Frees everything.
    pub(super) fn release(&mut self, device: &mut dyn Backend) {
        self.steps.release(device);
        for ptr in self.allocations.drain(..) {
            // There is no caller to report an error to.
            let _ = device.free(ptr);
        }
    }
}
