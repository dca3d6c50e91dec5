//! What would make this machine faster, or keep it working.

use std::fs;
use std::path::Path;

use fulmen_core::device::{DeviceInfo, DeviceKind, DeviceSelector, format_bytes};

use super::Report;
use crate::select::{CPU, CUDA, WGPU};

/// A model of common size needs more.
const LITTLE_SPACE: u64 = 8 << 30;

/// What is known about the machine besides its devices.
#[derive(Default)]
pub(super) struct Machine {
    debug_build: bool,
    /// Makers of display controllers, found without a driver.
    gpu_makers: Vec<Maker>,
    /// `FULMEN_CPU_ISA`.
    forced_isa: Option<String>,
    cache_off: bool,
    tuned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Maker {
    Nvidia,
    Amd,
    Intel,
}

impl Machine {
    pub(super) fn of_this_process() -> Machine {
        #[cfg(feature = "wgpu")]
        let (cache_off, tuned) = match fulmen_wgpu::DiskCache::UserFolder.folder() {
            None => (true, false),
            Some(folder) => (false, has_tuned_kernels(&folder)),
        };
        #[cfg(not(feature = "wgpu"))]
        let (cache_off, tuned) = (false, false);
        Machine {
            debug_build: cfg!(debug_assertions),
            gpu_makers: display_controllers(Path::new("/sys/bus/pci/devices")),
            forced_isa: std::env::var("FULMEN_CPU_ISA").ok().filter(|isa| !isa.is_empty()),
            cache_off,
            tuned,
        }
    }
}

/// The makers of the display controllers on the PCI bus, as Linux lists them.
fn display_controllers(devices: &Path) -> Vec<Maker> {
    let Ok(entries) = fs::read_dir(devices) else { return Vec::new() };
    let mut makers = Vec::new();
    for entry in entries.flatten() {
        let read = |name| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let maker = match read("vendor").trim() {
            "0x10de" => Maker::Nvidia,
            "0x1002" => Maker::Amd,
            "0x8086" => Maker::Intel,
            _ => continue,
        };
        // Class 03: display controllers, also those without a connector.
        if read("class").starts_with("0x03") && !makers.contains(&maker) {
            makers.push(maker);
        }
    }
    makers
}

#[cfg(feature = "wgpu")]
fn has_tuned_kernels(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.path().extension().is_some_and(|end| end == "tuned"))
}

/// What to do, the most important first.
pub(super) fn advice(report: &Report, machine: &Machine) -> Vec<String> {
    let mut advice = Vec::new();
    if machine.debug_build {
        advice.push("this is a debug build; `cargo build --release` is several times as fast".to_owned());
    }
    for (device, tested) in &report.tested {
        if !tested.passed() {
            let update = match device {
                DeviceSelector::Backend(CPU) => "",
                _ => " update its driver, and if that does not help,",
            };
            advice.push(format!("do not use {device};{update} report this as a bug"));
        }
    }
    advise_drivers(report, machine, &mut advice);
    if let Some(isa) = &machine.forced_isa {
        advice.push(format!("FULMEN_CPU_ISA={isa} limits the processor's kernels; unset it for the fastest"));
    }
    if machine.cache_off {
        advice.push("FULMEN_CACHE=off compiles GPU kernels at every start; unset it".to_owned());
    }
    let selects_wgpu = matches!(&report.selected, Ok(device) if device.backend == WGPU);
    if selects_wgpu && !machine.tuned {
        advice.push(
            "`fulmen tune` finds the fastest matmul kernels for this GPU and remembers them".to_owned(),
        );
    }
    for folder in &report.folders {
        if let (Ok(path), Some(free)) = (&folder.path, folder.free)
            && folder.name == "models"
            && free < LITTLE_SPACE
        {
            let free = format_bytes(free);
            advice.push(format!("only {free} are free where models are stored ({})", path.display()));
        }
    }
    advice
}

fn is_hardware(device: &DeviceInfo) -> bool {
    !matches!(device.kind, DeviceKind::Cpu | DeviceKind::SoftwareGpu)
}

