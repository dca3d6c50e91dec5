//! The options of commands that measure wgpu itself.

use fulmen_core::device::DeviceSelector;
use fulmen_wgpu::{AdapterSelector, GpuDevice, GpuError};

use crate::error::CommandError;
use crate::quiet::quietly;
use crate::select::{WGPU, parse_device};

/// The device of a command that measures wgpu itself.
#[derive(Debug, clap::Args)]
pub(crate) struct GpuOption {
    /// Device to use: auto, wgpu or wgpu:N. `auto` prefers a hardware GPU to a software one.
    #[arg(long, short, value_name = "DEVICE", env = "FULMEN_DEVICE", default_value_t)]
    #[arg(value_parser = parse_device)]
    device: DeviceSelector,
}

/// Why no wgpu device could be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GpuOptionError {
    #[error("this command runs on wgpu devices only; use --device auto, wgpu or wgpu:N instead of {0}")]
    NotWgpu(DeviceSelector),
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

impl CommandError for GpuOptionError {
    fn is_usage(&self) -> bool {
        match self {
            GpuOptionError::NotWgpu(_) => true,
            GpuOptionError::Gpu(error) => error.is_usage(),
        }
    }
}

impl GpuOption {
    /// Opens the selected adapter.
    pub(crate) fn open(&self) -> Result<GpuDevice, GpuOptionError> {
        let adapter = match self.device {
            DeviceSelector::Auto => AdapterSelector::Best,
            asked => wgpu_adapter(asked).ok_or(GpuOptionError::NotWgpu(asked))?,
        };
        Ok(quietly(|| GpuDevice::open(&adapter))?)
    }
}

/// The wgpu adapter that a selector names; `None` if it names no backend or another one.
pub(crate) fn wgpu_adapter(asked: DeviceSelector) -> Option<AdapterSelector> {
    match asked {
        DeviceSelector::Backend(WGPU) => Some(AdapterSelector::Best),
        DeviceSelector::Device(WGPU, index) => Some(AdapterSelector::Index(index)),
        _ => None,
    }
}
