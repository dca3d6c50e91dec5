//! The options of every command that uses a device.

use fulmen::{OpenOptions, Registry};
use fulmen_core::device::{BackendName, BackendReport, DeviceInfo, DeviceSelector};
use fulmen_engine::Device;

use crate::quiet::quietly;

pub(crate) use fulmen::SelectError;

// Names are known also where a backend is not part of the build.
pub(crate) const CPU: BackendName = BackendName::new("cpu");
pub(crate) const WGPU: BackendName = BackendName::new("wgpu");
pub(crate) const CUDA: BackendName = BackendName::new("cuda");

/// Every backend and its devices.
pub(crate) fn reports() -> Vec<BackendReport> {
    quietly(|| Registry::builtin().reports())
}

/// Selects a device from reports.
pub(crate) fn choose(reports: &[BackendReport], asked: DeviceSelector) -> Result<&DeviceInfo, SelectError> {
    Registry::builtin().choose(reports, asked)
}

/// Opens a device and returns its description.
pub(crate) fn open(
    asked: DeviceSelector,
    options: &OpenOptions,
) -> Result<(DeviceInfo, Device), SelectError> {
    quietly(|| Registry::builtin().open_with(asked, options))
}

/// What `--device` takes, the most general backend first. There is one CPU, so it needs no number.
pub(crate) fn device_forms() -> Vec<String> {
    let mut forms = vec!["auto".to_owned()];
    for name in Registry::builtin().names().into_iter().rev() {
        forms.push(name.to_string());
        forms.extend((name != CPU).then(|| format!("{name}:N")));
    }
    forms
}

/// The value of `--device`: a device of a backend that this command was built with.
pub(crate) fn parse_device(text: &str) -> Result<DeviceSelector, SelectError> {
    Registry::builtin().parse(text)
}

/// The device to use.
#[derive(Debug, clap::Args)]
pub(crate) struct DeviceOption {
    /// Device to use: auto, cpu, wgpu, wgpu:N, cuda or cuda:N.
    ///
    /// `auto` selects the best device that can run models: CUDA first, then a hardware GPU through wgpu, then
    /// the CPU. A backend without a number selects its best device. `fulmen devices` lists all of them.
    #[arg(long, short, value_name = "DEVICE", env = "FULMEN_DEVICE", default_value_t)]
    #[arg(value_parser = parse_device)]
    pub(crate) device: DeviceSelector,
}

/// The device to use, and the CPU threads.
#[derive(Debug, clap::Args)]
pub(crate) struct OpenOption {
    #[command(flatten)]
    pub(crate) device: DeviceOption,

    /// CPU threads; all hardware threads by default.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl OpenOption {
    /// How many CPU threads are used.
    pub(crate) fn threads(&self) -> usize {
        self.threads.map_or_else(hardware_threads, usize::from)
    }

    /// The CPU threads that were asked for.
    pub(crate) fn asked_threads(&self) -> Option<usize> {
        self.threads.map(usize::from)
    }

    /// Opens the selected device.
    pub(crate) fn open(&self) -> Result<(DeviceInfo, Device), SelectError> {
        let options = OpenOptions { threads: self.threads.map(usize::from) };
        open(self.device.device, &options)
    }
}

pub(crate) fn hardware_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}
