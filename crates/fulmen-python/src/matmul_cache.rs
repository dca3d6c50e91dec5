//! Weights that stay on a GPU, and matmuls by them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use fulmen::core::DType;
use fulmen::prelude::GpuMatmulCache;
use fulmen::wgpu::{MatmulCacheOptions, WeightBudget};
use numpy::{PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::prelude::*;

use crate::batch::{Times, times};
use crate::failure::Failure;
use crate::process::OfProcess;
use crate::worker::{detached, locked};

/// Weights on a GPU, by name.
#[pyclass(frozen, module = "fulmen._fulmen")]
pub(crate) struct MatmulCache {
    cache: OfProcess<Mutex<GpuMatmulCache>>,
}

impl MatmulCache {
    fn lock(&self) -> Result<MutexGuard<'_, GpuMatmulCache>, Failure> {
        Ok(self.cache.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Type, rows, columns and bytes of a weight.
type Weight = (&'static str, usize, usize, u64);

#[pymethods]
impl MatmulCache {
    /// An empty cache on a device.
    #[new]
    #[pyo3(signature = (device, exact, budget=None, evict=false))]
    fn new(
        py: Python<'_>,
        device: &str,
        exact: bool,
        budget: Option<u64>,
        evict: bool,
    ) -> PyResult<MatmulCache> {
        crate::logs::follow(py)?;
        detached(py, || {
            let gpu = crate::device::open_gpu("MatmulCache", device)?;
            let budget = budget.map(|bytes| WeightBudget { bytes, evict });
            let options = MatmulCacheOptions { budget, exact_activations: exact };
            let cache = GpuMatmulCache::with_options(gpu, options);
            Ok(MatmulCache { cache: OfProcess::new(Mutex::new(cache)) })
        })
    }

    /// The name of the device.
    fn device_name(&self, py: Python<'_>) -> PyResult<String> {
        locked(py, self.cache.get()?, |cache| Ok(cache.device().info().name.clone()))
    }

    /// Uploads a weight, or puts it in the place of another one.
    #[allow(clippy::too_many_arguments)]
    fn upload(
        &self,
        py: Python<'_>,
        name: &str,
        dtype: &str,
        bytes: PyReadonlyArray1<'_, u8>,
        rows: usize,
        columns: usize,
        replace: bool,
    ) -> PyResult<()> {
        let dtype: DType = dtype.parse().map_err(Failure::from)?;
        let bytes = bytes.as_slice()?;
        detached(py, || {
            let mut cache = self.lock()?;
            let uploaded = match replace {
                true => cache.replace_weight(name, dtype, bytes, rows, columns),
                false => cache.upload_weight_as(name, dtype, bytes, rows, columns),
            };
            Ok(uploaded?)
        })
    }

    /// Takes a weight off the device.
    fn remove(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        detached(py, || Ok(self.lock()?.remove_weight(name)?))
    }

    /// What is known of a weight.
    fn weight(&self, py: Python<'_>, name: &str) -> PyResult<Option<Weight>> {
        let info = locked(py, self.cache.get()?, |cache| Ok(cache.weight(name)))?;
        Ok(info.map(|info| (info.dtype.name(), info.rows, info.cols, info.bytes)))
    }

    /// The names of all weights, sorted.
    fn names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        locked(py, self.cache.get()?, |cache| {
            let mut names: Vec<String> = cache.weight_names().map(str::to_owned).collect();
            names.sort();
            Ok(names)
        })
    }

    /// `m` rows of input times a weight, and the width of its rows.
    fn matmul<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        input: PyReadonlyArray1<'py, f32>,
        m: usize,
    ) -> PyResult<(Bound<'py, PyArray1<f32>>, usize)> {
        let input = input.as_slice()?;
        let (out, n) = detached(py, || {
            let mut cache = self.lock()?;
            let n = cache.weight(name).map_or(0, |weight| weight.rows);
            let mut out = vec![0.0; m.saturating_mul(n)];
            cache.matmul_cached(name, input, &mut out, m)?;
            Ok((out, n))
        })?;
        Ok((PyArray1::from_vec(py, out), n))
    }

    /// The same into an array that there is.
    fn matmul_into(
        &self,
        py: Python<'_>,
        name: &str,
        input: PyReadonlyArray1<'_, f32>,
        m: usize,
        mut out: PyReadwriteArray1<'_, f32>,
    ) -> PyResult<()> {
        let (input, out) = (input.as_slice()?, out.as_slice_mut()?);
        detached(py, || Ok(self.lock()?.matmul_cached(name, input, out, m)?))
    }

    /// The time on the device of each kernel of a matmul of `m` rows.
    fn profile(&self, py: Python<'_>, name: &str, m: usize) -> PyResult<Times> {
        detached(py, || Ok(times(self.lock()?.profile(name, m)?)))
    }

    /// The kernels of a matmul of `m` rows.
    fn kernels(&self, py: Python<'_>, name: &str, m: usize) -> PyResult<Vec<String>> {
        detached(py, || Ok(self.lock()?.kernels(name, m)?))
    }
}
