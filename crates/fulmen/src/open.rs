//! From what was found and what was asked for to one device, and opening it.

use fulmen_core::device::{BackendKind, BackendReport, DeviceInfo, DeviceKind, DeviceSelector};
use fulmen_model::Device;

/// Why there is no device to take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    /// The device or backend is there but cannot be used, or is not there at all.
    #[error("device {asked} cannot be used: {reason}")]
    Unavailable {
        /// What was asked for.
        asked: DeviceSelector,
        /// Why not.
        reason: String,
    },
    /// A number that no device has.
    #[error("device {asked} does not exist: {backend} has {count}, the first is {backend}:0")]
    NoSuchIndex {
        /// What was asked for.
        asked: DeviceSelector,
        /// Its backend.
        backend: BackendKind,
        /// How many devices that has.
        count: usize,
    },
    /// Nothing at all.
    #[error("no device runs graphs")]
    Nothing,
}

/// How a device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Threads of the processor; all of them if not given.
    pub threads: Option<usize>,
}

/// Opens the device that `asked` means, for graphs and models.
///
/// ```
/// let device = fulmen::open("cpu".parse()?)?;
/// assert_eq!(device.backend(), "cpu");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn open(asked: DeviceSelector) -> Result<Device, SelectError> {
    open_with(asked, OpenOptions::default()).map(|(_, device)| device)
}

/// Opens the device that `asked` means, and says which it is.
pub fn open_with(asked: DeviceSelector, options: OpenOptions) -> Result<(DeviceInfo, Device), SelectError> {
    let reports = reports_for(asked);
    let info = choose(&reports, asked)?.clone();
    let device: Device = match info.backend {
        BackendKind::Cpu => match options.threads {
            Some(threads) => Box::new(fulmen_cpu::CpuDispatcher::with_threads(threads)),
            None => Box::new(fulmen_cpu::CpuDispatcher::new()),
        },
        BackendKind::Cuda => {
            let opened = fulmen_cuda::CudaDispatcher::open(info.index);
            let refused =
                |error: fulmen_cuda::CudaError| SelectError::Unavailable { asked, reason: error.to_string() };
            Box::new(opened.map_err(refused)?)
        }
        BackendKind::Wgpu => {
            let opened = fulmen_wgpu::WgpuDispatcher::open(info.index);
            let refused =
                |error: fulmen_wgpu::GpuError| SelectError::Unavailable { asked, reason: error.to_string() };
            Box::new(opened.map_err(refused)?)
        }
    };
    Ok((info, device))
}

/// The reports that a choice needs: asking a driver takes time, and some write to the terminal.
fn reports_for(asked: DeviceSelector) -> Vec<BackendReport> {
    match asked {
        DeviceSelector::Auto => reports(),
        DeviceSelector::Backend(backend) | DeviceSelector::Device(backend, _) => vec![report(backend)],
    }
}

fn report(backend: BackendKind) -> BackendReport {
    match backend {
        BackendKind::Cpu => fulmen_cpu::device::report(),
        BackendKind::Wgpu => fulmen_wgpu::report(),
        BackendKind::Cuda => fulmen_cuda::report(),
    }
}

/// Every backend's report, in the order in which people look for them.
pub fn reports() -> Vec<BackendReport> {
    [BackendKind::Cuda, BackendKind::Wgpu, BackendKind::Cpu].map(report).into()
}

/// The device that `asked` means. Only a device that runs graphs is ever returned.
pub fn choose(reports: &[BackendReport], asked: DeviceSelector) -> Result<&DeviceInfo, SelectError> {
    match asked {
        DeviceSelector::Auto => best(reports.iter().flat_map(|r| &r.devices)).ok_or(SelectError::Nothing),
        DeviceSelector::Backend(backend) => {
            let devices = devices(reports, backend, asked)?;
            best(devices).ok_or_else(|| SelectError::Unavailable { asked, reason: first_reason(devices) })
        }
        DeviceSelector::Device(backend, index) => {
            let devices = devices(reports, backend, asked)?;
            let device = devices.iter().find(|device| device.index == index);
            let device = device.ok_or(SelectError::NoSuchIndex { asked, backend, count: devices.len() })?;
            match &device.runs_graphs {
                Ok(()) => Ok(device),
                Err(reason) => Err(SelectError::Unavailable { asked, reason: reason.clone() }),
            }
        }
    }
}

/// The devices of one backend, or why it has none.
fn devices(
    reports: &[BackendReport],
    backend: BackendKind,
    asked: DeviceSelector,
) -> Result<&[DeviceInfo], SelectError> {
    let report = reports.iter().find(|report| report.backend == backend);
    match report {
        Some(report) if !report.devices.is_empty() => Ok(&report.devices),
        _ => {
            let reason = report.and_then(|report| report.unavailable.clone());
            let reason = reason.unwrap_or_else(|| "it has no devices".to_owned());
            Err(SelectError::Unavailable { asked, reason })
        }
    }
}

