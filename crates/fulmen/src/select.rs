//! Selects a device among those that the backends found.

use fulmen_core::device::{BackendName, BackendReport, DeviceInfo, DeviceSelector};

/// Why no device can be selected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    /// The text is no device, or no backend has this name.
    #[error("unknown device {asked:?}; use {}", forms(known))]
    Unknown {
        /// What was asked for.
        asked: String,
        /// The backends that there are.
        known: Vec<BackendName>,
    },
    /// The backend exists, but its cargo feature was off when this program was built.
    #[error(
        "device {asked} cannot be used: this program was built without the backend {backend} (cargo feature \
         \"{backend}\"); it has: {}",
        list(known)
    )]
    LeftOut {
        /// The requested device.
        asked: DeviceSelector,
        /// Its backend, which is also the name of the feature.
        backend: BackendName,
        /// The backends that there are.
        known: Vec<BackendName>,
    },
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
        backend: BackendName,
        /// Its number of devices.
        count: usize,
    },
    /// No device can run graphs.
    #[error("no device on this machine can run models")]
    Nothing,
}

/// `cpu, wgpu`, or that there are none.
fn list(known: &[BackendName]) -> String {
    match known {
        [] => "no backend".to_owned(),
        // The most general ones first.
        known => known.iter().rev().map(BackendName::as_str).collect::<Vec<_>>().join(", "),
    }
}

/// What a selector may be.
fn forms(known: &[BackendName]) -> String {
    let example = known.iter().find(|name| name.as_str() != "cpu").or(known.first());
    match example {
        None => "auto (this program has no backend)".to_owned(),
        Some(name) => format!("auto, {}, or a device by its number, such as {name}:0", list(known)),
    }
}

/// Selects a device that can run graphs; of several, the one of the lowest rank.
pub(crate) fn select(
    reports: &[BackendReport],
    asked: DeviceSelector,
    rank: impl Fn(&DeviceInfo) -> u32,
) -> Result<&DeviceInfo, SelectError> {
    match asked {
        DeviceSelector::Auto => {
            best(reports.iter().flat_map(|report| &report.devices), rank).ok_or(SelectError::Nothing)
        }
        DeviceSelector::Backend(backend) => {
            let devices = devices(reports, backend, asked)?;
            best(devices, rank)
                .ok_or_else(|| SelectError::Unavailable { asked, reason: first_reason(devices) })
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
    backend: BackendName,
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
fn best<'a>(
    devices: impl IntoIterator<Item = &'a DeviceInfo>,
    rank: impl Fn(&DeviceInfo) -> u32,
) -> Option<&'a DeviceInfo> {
    devices.into_iter().filter(|device| device.runs_graphs.is_ok()).min_by_key(|device| rank(device))
}

/// Why the first of these devices cannot run graphs.
fn first_reason(devices: &[DeviceInfo]) -> String {
    devices.iter().find_map(|device| device.runs_graphs.clone().err()).unwrap_or_default()
}

#[cfg(all(test, feature = "cpu", feature = "wgpu", feature = "cuda"))]
mod tests {
    use super::*;
    use crate::Registry;
    use fulmen_core::device::DeviceKind;

    fn device(backend: BackendName, index: usize, kind: DeviceKind, usable: bool) -> DeviceInfo {
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
        use DeviceKind::{DiscreteGpu, IntegratedGpu, SoftwareGpu};
        let [cuda, wgpu, cpu] = ["cuda", "wgpu", "cpu"].map(BackendName::new);
        let report = |backend, devices| BackendReport { backend, devices, unavailable: None };
        vec![
            report(cuda, vec![device(cuda, 0, DiscreteGpu, cuda_runs)]),
            report(
                wgpu,
                vec![
                    device(wgpu, 0, SoftwareGpu, wgpu_runs),
                    device(wgpu, 1, IntegratedGpu, wgpu_runs),
                    device(wgpu, 2, DiscreteGpu, wgpu_runs),
                ],
            ),
            report(cpu, vec![device(cpu, 0, DeviceKind::Cpu, true)]),
        ]
    }

    fn taken(reports: &[BackendReport], asked: &str) -> Result<String, SelectError> {
        Registry::builtin()
            .choose(reports, asked.parse().unwrap())
            .map(|device| device.selector().to_string())
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
            backend: BackendName::new("cuda"),
            devices: vec![],
            unavailable: Some("no driver".into()),
        }];
        let message = taken(&reports, "cuda:0").unwrap_err().to_string();
        assert_eq!(message, "device cuda:0 cannot be used: no driver");
        assert_eq!(taken(&reports, "auto"), Err(SelectError::Nothing));
    }
}
