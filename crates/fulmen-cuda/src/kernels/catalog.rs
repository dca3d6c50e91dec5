//! The embedded kernels by name. Needs no GPU and no driver.

use std::collections::BTreeMap;

use crate::embedded::EMBEDDED;
use crate::ptx;

/// A kernel and what it is compiled for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// The name of the kernel, which is also its entry point in the PTX.
    pub name: String,
    /// Its file in `kernels`, such as `softmax.cu`.
    pub file: String,
    /// The targets that it is compiled for: `80`, `90`, or `90a` for code that only runs on 9.0.
    pub targets: Vec<&'static str>,
}

/// Every embedded kernel, ordered by file and name.
pub fn catalog() -> Vec<KernelInfo> {
    let mut kernels = Vec::new();
    for embedded in EMBEDDED.iter() {
        let mut targets: BTreeMap<&str, Vec<&'static str>> = BTreeMap::new();
        for &target in embedded.targets {
            for name in embedded.ptx_of_target(target).into_iter().flat_map(ptx::entries) {
                targets.entry(name).or_default().push(target);
            }
        }
        kernels.extend(targets.into_iter().map(|(name, targets)| KernelInfo {
            name: name.to_owned(),
            file: format!("{}.cu", embedded.file),
            targets,
        }));
    }
    kernels
}

/// The PTX of one kernel, as a device of this compute capability (`10 * major + minor`) loads it: the newest
/// target that it runs, without the other kernels of its file. `None` if there is no such kernel, or none
/// that the device runs.
pub fn ptx_of(name: &str, capability: u32) -> Option<String> {
    EMBEDDED.iter().find_map(|embedded| embedded.index(capability)?.extract(name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_kernel_has_a_name_of_its_own() {
        let kernels = catalog();
        let names: BTreeSet<&str> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        assert_eq!(names.len(), kernels.len());
        assert!(kernels.len() > 100 && names.contains("softmax"));
    }

    #[test]
    fn the_ptx_of_a_kernel_is_that_of_the_newest_target_that_runs() {
        let kernel = catalog().into_iter().find(|kernel| kernel.name == "softmax").unwrap();
        assert_eq!((kernel.file.as_str(), &kernel.targets[..]), ("softmax.cu", &["80", "90"][..]));
        for (capability, target) in [(80, "sm_80"), (89, "sm_80"), (90, "sm_90"), (120, "sm_90")] {
            let ptx = ptx_of("softmax", capability).unwrap();
            assert!(ptx.contains(&format!(".target {target}\n")) && ptx.contains(".visible .entry softmax("));
        }
        assert_eq!(ptx_of("softmax", 75), None);
        assert_eq!(ptx_of("no_such_kernel", 90), None);
    }
}
