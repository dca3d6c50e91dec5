//! The kernels of the CUDA backend.

use fulmen_core::device::BackendName;

use super::{Catalog, Kernel, NEWEST, Target};
use crate::select::CUDA;

/// The CUDA kernels that are embedded in this program.
pub(super) struct Cuda;

impl Catalog for Cuda {
    fn backend(&self) -> BackendName {
        CUDA
    }

    fn kernels(&self) -> Vec<Kernel> {
        let kernel = |info: fulmen_cuda::kernels::KernelInfo| Kernel {
            backend: CUDA.to_string(),
            name: info.name,
            about: info.file,
            targets: info.targets.into_iter().map(|target| format!("sm_{target}")).collect(),
        };
        fulmen_cuda::kernels::catalog().into_iter().map(kernel).collect()
    }

    fn source(&self, name: &str, target: Option<Target>) -> Option<String> {
        fulmen_cuda::kernels::ptx_of(name, target.unwrap_or(NEWEST).0)
    }
}
