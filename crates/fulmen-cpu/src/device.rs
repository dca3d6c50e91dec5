//! Description of the processor: its name, memory and instruction sets.

use std::{fs, thread};

use fulmen_core::device::{BackendName, BackendReport, DeviceInfo, DeviceKind, Fact};

use crate::isa::Isa;

/// The name of this backend.
pub const NAME: BackendName = BackendName::new("cpu");

/// This processor, as the one device of the CPU backend.
pub fn report() -> BackendReport {
    BackendReport { backend: NAME, devices: vec![device_info()], unavailable: None }
}

/// This processor. What the system does not report is left out, so this cannot fail.
pub fn device_info() -> DeviceInfo {
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let isas: Vec<_> = Isa::available().into_iter().map(Isa::name).collect();
    DeviceInfo {
        backend: NAME,
        index: 0,
        name: processor_name().unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH)),
        kind: DeviceKind::Cpu,
        driver: String::new(),
        memory_bytes: meminfo_bytes(&memory, "MemTotal"),
        free_bytes: meminfo_bytes(&memory, "MemAvailable"),
        facts: vec![
            Fact::count("threads", thread::available_parallelism().map_or(1, |n| n.get() as u64)),
            Fact::text("instruction sets", isas.join(", ")),
            Fact::text("kernels use", Isa::best().name()),
        ],
        runs_graphs: Ok(()),
    }
}

/// Bytes of available memory, if the system reports them.
pub(crate) fn available_memory() -> Option<u64> {
    meminfo_bytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")
}

/// The processor's name as the system gives it.
fn processor_name() -> Option<String> {
    if cfg!(target_os = "macos") {
        let output =
            std::process::Command::new("sysctl").args(["-n", "machdep.cpu.brand_string"]).output().ok()?;
        return tidy(&String::from_utf8_lossy(&output.stdout));
    }
    if cfg!(windows) {
        return tidy(&std::env::var("PROCESSOR_IDENTIFIER").ok()?);
    }
    cpuinfo_name(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

/// The first `model name` of `/proc/cpuinfo`. x86 has it; many AArch64 kernels do not.
fn cpuinfo_name(cpuinfo: &str) -> Option<String> {
    let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(key, _)| key.trim() == "model name").and_then(|(_, value)| tidy(value))
}

/// One line with single spaces; `None` if it is blank.
fn tidy(name: &str) -> Option<String> {
    let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
    (!name.is_empty()).then_some(name)
}

/// A field of `/proc/meminfo`, which counts in KiB.
fn meminfo_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let (_, value) =
        meminfo.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| *key == field)?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_runs_graphs_and_has_a_name() {
        let info = device_info();
        assert!(!info.name.is_empty());
        assert_eq!(info.runs_graphs, Ok(()));
        assert_eq!(info.selector().to_string(), "cpu");
    }

    #[test]
    fn cpuinfo_gives_the_first_name_with_single_spaces() {
        let cpuinfo =
            "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Some  CPU @ 2.0GHz\n\nmodel name\t: Other\n";
        assert_eq!(cpuinfo_name(cpuinfo).as_deref(), Some("Some CPU @ 2.0GHz"));
        assert_eq!(cpuinfo_name("processor\t: 0\nBogoMIPS\t: 50.00\n"), None);
        assert_eq!(cpuinfo_name("model name\t:   \n"), None);
    }

    #[test]
    fn meminfo_counts_in_kibibytes() {
        let meminfo =
            "MemTotal:       16384 kB\nMemFree:   1 kB\nMemAvailable:    512 kB\nHugePages_Total:       0\n";
        assert_eq!(meminfo_bytes(meminfo, "MemTotal"), Some(16 << 20));
        assert_eq!(meminfo_bytes(meminfo, "MemAvailable"), Some(512 << 10));
        assert_eq!(meminfo_bytes(meminfo, "HugePages_Total"), None);
        assert_eq!(meminfo_bytes("", "MemTotal"), None);
    }
}