/// A GPU that is there and cannot be used, or not as fast as it could be.
fn advise_drivers(report: &Report, machine: &Machine, advice: &mut Vec<String>) {
    let devices = || report.backends.iter().flat_map(|backend| &backend.devices);
    let cuda = devices().any(|device| device.backend == CUDA && device.runs_graphs.is_ok());
    let nvidia = devices().any(|device| is_hardware(device) && device.name.contains("NVIDIA"));
    let hardware = devices().any(|device| is_hardware(device) && device.runs_graphs.is_ok());
    if cuda {
        return;
    }
    if nvidia || machine.gpu_makers.contains(&Maker::Nvidia) {
        let report = report.backends.iter().find(|backend| backend.backend == CUDA);
        let reason = report.and_then(|cuda| cuda.unavailable.as_deref()).unwrap_or("no device is usable");
        advice.push(format!("the NVIDIA GPU is fastest through CUDA, which is not available: {reason}"));
    } else if !hardware && !machine.gpu_makers.is_empty() {
        let driver = match machine.gpu_makers[0] {
            Maker::Amd | Maker::Nvidia => "Mesa's Vulkan driver (Debian, Ubuntu: mesa-vulkan-drivers)",
            Maker::Intel => "Intel's Vulkan driver (Debian, Ubuntu: mesa-vulkan-drivers)",
        };
        advice.push(format!("there is a GPU without a Vulkan driver; install {driver}"));
    } else if !hardware {
        advice.push(
            "no GPU was found: models run on the processor. An NVIDIA GPU, or another one with a Vulkan, \
             Metal or DX12 driver, is many times as fast"
                .to_owned(),
        );
    }
}

#[cfg(test)]
mod tests {
    use fulmen_core::device::{BackendName, BackendReport};

    use super::*;
    use crate::doctor::self_test::Tested;

    fn device(backend: BackendName, kind: DeviceKind, name: &str) -> DeviceInfo {
        DeviceInfo {
            backend,
            index: 0,
            name: name.to_owned(),
            kind,
            driver: String::new(),
            memory_bytes: None,
            free_bytes: None,
            facts: Vec::new(),
            runs_graphs: Ok(()),
        }
    }

    fn report(devices: Vec<DeviceInfo>) -> Report {
        let selected = devices.first().cloned().ok_or_else(|| "none".to_owned());
        let backends = [CPU, WGPU, CUDA].map(|backend| BackendReport {
            backend,
            devices: devices.iter().filter(|device| device.backend == backend).cloned().collect(),
            unavailable: Some("no driver".to_owned()),
        });
        Report {
            asked: DeviceSelector::Auto,
            selected,
            backends: backends.into(),
            tested: Vec::new(),
            folders: Vec::new(),
            advice: Vec::new(),
        }
    }

    #[test]
    fn advice_fits_the_machine() {
        let cpu = || device(CPU, DeviceKind::Cpu, "Xeon");
        let given =
            |devices: Vec<DeviceInfo>, machine: &Machine| advice(&report(devices), machine).join("\n");
        let plain = Machine { tuned: true, ..Machine::default() };
        assert!(given(vec![cpu()], &plain).starts_with("no GPU was found"));
        let cuda = device(CUDA, DeviceKind::DiscreteGpu, "NVIDIA H200");
        assert_eq!(given(vec![cuda, cpu()], &plain), "");
        let vulkan = || device(WGPU, DeviceKind::DiscreteGpu, "NVIDIA RTX");
        assert!(
            given(vec![vulkan(), cpu()], &plain)
                .contains("fastest through CUDA, which is not available: no driver")
        );
        let radeon = || device(WGPU, DeviceKind::DiscreteGpu, "AMD Radeon");
        assert_eq!(given(vec![radeon(), cpu()], &plain), "");
        assert!(given(vec![radeon()], &Machine::default()).contains("`fulmen tune`"));
        let amd = Machine { gpu_makers: vec![Maker::Amd], tuned: true, ..Machine::default() };
        assert!(given(vec![cpu()], &amd).contains("mesa-vulkan-drivers"));
        let odd = Machine {
            debug_build: true,
            forced_isa: Some("avx2".to_owned()),
            cache_off: true,
            ..Machine { tuned: true, ..Machine::default() }
        };
        assert_eq!(given(vec![radeon()], &odd).lines().count(), 3);
        let mut broken = report(vec![radeon()]);
        let selector = broken.backends[1].devices[0].selector();
        broken.tested.push((selector, Tested::Failed { error: "lost".to_owned() }));
        assert!(!broken.usable());
        assert!(advice(&broken, &plain)[0].contains("do not use wgpu:0"));
        assert!(!report(Vec::new()).usable());
    }

    #[test]
    fn display_controllers_are_found_without_drivers() {
        let folder = tempfile::tempdir().unwrap();
        for (name, vendor, class) in [
            ("a", "0x10de\n", "0x030200\n"),
            ("b", "0x8086\n", "0x020000\n"),
            ("c", "0x10de\n", "0x030000\n"),
            ("d", "0xffff\n", "0x030000\n"),
        ] {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("vendor"), vendor).unwrap();
            fs::write(path.join("class"), class).unwrap();
        }
        assert_eq!(display_controllers(folder.path()), [Maker::Nvidia]);
        assert_eq!(display_controllers(&folder.path().join("none")), []);
    }
}
