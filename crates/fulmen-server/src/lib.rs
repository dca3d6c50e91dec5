//! An HTTP server for language models: the OpenAI, Anthropic and Ollama APIs, metrics and a chat page.
//!
//! - **Models are a trait** ([`ServedModel`]): a tokenizer, a chat template and a way to submit requests.
//!   [`EngineModel`] is one on a [`fulmen_engine::Engine`], which runs in a thread of its own.
//! - **One path for all APIs.** Each API has a folder with its wire types and handlers; parameters, prompts,
//!   pieces of text and streams are the same for all (`generation`).
//! - **Nothing is ignored.** Unknown fields and those that are not supported are errors that name the field,
//!   in the shape and with the status that the clients of that API expect.
//! - **A client that goes away cancels its work.** Bodies of responses own the engine's requests, so dropping
//!   one ends them.
//! - **Models on demand** ([`Registry`]): loaded at first use, unloaded after an idle time, within a budget.
//! - **Careful by default**: listens on 127.0.0.1, needs a key for anything else, answers no page of another
//!   origin, and bounds bodies, headers, times, lists and connections ([`Limits`]).

#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;

mod anthropic;
mod app;
mod body;
mod constraints;
mod engine_model;
mod error;
mod generation;
mod guard;
mod ids;
mod limits;
mod log;
mod metrics;
mod mock;
mod ollama;
mod openai;
mod openapi;
mod operation;
mod options;
mod page;
mod record;
mod registry;
mod serve;
mod served;
mod stalled;
mod time;
mod tls;

pub use engine_model::{EngineModel, EngineModelError, SamplingMap, SharedTokenizer};
pub use error::ApiError;
pub use generation::SamplingDefaults;
pub use limits::Limits;
pub use mock::{StepClock, mock_model};
pub use options::{DEFAULT_PORT, LogFormat, ServerOptions};
pub use registry::{
    DuplicateName, Lease, LoadError, ModelLoader, ModelSpec, ModelStatus, PresetError, Presets, Registry,
    RegistryOptions,
};
pub use serve::{Server, ServerError};
pub use served::{
    ConstraintFactory, DecodeBound, EmbedError, EmbedFunction, Embedder, Grammar, ModelDescription,
    ModelInfo, ServedModel,
};
pub use tls::{TlsError, TlsFiles};
