//! The bound of a run: the time that its ops take at least, if every byte is read or written once at the
//! memory's speed and every operation is done at the speed of the tensor cores.
//!
//! Each op takes the longer of both times, and a run takes the sum over its ops: an op that waits for memory
//! cannot lend its arithmetic to another one.

use fulmen_core::DeviceInfo;

use crate::model::OpRow;
use crate::peak::tensor_core_peak;

/// Bytes and FLOP per second that large copies and large f16 matmuls reach on a device.
const REACHED: [(&str, f64, f64); 1] = [("H200", 4.3e12, 747e12)];

/// How fast a device can be at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// FLOP per second; `None` if unknown, and then only bytes count.
    pub flops_per_second: Option<f64>,
}

impl Bound {
    /// The figures that are known to be reached on a device; otherwise its measured memory bandwidth, and the
    /// peak of its data sheet. `None` if neither is known.
    pub fn of(device: &DeviceInfo, measured: Option<f64>) -> Option<Bound> {
        let peak = tensor_core_peak(device);
        match REACHED.iter().find(|(name, ..)| peak.is_some() && device.name.ends_with(name)) {
            Some(&(_, bytes_per_second, flops)) => {
                Some(Bound { bytes_per_second, flops_per_second: Some(flops) })
            }
            None => measured.map(|bytes_per_second| Bound { bytes_per_second, flops_per_second: peak }),
        }
    }

    /// The bound of a run with these ops, in microseconds.
    pub fn us<'a>(&self, ops: impl IntoIterator<Item = &'a OpRow>) -> f64 {
        // The calls of a row are alike, so the longer time of all is the sum of the longer times.
        let of_op = |op: &OpRow| {
            let arithmetic = self.flops_per_second.map_or(0.0, |flops| op.flops as f64 / flops);
            1e6 * arithmetic.max(op.bytes as f64 / self.bytes_per_second)
        };
        ops.into_iter().map(of_op).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(bytes: u64, flops: u64) -> OpRow {
        OpRow {
            op: "op".to_owned(),
            calls: 1,
            kernels: 1,
            us: 1.0,
            bytes,
            flops,
            bytes_per_second: 0.0,
            share_of_memory: None,
        }
    }

    #[test]
    fn every_op_takes_the_longer_of_memory_and_arithmetic() {
        let bound = Bound { bytes_per_second: 1e12, flops_per_second: Some(1e14) };
        // 2 µs of memory and 1 of arithmetic; 1 of memory and 5 of arithmetic.
        let ops = [op(2_000_000, 100_000_000), op(1_000_000, 500_000_000)];
        assert!((bound.us(&ops) - 7.0).abs() < 1e-9);
        let memory_alone = Bound { flops_per_second: None, ..bound };
        assert!((memory_alone.us(&ops) - 3.0).abs() < 1e-9);
        assert_eq!(bound.us(&[]), 0.0);
    }
}
