//! The backends of this build, which its cargo features select.

use std::sync::Arc;

use fulmen_core::device::BackendName;

use crate::registry::BackendProvider;

/// Backends of this project whose cargo feature is off, so that an error can say so.
pub(crate) const LEFT_OUT: &[BackendName] = &[
    #[cfg(not(feature = "cuda"))]
    BackendName::new("cuda"),
    #[cfg(not(feature = "wgpu"))]
    BackendName::new("wgpu"),
    #[cfg(not(feature = "cpu"))]
    BackendName::new("cpu"),
];

/// The backends of this build, from the most specialized to the most general.
pub(crate) fn providers() -> Vec<Arc<dyn BackendProvider>> {
    vec![
        #[cfg(feature = "cuda")]
        Arc::new(cuda::Cuda),
        #[cfg(feature = "wgpu")]
        Arc::new(wgpu::Wgpu),
        #[cfg(feature = "cpu")]
        Arc::new(cpu::Cpu),
    ]
}

#[cfg(feature = "cpu")]
mod cpu {
    use fulmen_core::device::{BackendName, BackendReport, DeviceInfo};
    use fulmen_cpu::CpuDispatcher;
    use fulmen_engine::Device;

    use crate::registry::{BackendProvider, OpenError, OpenOptions};

    pub(super) struct Cpu;

    impl BackendProvider for Cpu {
        fn name(&self) -> BackendName {
            fulmen_cpu::NAME
        }

        fn report(&self) -> BackendReport {
            fulmen_cpu::device::report()
        }

        fn rank(&self, _: &DeviceInfo) -> u32 {
            500
        }

        fn open(&self, _: &DeviceInfo, options: &OpenOptions) -> Result<Device, OpenError> {
            Ok(match options.threads {
                Some(threads) => Box::new(CpuDispatcher::with_threads(threads)),
                None => Box::new(CpuDispatcher::new()),
            })
        }
    }
}

#[cfg(feature = "wgpu")]
mod wgpu {
    use fulmen_core::device::{BackendName, BackendReport, DeviceInfo, DeviceKind};
    use fulmen_engine::Device;

    use crate::registry::{BackendProvider, OpenError, OpenOptions};

    pub(super) struct Wgpu;

    impl BackendProvider for Wgpu {
        fn name(&self) -> BackendName {
            fulmen_wgpu::NAME
        }

        fn report(&self) -> BackendReport {
            fulmen_wgpu::report()
        }

        fn rank(&self, device: &DeviceInfo) -> u32 {
            match device.kind {
                DeviceKind::DiscreteGpu => 200,
                DeviceKind::IntegratedGpu => 300,
                DeviceKind::Other => 400,
                // Slower than the CPU backend on the same processor.
                DeviceKind::SoftwareGpu | DeviceKind::Cpu => 600,
            }
        }

        fn open(&self, device: &DeviceInfo, _: &OpenOptions) -> Result<Device, OpenError> {
            Ok(Box::new(fulmen_wgpu::WgpuDispatcher::open(device.index)?))
        }
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use fulmen_core::device::{BackendName, BackendReport, DeviceInfo};
    use fulmen_engine::Device;

    use crate::registry::{BackendProvider, OpenError, OpenOptions};

    pub(super) struct Cuda;

    impl BackendProvider for Cuda {
        fn name(&self) -> BackendName {
            fulmen_cuda::NAME
        }

        fn report(&self) -> BackendReport {
            fulmen_cuda::report()
        }

        fn rank(&self, _: &DeviceInfo) -> u32 {
            100
        }

        fn open(&self, device: &DeviceInfo, _: &OpenOptions) -> Result<Device, OpenError> {
            Ok(Box::new(fulmen_cuda::CudaDispatcher::open(device.index)?))
        }
    }
}
