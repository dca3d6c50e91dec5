//! `FULMEN_CUDA_TARGET`: use the kernels of an older compute capability, within its limits.

use std::env;
use std::fmt;

use super::Caps;
use crate::error::CudaError;

/// The environment variable.
const VARIABLE: &str = "FULMEN_CUDA_TARGET";

/// An older compute capability whose kernels a newer device uses, within the limits that an older device has:
/// so that they can be checked and timed without one. Other properties are those of the device: the number
/// of multiprocessors, the memory, and how fast both are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaTarget {
    capability: u32,
    /// The largest shared memory of a block.
    shared_bytes: u32,
}

/// Ampere (8.0: A100; 8.6: GeForce 30 and workstations) and Ada (8.9).
const TARGETS: [CudaTarget; 3] = [
    CudaTarget { capability: 80, shared_bytes: 163 << 10 },
    CudaTarget { capability: 86, shared_bytes: 99 << 10 },
    CudaTarget { capability: 89, shared_bytes: 99 << 10 },
];

impl CudaTarget {
    /// `80`, `86` or `89`.
    pub fn parse(value: &str) -> Result<CudaTarget, CudaError> {
        let named = |target: &CudaTarget| value == target.capability.to_string();
        let target = TARGETS.into_iter().find(named);
        target.ok_or_else(|| CudaError::UnknownTarget { value: value.to_owned() })
    }

    /// The one that `FULMEN_CUDA_TARGET` names; none if it is not set or empty.
    pub fn from_env() -> Result<Option<CudaTarget>, CudaError> {
        let value = env::var_os(VARIABLE).filter(|value| !value.is_empty());
        value.map(|value| CudaTarget::parse(&value.to_string_lossy())).transpose()
    }

    /// What launches may use of a device that runs the kernels of this target.
    pub(crate) fn limit(self, caps: Caps) -> Result<Caps, CudaError> {
        if self.capability > caps.capability {
            let found = format!("{}.{}", caps.capability / 10, caps.capability % 10);
            return Err(CudaError::TargetTooNew { target: self.to_string(), found });
        }
        let shared_bytes = self.shared_bytes.min(caps.shared_bytes);
        Ok(Caps { capability: self.capability, shared_bytes, ..caps })
    }
}

impl fmt::Display for CudaTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.capability / 10, self.capability % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Caps =
        Caps { capability: 90, multiprocessors: 132, shared_bytes: 227 << 10, l2_bytes: 50 << 20 };

    #[test]
    fn a_target_sets_the_capability_and_limits_the_shared_memory() {
        for (value, capability, shared) in [("80", 80, 163), ("86", 86, 99), ("89", 89, 99)] {
            let caps = CudaTarget::parse(value).unwrap().limit(H200).unwrap();
            assert_eq!(caps, Caps { capability, shared_bytes: shared << 10, ..H200 });
            assert!(!caps.has_clusters() && !caps.has_wgmma());
        }
    }

    #[test]
    fn other_values_are_refused() {
        for value in ["90", "8.6", "sm_86", "086", " 86", "86a", "", "-1", "75"] {
            let error = CudaTarget::parse(value).unwrap_err();
            assert_eq!(error, CudaError::UnknownTarget { value: value.to_owned() });
            assert!(error.to_string().contains("80, 86 or 89"), "{error}");
        }
    }

    #[test]
    fn a_target_that_is_newer_than_the_device_is_refused() {
        let a100 = Caps { capability: 80, shared_bytes: 163 << 10, ..H200 };
        assert_eq!(CudaTarget::parse("80").unwrap().limit(a100), Ok(a100));
        let error = CudaTarget::parse("86").unwrap().limit(a100).unwrap_err();
        assert_eq!(
            error.to_string(),
            "FULMEN_CUDA_TARGET selects the kernels of compute capability 8.6, but the device has 8.0"
        );
    }
}
