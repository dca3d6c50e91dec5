//! A model as the device of an engine: KV pages, page tables, rows and programs in the memory of its backend.
//!
//! ```text
//!  StepPlan ─► prologue: pages copied or swapped, histories of new slots, page tables
//!           ─► one upload: positions and slots of the rows, output rows, sampling states
//!           ─► the program of the bucket: gather tokens ─► layers ─► output rows ─► logits ─► sample
//!           ─► a read of the drawn tokens starts ─► Ticket
//! ```
//!
//! - **Tokens come from the history** in device memory, `[slot][position]`, to which a step appends what it
//!   draws. So a step needs no token from the host, and the next one can be launched before this one is read.
//! - **Inactive rows** belong to a slot of their own behind the others, which has one page: they compute
//!   something that nobody reads.
//! - **Layers with a sliding window** have a page table and pools of their own, if the context is longer than
//!   the window.
//! - **Programs** are made when a bucket is first used, or before by an idle engine, share one arena, and are
//!   captured where the device can. What describes the rows is one block of memory, written by one upload.
//! - **Several devices** run the rows of a step one after the other, each its own layers, with KV pages of
//!   its own under the same page numbers. Hidden states go from one to the next, and the drawn tokens back to
//!   the first, so that a step is launched when the tokens of the one before are there.
//! - **Ranks** of tensor parallelism run every step together, each with its own pages of its own heads.
//!   Those of other processes get the same plans over a connection.
//! - **Random numbers** depend on the seed and the position alone: a sequence that was preempted goes on as
//!   it would have.

mod device;
mod limits;
mod logit_edits;
mod nodes;
mod options;
mod page_groups;
mod page_table;
mod programs;
mod ranks;
mod reads;
mod row_arrays;
mod row_block;
mod sampling;
mod stage;
mod state_positions;
mod text;
mod transfers;

pub use device::ModelDevice;
pub use options::{EngineOptions, SequenceCache};
pub use sampling::ModelSampling;
pub use text::{TextEngine, TextEvent, TextFinish, TextRequest, TextStream};

use std::sync::Arc;

use fulmen_model::ModelError;

use crate::Model;
use crate::engine::Engine;
use crate::error::EngineError;

impl Engine {
    /// An engine that runs a model. It keeps the model's weights alive; sessions of the model and other
    /// engines may use the device at the same time and take turns with this one.
    pub fn for_model(model: &Model, options: &EngineOptions) -> Result<Engine, EngineError> {
        let (config, device) = ModelDevice::open(model, options)?;
        Engine::start(config, Box::new(device))
    }
}

impl From<ModelError> for EngineError {
    fn from(error: ModelError) -> EngineError {
        EngineError::Model(Arc::new(error))
    }
}
