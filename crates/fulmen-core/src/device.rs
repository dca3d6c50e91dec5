//! Descriptions of devices as plain data: every backend fills them in and the command line prints them.
//! Nothing here opens a driver.

use std::{fmt, str::FromStr};

pub use crate::backend_name::{BackendName, BackendNameError};

/// The kind of hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// The processor itself.
    Cpu,
    /// A GPU with dedicated memory.
    DiscreteGpu,
    /// A GPU that shares the processor's memory.
    IntegratedGpu,
    /// A GPU interface that runs on the processor, such as Mesa's lavapipe: for tests, not for speed.
    SoftwareGpu,
    /// Hardware that the driver does not classify, such as a GPU inside a virtual machine.
    Other,
}

impl DeviceKind {
    /// The name for people and for JSON.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::DiscreteGpu => "discrete gpu",
            DeviceKind::IntegratedGpu => "integrated gpu",
            DeviceKind::SoftwareGpu => "software gpu",
            DeviceKind::Other => "other",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The value of a [`Fact`]; `Display` writes it for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FactValue {
    /// A size in bytes.
    Bytes(u64),
    /// A number of things.
    Count(u64),
    /// Whether the device has it.
    Flag(bool),
    /// Anything else.
    Text(String),
}

impl fmt::Display for FactValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FactValue::Bytes(bytes) => f.pad(&format_bytes(*bytes)),
            FactValue::Count(count) => f.pad(&count.to_string()),
            FactValue::Flag(flag) => f.pad(if *flag { "yes" } else { "no" }),
            FactValue::Text(text) => f.pad(text),
        }
    }
}

/// One property of a device: a limit, or whether it has a feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// The property's name, in lower case.
    pub name: &'static str,
    /// Its value.
    pub value: FactValue,
}

impl Fact {
    /// A size in bytes.
    pub const fn bytes(name: &'static str, bytes: u64) -> Self {
        Self { name, value: FactValue::Bytes(bytes) }
    }

    /// A number of things.
    pub const fn count(name: &'static str, count: u64) -> Self {
        Self { name, value: FactValue::Count(count) }
    }

    /// A feature, present or not.
    pub const fn flag(name: &'static str, present: bool) -> Self {
        Self { name, value: FactValue::Flag(present) }
    }

    /// Anything else.
    pub fn text(name: &'static str, text: impl Into<String>) -> Self {
        Self { name, value: FactValue::Text(text.into()) }
    }
}

/// One device, found but not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The backend that found it.
    pub backend: BackendName,
    /// Its number among that backend's devices.
    pub index: usize,
    /// Its name, as the driver gives it.
    pub name: String,
    /// The kind of hardware.
    pub kind: DeviceKind,
    /// The driver and its version. Empty if there is none.
    pub driver: String,
    /// Total memory, if the driver reports it.
    pub memory_bytes: Option<u64>,
    /// Free memory, if that is known without opening the device.
    pub free_bytes: Option<u64>,
    /// Further properties, in display order.
    pub facts: Vec<Fact>,
    /// `Ok` if graphs can run on it, otherwise the reason why not.
    pub runs_graphs: Result<(), String>,
}

impl DeviceInfo {
    /// The selector that selects exactly this device.
    pub const fn selector(&self) -> DeviceSelector {
        match self.kind {
            // There is only one.
            DeviceKind::Cpu => DeviceSelector::Backend(self.backend),
            _ => DeviceSelector::Device(self.backend, self.index),
        }
    }
}

/// What one backend found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendReport {
    /// The backend.
    pub backend: BackendName,
    /// Its devices, each at its own index.
    pub devices: Vec<DeviceInfo>,
    /// Why there are no devices, if the backend is unavailable.
    pub unavailable: Option<String>,
}

impl BackendReport {
    /// A report of the devices found, or of the error that prevented the search.
    pub fn new<E: fmt::Display>(backend: BackendName, found: Result<Vec<DeviceInfo>, E>) -> Self {
        match found {
            Ok(devices) => Self { backend, devices, unavailable: None },
            Err(error) => Self { backend, devices: Vec::new(), unavailable: Some(error.to_string()) },
        }
    }
}

/// Which device to use: `auto`, or a backend with or without a number, such as `cpu`, `wgpu:1`, `cuda:0`. Any
/// well-formed name is a selector; whether there is such a backend is known to those who open devices.
///
/// ```
/// use fulmen_core::device::{BackendName, DeviceSelector};
///
/// assert_eq!("cuda:1".parse(), Ok(DeviceSelector::Device(BackendName::new("cuda"), 1)));
/// assert_eq!("wgpu".parse(), Ok(DeviceSelector::Backend(BackendName::new("wgpu"))));
/// assert!("cuda:first".parse::<DeviceSelector>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeviceSelector {
    /// The best device that runs graphs.
    #[default]
    Auto,
    /// The best device of one backend.
    Backend(BackendName),
    /// One device of one backend.
    Device(BackendName, usize),
}

impl fmt::Display for DeviceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceSelector::Auto => f.pad("auto"),
            DeviceSelector::Backend(backend) => f.pad(backend.as_str()),
            DeviceSelector::Device(backend, index) => f.pad(&format!("{backend}:{index}")),
        }
    }
}

/// A string that is not a well-formed [`DeviceSelector`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown device {0:?}; use auto, BACKEND or BACKEND:N with N = 0, 1, …, such as cpu or wgpu:1")]
pub struct SelectorError(pub String);

impl FromStr for DeviceSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let refused = || SelectorError(text.to_owned());
        let (name, index) = match text.split_once(':') {
            Some((name, index)) => (name, Some(index)),
            None => (text, None),
        };
        if name == "auto" && index.is_none() {
            return Ok(DeviceSelector::Auto);
        }
        let backend = name.parse().map_err(|_| refused())?;
        match index {
            None => Ok(DeviceSelector::Backend(backend)),
            Some(index) if index.bytes().all(|b| b.is_ascii_digit()) => {
                index.parse().map(|index| DeviceSelector::Device(backend, index)).map_err(|_| refused())
            }
            Some(_) => Err(refused()),
        }
    }
}

/// A size in human-readable form: whole bytes below 1 KiB, otherwise a binary unit with at most one decimal.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would be written as 1024.0, which belongs to the next unit.
    while size >= 1023.95 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let number = format!("{size:.1}");
    format!("{} {}", number.strip_suffix(".0").unwrap_or(&number), UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_parse_and_print_the_same() {
        for text in ["auto", "cpu", "cpu:0", "wgpu", "wgpu:0", "wgpu:12", "cuda", "cuda:3", "npu", "npu:1"] {
            let selector: DeviceSelector = text.parse().unwrap();
            assert_eq!(selector.to_string(), text);
        }
    }

    #[test]
    fn malformed_selectors_are_refused_with_their_form() {
        for text in [
            "",
            ":",
            "auto:0",
            "a gpu",
            "CUDA",
            "cuda:",
            "cuda:-1",
            "cuda:+1",
            "cuda: 1",
            "cuda:1:2",
            "wgpu:99999999999999999999",
        ] {
            let error = text.parse::<DeviceSelector>().unwrap_err();
            assert_eq!(error, SelectorError(text.to_owned()));
            let message = error.to_string();
            assert!(message.contains("auto, BACKEND or BACKEND:N"), "{message}");
        }
    }

    #[test]
    fn sizes_are_human_readable() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (128 << 20, "128 MiB"),
            ((2 << 30) - 4, "2 GiB"),
            ((1 << 20) - 1, "1 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(format_bytes(bytes), text);
        }
    }
}
