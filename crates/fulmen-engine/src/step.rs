//! What a device is told to do in one step.
//!
//! A step is planned by the [`Scheduler`](crate::Scheduler) and run by a [`StepDevice`](crate::StepDevice):
//! first its [`Prologue`], then its rows. Rows are arrays that a device copies to its memory as they are,
//! padded to the size of a *bucket*, for which it has a captured program. Decode rows come first, then the
//! prefill chunks, each a range of consecutive positions of one sequence.

use std::ops::Range;

pub use fulmen_core::sampling::TokenMask;
use serde::{Deserialize, Serialize};

use crate::pages::{PageId, Transfer};
use crate::request::SamplingParams;

/// In [`Rows::tokens`]: the token that was last sampled for the row's slot. It is still on the device when
/// the step is launched.
pub const SAMPLED: u32 = u32::MAX;

/// In [`Rows::slots`] and [`Rows::sampling`]: no slot.
pub const NO_SLOT: u32 = u32::MAX;

/// The token of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowToken {
    /// This token.
    Known(u32),
    /// The token that was last sampled for the row's slot ([`SAMPLED`]).
    Sampled,
}

/// A row of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The token to embed.
    pub token: RowToken,
    /// Its position in the sequence.
    pub position: u32,
    /// The slot of its sequence: the line of the page tables and of the sampling states.
    pub slot: u32,
}

/// The rows of a step as arrays of the size of the bucket. Rows behind `active` have no slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// Rows that are to be computed.
    pub active: u32,
    /// Tokens, or [`SAMPLED`].
    pub tokens: Vec<u32>,
    /// Positions in their sequences.
    pub positions: Vec<u32>,
    /// Slots of their sequences, or [`NO_SLOT`] for inactive rows.
    pub slots: Vec<u32>,
    /// The slot whose sampling state draws a token from this row's logits, or [`NO_SLOT`].
    pub sampling: Vec<u32>,
}

impl Rows {
    /// The row at `index`, if it is active.
    pub fn get(&self, index: u32) -> Option<Row> {
        let at = index as usize;
        (index < self.active).then(|| Row {
            token: if self.tokens[at] == SAMPLED {
                RowToken::Sampled
            } else {
                RowToken::Known(self.tokens[at])
            },
            position: self.positions[at],
            slot: self.slots[at],
        })
    }

    /// The active rows.
    pub fn iter(&self) -> impl Iterator<Item = Row> {
        (0..self.active).filter_map(|index| self.get(index))
    }

    pub(crate) fn push(&mut self, row: Row) {
        self.active += 1;
        self.tokens.push(match row.token {
            RowToken::Known(token) => token,
            RowToken::Sampled => SAMPLED,
        });
        self.positions.push(row.position);
        self.slots.push(row.slot);
        self.sampling.push(NO_SLOT);
    }

    pub(crate) fn pad(&mut self, bucket: u32) {
        let size = bucket as usize;
        self.tokens.resize(size, 0);
        self.positions.resize(size, 0);
        self.slots.resize(size, NO_SLOT);
        self.sampling.resize(size, NO_SLOT);
    }
}

/// The token after a row whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NextToken {
    /// It is sampled from the logits, and becomes the token at the next position of the row's slot.
    Sample,
    /// It is this one. Nothing is sampled, and the slot does not change: the row gives this token's
    /// log-probability.
    Known(u32),
}

/// A row whose logits are wanted. Several rows of one sequence may be, each with results of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogitsRow {
    /// The index of the row.
    pub row: u32,
    /// The token that the results are of.
    pub next: NextToken,
    /// How many of the most likely tokens are wanted with their log-probabilities; `None` for no
    /// log-probability at all.
    pub logprobs: Option<u8>,
    /// Whether the hidden state after the final norm is wanted.
    pub hidden: bool,
    /// The tokens that may be sampled; `None` for all. Not for a known token.
    #[serde(with = "crate::wire::token_mask")]
    pub mask: Option<TokenMask>,
}

/// The rows of a prefill chunk: consecutive positions of one sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefillChunk {
    /// The slot of the sequence.
    pub slot: u32,
    /// The position of the first row.
    pub position: u32,
    /// The rows.
    pub rows: Range<u32>,
}

/// An entry of a page table in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableEdit {
    /// The group of layers.
    pub group: u32,
    /// The line of the table.
    pub slot: u32,
    /// The page of the sequence: position / page size, or 0 for a recurrent state.
    pub index: u32,
    /// The page of the pool; `None` if the sequence no longer has the page, which is behind the window.
    pub page: Option<PageId>,
}

/// A slot gets a sequence, new or resumed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SlotSetup {
    /// The slot.
    pub slot: u32,
    /// Parameters of sampling. Random numbers must depend on them and on the position alone, so that a
    /// resumed sequence goes on as it would have.
    pub sampling: SamplingParams,
    /// The tokens of the sequence so far, for penalties.
    pub history: Vec<u32>,
}

/// What a device does before the rows, each list in its order.
///
/// Everything in it is in the order in which the scheduler decided it, and a device runs steps in the order
/// of their launches. So a page that was freed can be given away at once: what reads it was launched before.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Prologue {
    /// Copies of pages, and swaps between device and host.
    pub transfers: Vec<Transfer>,
    /// Slots that get a sequence.
    pub slots: Vec<SlotSetup>,
    /// Changes of page tables.
    pub table: Vec<TableEdit>,
}

impl Prologue {
    /// Puts what a step that was not launched should have done before what has been added since.
    pub(crate) fn prepend(&mut self, mut earlier: Prologue) {
        earlier.transfers.append(&mut self.transfers);
        earlier.slots.append(&mut self.slots);
        earlier.table.append(&mut self.table);
        *self = earlier;
    }
}

/// A step: what a device is told to do in one launch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StepPlan {
    /// Counts the steps.
    pub number: u64,
    /// The size of the row arrays: the smallest bucket that holds the active rows.
    pub bucket: u32,
    /// What is done before the rows.
    pub prologue: Prologue,
    /// The rows.
    pub rows: Rows,
    /// Rows `0..decode_rows` are decode rows: one per sequence.
    pub decode_rows: u32,
    /// The prefill chunks, in the order of their rows.
    pub chunks: Vec<PrefillChunk>,
    /// The rows whose logits are wanted, in the order of rows.
    pub logits: Vec<LogitsRow>,
}

/// A token that was sampled, or that was known before, with what its row has given beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its log-probability, if wanted.
    pub logprob: Option<f32>,
    /// The most likely tokens with their log-probabilities, if wanted.
    pub top: Vec<(u32, f32)>,
    /// The hidden state, after the final norm, of the row before it, if wanted; else empty.
    pub hidden: Vec<f32>,
}

impl Sampled {
    /// A token without log-probabilities.
    pub fn token(token: u32) -> Sampled {
        Sampled { token, logprob: None, top: Vec::new(), hidden: Vec::new() }
    }
}

/// A row that gave no result. What it wrote to its pages is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFault {
    /// The index of the row.
    pub row: u32,
    /// What went wrong.
    pub reason: String,
}

/// The results of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// A token for each entry of [`StepPlan::logits`]: what was sampled, or the known one. The token of a row
    /// in `faults` is not looked at.
    pub sampled: Vec<Sampled>,
    /// Rows that failed.
    pub faults: Vec<RowFault>,
}
