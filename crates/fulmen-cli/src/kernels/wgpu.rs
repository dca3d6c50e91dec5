//! The kernels of the wgpu backend.

use fulmen_core::device::BackendName;
use fulmen_wgpu::kernels::catalog::{CatalogEntry, catalog};
use fulmen_wgpu::{AdapterSelector, GpuDevice, GpuError};

use super::{Catalog, Kernel, Target};
use crate::quiet::quietly;
use crate::select::WGPU;

/// The kernels that are generated for a wgpu device.
pub(super) struct Wgpu(Vec<CatalogEntry>);

impl Wgpu {
    /// The kernels for one adapter; for the best one without an index.
    pub(super) fn new(index: Option<usize>) -> Result<Wgpu, GpuError> {
        let adapter = index.map_or(AdapterSelector::Best, AdapterSelector::Index);
        Ok(Wgpu(catalog(&quietly(|| GpuDevice::open(&adapter))?.caps())))
    }
}

impl Catalog for Wgpu {
    fn backend(&self) -> BackendName {
        WGPU
    }

    fn kernels(&self) -> Vec<Kernel> {
        let kernel = |entry: &CatalogEntry| Kernel {
            backend: WGPU.to_string(),
            name: entry.name.to_owned(),
            // The first line names the algorithm; the header of the file follows.
            about: entry.about.lines().next().unwrap_or_default().to_owned(),
            targets: Vec::new(),
        };
        self.0.iter().map(kernel).collect()
    }

    fn source(&self, name: &str, _: Option<Target>) -> Option<String> {
        self.0.iter().find(|entry| entry.name == name).map(|entry| entry.wgsl.clone())
    }
}
