//! Bulk imports: every byte arrives, errors leave nothing behind, and the device stays usable.

use std::sync::atomic::{AtomicUsize, Ordering};

use fulmen_core::{BackendError, BulkImport, DType, DeviceMemory, WeightReader, WeightSpec};

use crate::gpu;

/// Weights of odd sizes, some of them larger than all staging memory.
const SIZES: [(usize, DType); 8] = [
    (1, DType::F32),
    (3 << 20, DType::Q4_K),
    (17, DType::Q6_K),
    (1 << 18, DType::Q8_0),
    (1, DType::F16),
    (9_000_001, DType::F32),
    (5, DType::Q4_0),
    (80_000_000, DType::BF16),
];

fn specs() -> Vec<WeightSpec> {
    let spec = |(blocks, dtype): (usize, DType)| WeightSpec {
        bytes: blocks * dtype.block_bytes()
            / if dtype.block_len() > 1 { 32 } else { 1 }
            / dtype.block_bytes()
            * dtype.block_bytes(),
        dtype,
        rows: 1,
        width: 1,
    };
    SIZES.map(spec).to_vec()
}

fn byte(weight: usize, offset: usize) -> u8 {
    ((weight + 1) * 37 + offset.wrapping_mul(2_654_435_761) / 7919) as u8
}

/// Writes a pattern, up to a weight that it refuses.
struct Pattern {
    refused: usize,
    bytes: AtomicUsize,
}

impl WeightReader for Pattern {
    fn read(&self, weight: usize, offset: usize, out: &mut [u8]) -> bool {
        self.bytes.fetch_add(out.len(), Ordering::Relaxed);
        out.iter_mut().enumerate().for_each(|(i, out)| *out = byte(weight, offset + i));
        weight != self.refused
    }
}

#[test]
fn every_byte_of_a_bulk_import_arrives() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    let specs = specs();
    let total: usize = specs.iter().map(|spec| spec.bytes).sum();
    // Twice: the second import reuses slots whose copies may be running.
    for _ in 0..2 {
        let pattern = Pattern { refused: usize::MAX, bytes: AtomicUsize::new(0) };
        let mut last = 0;
        let imported = cuda.import_weights(&specs, &pattern, &mut |done| last = done).unwrap();
        let BulkImport::Imported(addresses) = imported else { panic!("{imported:?}") };
        assert_eq!((last, pattern.bytes.into_inner()), (total as u64, total));
        assert_eq!(cuda.memory_bytes(), total);
        for (weight, (&ptr, spec)) in addresses.iter().zip(&specs).enumerate() {
            assert_eq!(ptr % 256, 0);
            let mut back = vec![0; spec.bytes];
            cuda.read(ptr, &mut back).unwrap();
            assert!(back.iter().enumerate().all(|(i, &found)| found == byte(weight, i)), "weight {weight}");
            assert!(cuda.write(ptr, &[0]).is_err(), "weights are read-only");
        }
        // In another order than they were allocated in: they share blocks.
        addresses.iter().rev().for_each(|&ptr| cuda.free(ptr).unwrap());
        assert_eq!(cuda.memory_bytes(), 0);
    }
}

#[test]
fn an_import_that_is_stopped_or_does_not_fit_leaves_nothing() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    let pattern = Pattern { refused: 5, bytes: AtomicUsize::new(0) };
    let stopped = cuda.import_weights(&specs(), &pattern, &mut |_| ());
    assert!(matches!(stopped, Ok(BulkImport::Stopped)), "{stopped:?}");
    assert_eq!(cuda.memory_bytes(), 0);
    let mut specs = specs();
    specs.push(WeightSpec { bytes: 1 << 46, dtype: DType::F32, rows: 1, width: 1 });
    let pattern = Pattern { refused: usize::MAX, bytes: AtomicUsize::new(0) };
    let failed = cuda.import_weights(&specs, &pattern, &mut |_| ());
    assert!(matches!(failed, Err(BackendError::OutOfMemory { .. })), "{failed:?}");
    assert_eq!((cuda.memory_bytes(), pattern.bytes.into_inner()), (0, 0));
}
