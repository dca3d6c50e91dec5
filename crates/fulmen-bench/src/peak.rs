//! Peaks of GPUs by their data sheets.

use fulmen_core::{BackendName, DeviceInfo};

/// Dense f16 TFLOP/s with f32 accumulation. A name that contains another comes first.
const TENSOR_CORE_TFLOPS: [(&str, f64); 7] = [
    ("H200 NVL", 835.0),
    ("H200", 989.0),
    ("H100 NVL", 835.0),
    ("H100 PCIe", 756.0),
    ("H100", 989.0),
    ("A100", 312.0),
    ("L40S", 362.0),
];

/// The backend that runs every matmul on tensor cores where the device has them.
const ON_TENSOR_CORES: BackendName = BackendName::new("cuda");

/// FLOP/s that the tensor cores of a device reach at most by its data sheet: dense, f16 with f32
/// accumulation. `None` for devices that are not in the table, and for backends that do not run matmuls on
/// tensor cores throughout.
pub fn tensor_core_peak(device: &DeviceInfo) -> Option<f64> {
    if device.backend != ON_TENSOR_CORES {
        return None;
    }
    tera_flops(&device.name).map(|tera| tera * 1e12)
}

fn tera_flops(name: &str) -> Option<f64> {
    TENSOR_CORE_TFLOPS.iter().find(|(known, _)| name.contains(known)).map(|(_, tera)| *tera)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_counts() {
        assert_eq!(tera_flops("NVIDIA H200"), Some(989.0));
        assert_eq!(tera_flops("NVIDIA H200 NVL"), Some(835.0));
        assert_eq!(tera_flops("NVIDIA H100 80GB HBM3"), Some(989.0));
        assert_eq!(tera_flops("NVIDIA GeForce RTX 3060"), None);
    }
}
