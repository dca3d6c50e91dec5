//! Architectures: from a file's metadata and tensors to the graph of a model.
//!
//! Each architecture has a file that describes one layer in the order of computation; read `llama.rs` first.
//! Everything else is shared:
//!
//! - `config`: dimensions and constants from the metadata, each validated.
//! - `rope`: RoPE scaling.
//! - `record`: the operations that layer descriptions are written in. Recording a weight looks it up in the
//!   file and checks its shape and type, so the description is also the list of tensors that a file must
//!   have.
//! - `graph`: a whole step: tokens in, layers, logits or drawn tokens out.
//!
//! Nothing here depends on a backend: the recorded graph runs on any of them.

mod config;
mod graph;
mod llama;
mod qwen2;
mod qwen3;
mod record;
mod rope;

pub use config::Config;
pub use graph::{GraphSpec, MIXED_LOGIT_BIASES, Results, Step, names};

use std::fmt;

use fulmen_core::{RopePairing, Tensor};

use crate::error::ModelError;
use crate::source::ModelSource;
use record::Layer;

/// The architectures that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama 2 and 3, Mistral, SmolLM2.
    Llama,
    /// Qwen2 and Qwen2.5.
    Qwen2,
    /// Qwen3.
    Qwen3,
}

/// What distinguishes one architecture from another.
struct Description {
    name: &'static str,
    pairing: RopePairing,
    layer: fn(&mut Layer<'_, '_>, Tensor) -> Result<Tensor, ModelError>,
}

impl Architecture {
    /// Every architecture.
    pub const ALL: [Architecture; 3] = [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3];

    fn description(self) -> Description {
        match self {
            Architecture::Llama => {
                Description { name: "llama", pairing: llama::PAIRING, layer: llama::layer }
            }
            Architecture::Qwen2 => {
                Description { name: "qwen2", pairing: qwen2::PAIRING, layer: qwen2::layer }
            }
            Architecture::Qwen3 => {
                Description { name: "qwen3", pairing: qwen3::PAIRING, layer: qwen3::layer }
            }
        }
    }

    /// The name used in GGUF files, which is also the prefix of the metadata keys.
    pub fn name(self) -> &'static str {
        self.description().name
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        Architecture::ALL.map(Architecture::name).join(", ")
    }

    /// The architecture of a file. Fails if it is not supported.
    pub fn of(source: &dyn ModelSource) -> Result<Architecture, ModelError> {
        let found = source.metadata().string("general.architecture")?;
        let known = Architecture::ALL.into_iter().find(|architecture| architecture.name() == found);
        known.ok_or_else(|| ModelError::Architecture { found: found.to_owned() })
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
