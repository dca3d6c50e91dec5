//! Matmuls by weights that stay on the device.
//!
//! ```text
//! upload (weight) → choose kernels (kernels) → compile once per shape (run)
//! → copy in, multiply, copy out: one submission
//! ```
//!
//! - **Weights are `[n, k]`** (rows, columns) for every type and every m: the layout of GGUF and of PyTorch's
//!   `Linear`.
//! - **Any type as it is.** f32, f16, bf16, and the block formats Q4_0, Q4_1, Q8_0, Q4_K, Q5_K, Q6_K and
//!   MXFP4 keep their bytes; blocks are only repacked, so that kernels load whole vectors.
//! - **Nothing is made twice.** Buffers for inputs, results and scratch grow when they have to and stay; the
//!   launches of a matmul, with their bind groups, are compiled at its first call. A loop of the same matmuls
//!   allocates nothing.
//! - **Sizes are not the caller's concern.** A weight above what a binding or a buffer holds is kept in
//!   slices of rows.
//! - **Results can stay** on the device: a matmul reads from and writes to buffers of the caller as well as
//!   host memory.

mod kernels;
mod run;
mod weight;

use std::collections::{HashMap, HashSet};

use fulmen_core::DType;

pub use self::run::{CachedMatmul, MatmulInput, MatmulOutput};
use self::{run::Runs, weight::Weight};
use crate::{device::GpuDevice, error::GpuError, pipeline::PipelineCache, transfer::UploadStaging};

/// How much memory weights may take, and what happens when it is not enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightBudget {
    /// Bytes for all weights together.
    pub bytes: u64,
    /// Whether the weights that were used least recently make room for new ones. Otherwise there is an error.
    pub evict: bool,
}

/// How a cache works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatmulCacheOptions {
    /// The memory for weights; the device's own without it.
    pub budget: Option<WeightBudget>,
    /// Multiply f32 activations by block formats, too, instead of q8 activations (int8 with a scale for every
    /// 32). Slower, and without the 1e-5 of squared relative error that quantizing costs.
    pub exact_activations: bool,
}

/// What a weight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightInfo {
    /// The type of its elements.
    pub dtype: DType,
    /// n: rows of the weight, columns of the result.
    pub rows: usize,
    /// k: columns of the weight and of the input.
    pub cols: usize,
    /// Bytes on the device.
    pub bytes: u64,
    /// Buffers that hold it.
    pub parts: usize,
}

/// The memory that a cache holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheMemory {
    /// Weights on the device.
    pub weights: u64,
    /// Inputs and results on the device.
    pub io: u64,
    /// What kernels need in between: split-K slices, q8 activations, dequantized weights.
    pub scratch: u64,
    /// Memory of the host that inputs are uploaded through. Reads go through the device's own, which all
    /// readers share.
    pub staging: u64,
}

/// Weights on the device, and matmuls by them.
///
/// ```
/// use fulmen_wgpu::{GpuDevice, GpuMatmulCache};
///
/// let mut cache = GpuMatmulCache::on(GpuDevice::new()?);
/// // [n, k]: two rows of three.
/// cache.upload_weight("w", &[1.0, 0.0, -1.0, 2.0, 2.0, 2.0], 2, 3)?;
/// let mut out = [0.0; 4];
/// cache.matmul_cached("w", &[5.0, 6.0, 7.0, 1.0, 1.0, 1.0], &mut out, 2)?;
/// assert_eq!(out, [-2.0, 36.0, 0.0, 6.0]);
/// # Ok::<(), fulmen_wgpu::GpuError>(())
/// ```
#[derive(Debug)]
pub struct GpuMatmulCache {
    gpu: GpuDevice,
    options: MatmulCacheOptions,
    pipelines: PipelineCache,
    weights: HashMap<String, Weight>,
    /// Names of weights that made room for others.
    evicted: HashSet<String>,
    /// Counts calls, for the order in which weights were used.
    clock: u64,
    /// Counts weights, so that no two ever have one number.
    uploaded: u64,
    runs: Runs,
    staging: UploadStaging,
    /// Kernels that are being measured, by weight and rows.
    forced: HashMap<(u64, u32), String>,
}

impl GpuMatmulCache {
    /// A cache on a device that the caller has opened. Cooperative matrices are not used then;
    /// [`on`](Self::on) a [`GpuDevice`] they are.
    ///
    /// # Errors
    /// [`GpuError::DeviceLost`].
    pub fn new(device: wgpu::Device, queue: wgpu::Queue) -> Result<Self, GpuError> {
        Ok(Self::on(GpuDevice::from_wgpu(device, queue)?))
    }

    /// An empty cache.
    pub fn on(gpu: GpuDevice) -> Self {
        Self::with_options(gpu, MatmulCacheOptions::default())
    }

    /// An empty cache that works in another way.
    pub fn with_options(gpu: GpuDevice, options: MatmulCacheOptions) -> Self {
        Self {
            gpu,
            options,
            pipelines: PipelineCache::new(),
            weights: HashMap::new(),
            evicted: HashSet::new(),
            clock: 0,
            uploaded: 0,
            runs: Runs::default(),
            staging: UploadStaging::default(),
            forced: HashMap::new(),
        }
    }

    /// The device.
    pub fn device(&self) -> &GpuDevice {
        &self.gpu
    }

    /// How many weights there are.
    pub fn weight_count(&self) -> usize {
        self.weights.len()
    }

    /// Bytes of all weights on the device.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.values().map(|weight| weight.data.bytes).sum()
    }

    /// What is known of a weight.
    pub fn weight(&self, name: &str) -> Option<WeightInfo> {
        self.weights.get(name).map(Weight::info)
    }

    /// The names of all weights, in no order.
    pub fn weight_names(&self) -> impl Iterator<Item = &str> {
        self.weights.keys().map(String::as_str)
    }

    /// The memory that it holds.
    pub fn memory(&self) -> CacheMemory {
        CacheMemory {
            weights: self.weight_bytes(),
            io: self.runs.io_bytes(),
            scratch: self.runs.scratch_bytes(),
            staging: self.staging.bytes(),
        }
    }

    /// Pipelines made so far: as many as there were different kernels.
    pub fn pipelines(&self) -> u64 {
        self.pipelines.compiled()
    }

    fn unknown(&self, call: &'static str, name: &str) -> GpuError {
        GpuError::UnknownWeight { call, name: name.to_owned(), evicted: self.evicted.contains(name) }
    }
}
