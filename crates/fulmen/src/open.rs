//! Selects and opens a device.

use fulmen_core::device::{BackendKind, BackendReport, DeviceInfo, DeviceKind, DeviceSelector};
use fulmen_model::Device;

/// Why no device can be selected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    /// The device or backend does not exist or cannot be used.
    #[error("device {asked} cannot be used: {reason}")]
    Unavailable {
        /// The requested device.
        asked: DeviceSelector,
        /// The reason.
        reason: String,
    },
    /// There is no device with this index.
    #[error("device {asked} does not exist; devices of {backend}: {count}, the first is {backend}:0")]
    NoSuchIndex {
        /// The requested device.
        asked: DeviceSelector,
        /// Its backend.
        backend: BackendKind,
        /// Its number of devices.
        count: usize,
    },
    /// No device can run graphs.
    #[error("no device on this machine can run graphs")]
    Nothing,
}

/// Options for opening a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// CPU threads; `None` for all of them.
    pub threads: Option<usize>,
}

/// Opens a device for graphs and models.
///
/// ```
/// let device = fulmen::open("cpu".parse()?)?;
/// assert_eq!(device.backend(), "cpu");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn open(asked: DeviceSelector) -> Result<Device, SelectError> {
    open_with(asked, OpenOptions::default()).map(|(_, device)| device)
}

/// Opens a device with options, and returns its description.
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

/// Only the reports that the selection needs: querying a driver takes time, and some write to the terminal.
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

/// The reports of all backends: CUDA, wgpu, CPU.
pub fn reports() -> Vec<BackendReport> {
    [BackendKind::Cuda, BackendKind::Wgpu, BackendKind::Cpu].map(report).into()
}

/// Selects a device. Only devices that can run graphs are returned.
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

/// The devices of one backend, or the reason why there are none.
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

/// The best device that can run graphs; the first of several equally good ones.
fn best<'a>(devices: impl IntoIterator<Item = &'a DeviceInfo>) -> Option<&'a DeviceInfo> {
    devices.into_iter().filter(|device| device.runs_graphs.is_ok()).min_by_key(|device| rank(device))
}

/// CUDA before wgpu on a real GPU before the CPU; a software GPU is slower than the CPU backend.
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

/// Why the first of these devices cannot run graphs.
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
    fn auto_prefers_cuda_then_gpus_then_the_cpu() {
        assert_eq!(taken(&machine(true, true), "auto").unwrap(), "cuda:0");
        assert_eq!(taken(&machine(false, true), "auto").unwrap(), "wgpu:2");
        assert_eq!(taken(&machine(false, false), "auto").unwrap(), "cpu");
    }

    #[test]
    fn auto_prefers_the_cpu_to_a_software_gpu() {
        let mut reports = machine(false, true);
        reports[1].devices.truncate(1);
        assert_eq!(taken(&reports, "auto").unwrap(), "cpu");
        assert_eq!(taken(&reports, "wgpu").unwrap(), "wgpu:0");
        reports.truncate(2);
        assert_eq!(taken(&reports, "auto").unwrap(), "wgpu:0");
    }

    #[test]
    fn a_requested_device_is_selected_or_rejected_with_the_reason() {
        let reports = machine(true, false);
        assert_eq!(taken(&reports, "cpu").unwrap(), "cpu");
        assert_eq!(taken(&reports, "cuda:0").unwrap(), "cuda:0");
        for asked in ["wgpu", "wgpu:1"] {
            let message = taken(&reports, asked).unwrap_err().to_string();
            assert_eq!(message, format!("device {asked} cannot be used: not yet"));
        }
        let message = taken(&reports, "cuda:7").unwrap_err().to_string();
        assert_eq!(message, "device cuda:7 does not exist; devices of cuda: 1, the first is cuda:0");
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
