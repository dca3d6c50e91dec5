//! Fulmen is a GPU execution engine for neural networks: record the work once, submit it once, run it at
//! memory speed.
//!
//! It runs language models (GGUF files of the Llama and Qwen families) and compute graphs of your own on
//! CPUs, on any GPU through wgpu (Vulkan, Metal, DX12) and on NVIDIA GPUs through CUDA. Drivers are loaded at
//! run time, so neither building nor running needs a GPU toolkit.
//!
//! This crate is the one to depend on. [`open`] finds and opens a device, a [`Registry`] also those of
//! backends of your own, the [`prelude`] has what most programs need, and the parts are re-exported as
//! modules:
//!
//! - [`model`]: GGUF files, tokenizers, chat templates, sessions, generation.
//! - [`engine`]: many requests on one device: paged KV cache, prefix cache, continuous batching.
//! - [`core`]: data types and quantized block formats, the compute graph, its planner and its executor.
//! - [`cpu`]: the CPU backend.
//! - [`wgpu`]: the wgpu backend, and GPU arrays: command batches, and matmuls with weights that stay on the
//!   GPU.
//! - [`cuda`]: the CUDA backend; decode steps are captured once and replayed.
//!
//! The backends are cargo features: `cpu`, `wgpu` and `cuda`, all on by default. `hub` adds the module `hub`,
//! which downloads models, and `constraint` the module `constraint`: answers that match a JSON schema, a
//! regular expression or a grammar. With `cpu` alone nothing of a GPU is compiled, and the crate builds for
//! `wasm32-unknown-unknown`.
//!
//! # Text from a model
//!
//! ```
//! use fulmen::prelude::*;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // The small story model of this repository; any GGUF file of the Llama or Qwen families works.
//!     // The device is `auto` (the best one), `cpu`, `wgpu`, `cuda`, or one of several, such as `cuda:1`.
//!     let model = Model::load("../fulmen-cli/assets/story.gguf", fulmen::open("cpu".parse()?)?)?;
//!     let options = GenerateOptions { max_tokens: 20, ..GenerateOptions::default() };
//!     let answer = model.generate("Once upon a time", &options, |piece| print!("{piece}"))?;
//!     println!("\n{} tokens, {:.0} tokens/s", answer.tokens.len(), answer.decode_rate());
//!
//!     // A session keeps its KV cache, so a prompt that continues the last one only runs its new tokens.
//!     let mut session = model.session()?;
//!     for piece in session.generate("Once upon a time", &options)?.take(3) {
//!         print!("{}", piece?);
//!     }
//!     let logits = session.logits(0, &[])?;
//!     # assert_eq!(logits.len(), 2048);
//!     # assert!(answer.tokens.len() == 20 && answer.text.len() > 40, "{}", answer.text);
//!     Ok(())
//! }
//! ```
//!
//! More: `examples/generate.rs`, `examples/chat.rs`.
//!
//! # Arrays on the GPU
//!
//! Operations are recorded, fused and run as one submission:
//!
//! ```
//! use fulmen::prelude::*;
//!
//! fn main() -> Result<(), GpuError> {
//!     let mut batch = GpuCommandBatch::new(GpuDevice::new()?);
//!     let x = batch.upload(&[1.0, -2.0, 3.0]);
//!     let y = batch.relu(x);
//!     let z = batch.scale(y, 2.0);
//!     batch.execute_blocking()?;
//!     assert_eq!(batch.read_blocking(z)?, [2.0, 0.0, 6.0]);
//!     Ok(())
//! }
//! ```
//!
//! Weights that stay on the GPU, multiplied by new inputs:
//!
//! ```
//! use fulmen::prelude::*;
//!
//! fn main() -> Result<(), GpuError> {
//!     let mut cache = GpuMatmulCache::on(GpuDevice::new()?);
//!     cache.upload_weight("w", &[1.0, 2.0, 3.0, 4.0], 2, 2)?; // [n, k], as GGUF and PyTorch store it
//!     let mut y = [0.0; 2];
//!     cache.matmul_cached("w", &[10.0, 1.0], &mut y, 1)?;
//!     assert_eq!(y, [12.0, 34.0]);
//!     Ok(())
//! }
//! ```
//!
//! More: `examples/hello_gpu.rs`, `examples/ffn.rs`, `examples/cached_matmul.rs`.
//!
//! # Your own graph
//!
//! A graph is recorded without addresses; fusion and memory planning happen before it is bound to a device:
//!
//! ```
//! use fulmen::prelude::*;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let mut b = GraphBuilder::new();
//!     let x = b.input("x", 1, 2)?;
//!     let w = b.weight("w", DType::F32, 3, 2)?;
//!     let y = b.mul_mat(x, w)?;
//!     b.output("y", y)?;
//!     let plan = b.finish().plan(&PlanOptions::default())?;
//!
//!     let mut cpu = CpuDispatcher::new();
//!     let weight: Vec<u8> = [1f32, 0.0, 0.0, 1.0, 1.0, 1.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
//!     let mut bindings = Bindings::new();
//!     bindings.set("w", cpu.import(std::sync::Arc::new(weight))?);
//!
//!     let graph = plan.bind(&mut cpu, &bindings)?;
//!     graph.write_f32(&mut cpu, "x", &[3.0, 4.0])?;
//!     graph.run(&mut cpu)?;
//!     assert_eq!(graph.read_f32(&mut cpu, "y")?, [3.0, 4.0, 7.0]);
//!     Ok(())
//! }
//! ```
//!
//! More: `examples/layer.rs` (a transformer layer), `examples/own_kernels.rs` (kernels of your own behind a
//! graph), `examples/own_backend.rs` (a backend of your own).

