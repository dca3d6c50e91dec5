//! The options of every subcommand that uses a device.

use fulmen::OpenOptions;
use fulmen_core::device::{DeviceInfo, DeviceSelector};
use fulmen_model::Device;

pub(crate) use fulmen::{SelectError, choose, reports};

/// The device to use.
#[derive(Debug, clap::Args)]
pub(crate) struct DeviceOption {
    /// The device to use: auto, cpu, wgpu, wgpu:N, cuda or cuda:N.
    ///
    /// `auto` takes the best device that runs graphs: CUDA first, then a hardware GPU through wgpu, then the
    /// processor. A backend without a number takes the best device of that backend.
    #[arg(long, short, value_name = "DEVICE", env = "FULMEN_DEVICE", default_value_t)]
    pub(crate) device: DeviceSelector,
}

/// The device to use, and the threads of the processor.
#[derive(Debug, clap::Args)]
pub(crate) struct OpenOption {
    #[command(flatten)]
    pub(crate) device: DeviceOption,

    /// Threads of the processor; all of them by default.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl OpenOption {
    /// How many threads of the processor are used.
    pub(crate) fn threads(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, |n| n.get());
        self.threads.map_or_else(all, usize::from)
    }

    /// The device that is asked for, opened.
    pub(crate) fn open(&self) -> Result<(DeviceInfo, Device), SelectError> {
        fulmen::open_with(self.device.device, OpenOptions { threads: self.threads.map(usize::from) })
    }
}
