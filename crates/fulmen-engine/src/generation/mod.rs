//! Models on devices: weights, KV caches, sessions.
//!
//! - [`Model`] holds a model's weights on one device, or on several that each have some of its layers, or a
//!   part of every layer. It is cheap to clone; its sessions keep it alive.
//! - [`Session`] holds sequences: their KV caches, their sampling state and the compiled steps that run them.
//!   Sessions of one model may live on several threads; they take turns on the device.
//! - [`Generation`] streams generated text; [`Chat`] is a conversation; [`Perplexity`] scores a text.
//!
//! A decode step never changes: its token, position and random state live in device memory and are advanced
//! by the step itself. A backend can therefore capture the step once and replay it, and the host only reads
//! tokens.

mod bulk_reader;
mod chat;
mod chunk;
mod drawn;
mod fingerprint;
mod fit;
mod fit_experts;
mod generate;
mod host_experts;
mod limited;
mod load;
mod mask;
mod model;
mod perplexity;
mod pooling;
mod profile;
mod rows;
mod sampling;
mod sequence;
mod session;
mod session_ranks;
mod session_stage;
mod session_steps;
mod sharded;
mod step_cache;
mod stop;
mod templates;
mod weights;

pub use chat::Chat;
pub use fingerprint::fingerprint;
pub use fit::{FitFor, GpuLayers, LayerFit, fit_layers};
pub use fit_experts::{CpuExperts, ExpertFit, fit_experts};
pub use generate::{FinishReason, GenerateOptions, Generated, Generation};
pub use limited::limit_memory;
pub use model::{Device, LoadOptions, LoadProgress, Model};
pub use perplexity::{Perplexity, PerplexityOptions};
pub use pooling::Pooling;
pub use profile::{Profile, ProfileRow, TimedKernel};
pub use sampling::Sampling;
pub use session::{Session, SessionOptions, StepLaunches};
pub use stop::{Scanned, StopFinder};