mod builtin;
pub mod model;
mod registry;
mod select;

#[cfg(feature = "constraint")]
pub use fulmen_constraint as constraint;
pub use fulmen_core as core;
#[cfg(feature = "cpu")]
pub use fulmen_cpu as cpu;
#[cfg(feature = "cuda")]
pub use fulmen_cuda as cuda;
pub use fulmen_engine as engine;
#[cfg(feature = "hub")]
pub use fulmen_hub as hub;
#[cfg(feature = "wgpu")]
pub use fulmen_wgpu as wgpu;

pub use registry::{BackendProvider, OpenError, OpenOptions, RegisterError, Registry};
pub use select::SelectError;

use fulmen_core::device::DeviceSelector;

/// Opens a device of a built-in backend for graphs and models. A program with backends of its own has a
/// [`Registry`].
///
/// ```
/// let device = fulmen::open("cpu".parse()?)?;
/// assert_eq!(device.backend(), "cpu");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If the backend is unknown or not part of this build, or if the device does not exist or cannot be opened.
pub fn open(asked: DeviceSelector) -> Result<model::Device, SelectError> {
    Registry::builtin().open(asked)
}

/// What most programs need.
pub mod prelude {
    pub use fulmen_core::{
        BackendError, Bindings, BoundGraph, BuildError, ComputeGraph, DType, DeviceMemory, ExecError,
        Fusions, GraphBuilder, GraphError, Heads, KernelDispatch, OpParams, PlanOptions, RopePairing,
        RopeSpec, Rotation, Sharing, TensorOp, execute_graph, execute_graph_timed,
    };
    #[cfg(feature = "cpu")]
    pub use fulmen_cpu::CpuDispatcher;
    pub use fulmen_engine::{
        Chat, GenerateOptions, Generated, LoadOptions, Model, Sampling, Session, SessionOptions,
    };
    pub use fulmen_model::ModelError;
    #[cfg(feature = "wgpu")]
    pub use fulmen_wgpu::{BufferId, GpuCommandBatch, GpuDevice, GpuError, GpuMatmulCache, PipelineCache};
}

/// Compiles the snippets of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadmeDoctests;