/// The best device that runs graphs; the first among equals.
fn best<'a>(devices: impl IntoIterator<Item = &'a DeviceInfo>) -> Option<&'a DeviceInfo> {
    devices.into_iter().filter(|device| device.runs_graphs.is_ok()).min_by_key(|device| rank(device))
}

/// CUDA before wgpu on hardware before the processor; a software GPU is slower than the processor's own kernels.
fn rank(device: &DeviceInfo) -> u8 {
    match (device.backend, device.kind) {
        (BackendKind::Cuda, _) => 0,
        (BackendKind::Wgpu, DeviceKind::DiscreteGpu) => 1,
        (BackendKind::Wgpu, DeviceKind::IntegratedGpu) => 2,
        (BackendKind::Wgpu, DeviceKind::Other) => 3,
        (BackendKind::Cpu, _) => 4,
        (BackendKind::Wgpu, DeviceKind::SoftwareGpu | DeviceKind::Cpu) => 5,
    }
}

/// Why the first of these devices, none of which runs graphs, does not.
fn first_reason(devices: &[DeviceInfo]) -> String {
    devices.iter().find_map(|device| device.runs_graphs.clone().err()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(backend: BackendKind, index: usize, kind: DeviceKind, usable: bool) -> DeviceInfo {
        DeviceInfo {
            backend,
            index,
            name: "a device".to_owned(),
            kind,
            driver: String::new(),
            memory_bytes: None,
            free_bytes: None,
            facts: Vec::new(),
            runs_graphs: if usable { Ok(()) } else { Err("not yet".to_owned()) },
        }
    }

    fn machine(cuda_runs: bool, wgpu_runs: bool) -> Vec<BackendReport> {
        use {
            BackendKind::*,
            DeviceKind::{DiscreteGpu, IntegratedGpu, SoftwareGpu},
        };
        let report = |backend, devices| BackendReport { backend, devices, unavailable: None };
        vec![
            report(Cuda, vec![device(Cuda, 0, DiscreteGpu, cuda_runs)]),
            report(
                Wgpu,
                vec![
                    device(Wgpu, 0, SoftwareGpu, wgpu_runs),
                    device(Wgpu, 1, IntegratedGpu, wgpu_runs),
                    device(Wgpu, 2, DiscreteGpu, wgpu_runs),
                ],
            ),
            report(Cpu, vec![device(Cpu, 0, DeviceKind::Cpu, true)]),
        ]
    }

    fn taken(reports: &[BackendReport], asked: &str) -> Result<String, SelectError> {
        choose(reports, asked.parse().unwrap()).map(|device| device.selector().to_string())
    }

    #[test]
    fn auto_takes_cuda_then_hardware_then_the_processor() {
        assert_eq!(taken(&machine(true, true), "auto").unwrap(), "cuda:0");
        assert_eq!(taken(&machine(false, true), "auto").unwrap(), "wgpu:2");
        assert_eq!(taken(&machine(false, false), "auto").unwrap(), "cpu");
    }

    #[test]
    fn auto_never_takes_a_software_gpu_where_there_is_a_processor() {
        let mut reports = machine(false, true);
        reports[1].devices.truncate(1);
        assert_eq!(taken(&reports, "auto").unwrap(), "cpu");
        assert_eq!(taken(&reports, "wgpu").unwrap(), "wgpu:0");
        reports.truncate(2);
        assert_eq!(taken(&reports, "auto").unwrap(), "wgpu:0");
    }

    #[test]
    fn what_is_named_is_taken_or_refused_with_the_reason() {
        let reports = machine(true, false);
        assert_eq!(taken(&reports, "cpu").unwrap(), "cpu");
        assert_eq!(taken(&reports, "cuda:0").unwrap(), "cuda:0");
        for asked in ["wgpu", "wgpu:1"] {
            let message = taken(&reports, asked).unwrap_err().to_string();
            assert_eq!(message, format!("device {asked} cannot be used: not yet"));
        }
        let message = taken(&reports, "cuda:7").unwrap_err().to_string();
        assert_eq!(message, "device cuda:7 does not exist: cuda has 1, the first is cuda:0");
    }

    #[test]
    fn a_missing_backend_says_why() {
        let reports = [BackendReport {
            backend: BackendKind::Cuda,
            devices: vec![],
            unavailable: Some("no driver".into()),
        }];
        let message = taken(&reports, "cuda:0").unwrap_err().to_string();
        assert_eq!(message, "device cuda:0 cannot be used: no driver");
        assert_eq!(taken(&reports, "auto"), Err(SelectError::Nothing));
    }
}
