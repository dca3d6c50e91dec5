//! Models on devices: weights, caches, sessions.
//!
//! - [`Model`] holds a model's weights on one device. It is cheap to clone; its sessions keep it alive.
//! - [`Session`] holds sequences: their KV caches, their sampling states, the programs that run them. Sessions of one
//!   model may live on several threads; they take turns on the device.
//!
//! - [`Generation`] is text in the making; [`Chat`] is a conversation; [`Perplexity`] is how well a model foresees a text.
//!
//! A decode step is one program that never changes: its token, position and random state are in device memory and move
//! on by themselves. So a backend can capture it once and replay it, and the host reads nothing but the tokens.

mod chat;
mod chunk;
mod generate;
mod model;
mod perplexity;
mod profile;
mod program;
mod rows;
mod sampling;
mod sequence;
mod session;
mod stop;
mod weights;

pub use chat::Chat;
pub use generate::{FinishReason, GenerateOptions, Generated, Generation};
pub use model::{Device, LoadOptions, LoadProgress, Model};
pub use perplexity::{Perplexity, PerplexityOptions};
pub use profile::{Profile, ProfileRow, TimedKernel};
pub use sampling::Sampling;
pub use session::{Session, SessionOptions, StepLaunches};
