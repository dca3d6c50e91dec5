//! Models on devices: single streams of tokens ([`generation`]), and an engine for many sequences on one
//! device: paged KV cache, prefix cache, continuous batching.
//!
//! - **A step runs rows of many sequences** ([`step::StepPlan`]): a decode row for each sequence that
//!   generates, then chunks of prompts. A new request joins the next step; nobody waits for a batch to end.
//! - **The KV cache is paged** ([`pages`]). Sequences take pages as they grow and share those of equal
//!   beginnings ([`prefix_cache`]).
//! - **The scheduler is a plain state machine** ([`Scheduler`]) without threads, I/O or a clock, so that
//!   every schedule can be tested and repeated.
//! - **The device is a trait** ([`StepDevice`]) that runs steps in the order of their launches. The next step
//!   is launched before the tokens of the last one are read.
//! - **Everything is counted back.** Every request ends with its own event, and after it every page and slot
//!   is free again ([`Scheduler::counted_back`]).
//!
//! [`Engine`] runs all of it in a thread and gives each caller a stream of [`Event`]s; [`Driver`] does the
//! same without a thread. [`model`] is the device of a model ([`Engine::for_model`]) with text in and out
//! ([`TextEngine`]); [`mock`] is a device for tests, without a model.

#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;

mod driver;
mod engine;
mod error;
mod events;
pub mod generation;
pub mod mock;
pub mod model;
pub mod pages;
pub mod prefix_cache;
mod ranks;
mod request;
mod scheduler;
mod segmented;
pub mod step;
mod wire;

pub use driver::{Driver, Progress, StepDevice, Ticket};
pub use engine::{AnyDevice, EVENT_CAPACITY, Engine, RequestHandle, Shutdown};
pub use error::{AuditError, ConfigError, DeviceLost, EngineError, LaunchError, Leak, RequestError};
pub use generation::{
    Chat, CpuExperts, Device, ExpertFit, FitFor, GenerateOptions, Generated, Generation, GpuLayers, LayerFit,
    LoadOptions, LoadProgress, Model, Perplexity, PerplexityOptions, Pooling, Sampling, Session,
    SessionOptions, fingerprint, fit_experts, fit_layers, limit_memory,
};
pub use model::{EngineOptions, ModelSampling, SequenceCache};
pub use model::{TextEngine, TextEvent, TextFinish, TextRequest, TextStream};
pub use ranks::{
    Brings, Collectives, CollectivesInUse, JoinError, Met, Nodes, RankGroup, RendezvousError, TensorParallel,
};
pub use request::{Constraint, Event, FinishReason, Request, RequestId, SamplingParams, Stop, Usage};
pub use scheduler::{GroupStats, MANY_PROMPTS, PreemptionMode, Scheduler, SchedulerConfig, Stats};
