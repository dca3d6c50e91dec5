//! Fulmen: a GPU execution engine for neural networks. Record the work once, submit it once, run it at the speed of
//! memory.
//!
//! This crate is what programs depend on. It finds and opens devices ([`open`]) and gives the parts a common roof:
//!
//! - [`core`]: data types and block formats, the compute graph, its planner and its executor.
//! - [`cpu`]: runs graphs on the processor.
//! - [`wgpu`]: any GPU through Vulkan, Metal or DX12: graphs and models, batches of array operations, products by weights that
//!   stay there.
//! - [`cuda`]: NVIDIA GPUs through their driver: graphs and models, captured and replayed.
//! - [`model`]: GGUF files, tokenizers, Llama and Qwen models, generation.
//!
//! Text from a model:
//!
//! ```
//! use fulmen::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The model that is part of the command; any other GGUF file of the Llama or Qwen family does as well.
//! let path = "../fulmen-cli/assets/story.gguf";
//! let model = Model::load(path, fulmen::open("cpu".parse()?)?)?;
//! let options = GenerateOptions { max_tokens: 20, ..GenerateOptions::default() };
//! let answer = model.generate("Once upon a time", &options, |piece| print!("{piece}"))?;
//! println!("\n{} tokens, {:.0} tokens/s", answer.tokens.len(), answer.decode_rate());
//!
//! // The same step by step: a session keeps what was run, an iterator can be left at any time.
//! let mut session = model.session()?;
//! for piece in session.generate("Once upon a time", &options)?.take(3) {
//!     print!("{}", piece?);
//! }
//! let logits = session.logits(0, &[])?;
//! # assert_eq!(logits.len(), 2048);
//! # assert!(answer.tokens.len() == 20 && answer.text.len() > 40, "{}", answer.text);
//! # Ok(())
//! # }
//! ```
//!
//! Arrays on the GPU, as one submission:
//!
//! ```
//! use fulmen::prelude::*;
//!
//! let mut batch = GpuCommandBatch::new(GpuDevice::new()?);
//! let x = batch.upload(&[1.0, -2.0, 3.0]);
//! let y = batch.relu(x);
//! let z = batch.scale(y, 2.0);
//! batch.execute_blocking()?;
//! assert_eq!(batch.read_blocking(z)?, [2.0, 0.0, 6.0]);
//! # Ok::<(), GpuError>(())
//! ```
//!
//! A weight that stays on the GPU, multiplied by new inputs:
//!
//! ```
//! use fulmen::prelude::*;
//!
//! let mut cache = GpuMatmulCache::on(GpuDevice::new()?);
//! cache.upload_weight("w", &[1.0, 2.0, 3.0, 4.0], 2, 2)?;
//! let mut y = [0.0; 2];
//! cache.matmul_cached("w", &[10.0, 1.0], &mut y, 1)?;
//! assert_eq!(y, [12.0, 34.0]);
//! # Ok::<(), GpuError>(())
//! ```
//!
//! A product and a norm, planned for the processor and run:
//!
//! ```
//! use fulmen::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut b = GraphBuilder::new();
//! let x = b.input("x", 1, 2)?;
//! let w = b.weight("w", DType::F32, 3, 2)?;
//! let y = b.mul_mat(x, w)?;
//! b.output("y", y)?;
//! let plan = b.finish().plan(&PlanOptions::default())?;
//!
//! let mut cpu = CpuDispatcher::new();
//! let weight: Vec<u8> = [1f32, 0.0, 0.0, 1.0, 1.0, 1.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
//! let mut bindings = Bindings::new();
//! bindings.set("w", cpu.import(std::sync::Arc::new(weight))?);
//!
//! let graph = plan.bind(&mut cpu, &bindings)?;
//! graph.write_f32(&mut cpu, "x", &[3.0, 4.0])?;
//! graph.run(&mut cpu)?;
//! assert_eq!(graph.read_f32(&mut cpu, "y")?, [3.0, 4.0, 7.0]);
//! # Ok(())
//! # }
//! ```

mod open;

pub use fulmen_core as core;
pub use fulmen_cpu as cpu;
pub use fulmen_cuda as cuda;
pub use fulmen_model as model;
pub use fulmen_wgpu as wgpu;

pub use open::{OpenOptions, SelectError, choose, open, open_with, reports};

/// What most programs use.
pub mod prelude {
    pub use fulmen_core::{
        BackendError, Bindings, BoundGraph, BuildError, ComputeGraph, DType, DeviceMemory, ExecError,
        Fusions, GraphBuilder, GraphError, Heads, KernelDispatch, OpParams, PlanOptions, RopePairing,
        RopeSpec, Rotation, Sharing, TensorOp, execute_graph, execute_graph_timed,
    };
    pub use fulmen_cpu::CpuDispatcher;
    pub use fulmen_model::{
        Chat, GenerateOptions, Generated, LoadOptions, Model, ModelError, Sampling, Session, SessionOptions,
    };
    pub use fulmen_wgpu::{BufferId, GpuCommandBatch, GpuDevice, GpuError, GpuMatmulCache, PipelineCache};
}
